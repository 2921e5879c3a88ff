"""What a session's past says of its next drafts: how many are likely to be right, and how soon they will be there."""

from __future__ import annotations

from typing import Final

_PRIOR_RIGHT: Final = 6.0
_PRIOR_WRONG: Final = 2.0
_MEMORY: Final = 0.95
"""Weight of all verdicts before one more."""
_NEW: Final = 0.25
"""Weight of one more return among those before."""


class Habits:
    """Learnt from one session's verdicts and drafts; pure, with the time passed in."""

    def __init__(self) -> None:
        self._right = _PRIOR_RIGHT
        self._wrong = _PRIOR_WRONG
        self._return: float | None = None
        self._parted: float | None = None

    @property
    def acceptance(self) -> float:
        """The estimated probability α that a draft token is right where those before it were; within (0, 1)."""
        return self._right / (self._right + self._wrong)

    def judged(self, accepted: int, judged: int) -> None:
        """Take in what a step found.

        Args:
            accepted: Draft tokens that were right.
            judged: Draft tokens that were put before the target.
        """
        if judged:
            self._right = _MEMORY * self._right + accepted
            # Those behind the first wrong one say nothing: they were drafted after a token that is not there.
            self._wrong = _MEMORY * self._wrong + (accepted < judged)

    def parted(self, now: float) -> None:
        """A verdict went out, and no drafts are left."""
        if self._parted is None:
            self._parted = now

    def returned(self, now: float) -> None:
        """Drafts came that can be verified."""
        if self._parted is not None:
            took = now - self._parted
            self._return = took if self._return is None else (1 - _NEW) * self._return + _NEW * took
            self._parted = None

    def returns_within(self, seconds: float, now: float) -> bool:
        """Whether drafts are likely to be there so soon: as soon as they were before, unless they are late already."""
        return self._parted is not None and max(self._return or 0.0, now - self._parted) <= seconds
