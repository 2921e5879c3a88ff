"""What the app forbids: modes that no call, setting or fallback may use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edgedraft.errors import ForbiddenMode, InvalidInput
from edgedraft.prompt import Mode


@dataclass(frozen=True, slots=True)
class Policy:
    """Forbids privacy modes.

    Attributes:
        never: The modes that must not be used, e.g. `{"open"}`.

    Raises:
        InvalidInput: A mode is unknown, or none is left.
    """

    never: Collection[Mode | str] = frozenset()

    def __post_init__(self) -> None:
        names = {self.never} if isinstance(self.never, str) else set(self.never)
        if unknown := names - set(Mode):
            raise InvalidInput("policy.never", f"has {sorted(map(str, unknown))}", f"use modes: {', '.join(Mode)}")
        never = frozenset(map(Mode, names))
        if never == set(Mode):
            raise InvalidInput("policy.never", "forbids every mode", "leave one out")
        object.__setattr__(self, "never", never)

    def check(self, mode: Mode) -> None:
        """Let a mode pass.

        Raises:
            ForbiddenMode: It is not allowed.
        """
        if mode in self.never:
            allowed = ", ".join(other for other in Mode if other not in self.never)
            raise ForbiddenMode(f"mode: {mode} is forbidden by the app's policy; use one of: {allowed}")
