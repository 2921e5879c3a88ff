"""The registry of detectors: which are asked, in which order, and who wins where two find the same text."""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from edgedraft.errors import InvalidInput

_KIND: Final = re.compile(r"(?=.{1,32}$)[A-Z]+(?:_[A-Z]+){0,3}")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something personal or secret in a text.

    Attributes:
        start: Its first character.
        end: The character behind its last.
        kind: What it is, in capitals, e.g. `EMAIL`.
    """

    start: int
    end: int
    kind: str


Spans: TypeAlias = Iterable[tuple[int, int]]
"""Starts and ends, in any order."""
Detector: TypeAlias = Callable[[str], Spans]
"""Takes a text and returns the spans of what it finds in it."""


class Detectors:
    """Detectors and the kinds of what they find; those that come first win where findings overlap.

    ```python
    detectors = Detectors.standard().with_detector("TICKET", lambda text: [m.span() for m in TICKET.finditer(text)])
    ```

    Args:
        detectors: Kinds and detectors, most certain first; a kind may have several.

    Raises:
        InvalidInput: A kind is not a name in capitals.
    """

    def __init__(self, detectors: Iterable[tuple[str, Detector]]) -> None:
        self._detectors = tuple(detectors)
        for kind in self.kinds:
            if not _KIND.fullmatch(kind):
                raise InvalidInput(
                    "kind", f"is {kind!r}", "use 1 to 4 words in capitals, 32 letters in all, with underscores between"
                )

    @classmethod
    def standard(cls) -> Self:
        """All that come with Edgedraft."""
        # Here only: they load tables of phone numbers, which an app without private prompts does not need.
        from edgedraft.privacy.detect.standard import STANDARD

        return cls(STANDARD)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are looked for."""
        return tuple(dict.fromkeys(kind for kind, _ in self._detectors))

    def with_detector(self, kind: str, detector: Detector) -> Self:
        """These and one more, which wins over them; one of the same kind is asked too.

        Raises:
            InvalidInput: The kind is not a name in capitals.
        """
        return type(self)(((kind, detector), *self._detectors))

    def without(self, *kinds: str) -> Self:
        """These without some kinds.

        Raises:
            InvalidInput: There is no such kind.
        """
        for kind in kinds:
            if kind not in self.kinds:
                raise InvalidInput("kind", f"is {kind!r}", f"use one of: {', '.join(self.kinds)}")
        return type(self)((kind, detector) for kind, detector in self._detectors if kind not in kinds)

    def find(self, text: str) -> list[Finding]:
        """What is in a text: in order, no two overlap.

        Of a span that overlaps an earlier detector's, the rest remains.
        """
        found: list[Finding] = []
        for kind, detector in self._detectors:
            for start, end in sorted(detector(text), key=lambda span: (span[0], -span[1])):
                for rest in uncovered(Finding(start, end, kind), found):
                    if any(map(str.isalnum, text[rest.start : rest.end])):
                        insort(found, rest)
        return found


def uncovered(finding: Finding, taken: Sequence[Finding]) -> list[Finding]:
    """What of a span is in no other.

    Args:
        finding: The span.
        taken: Others, in order; no two overlap.
    """
    rest: list[Finding] = []
    start = finding.start
    for at in range(bisect_right(taken, start, key=lambda other: other.end), len(taken)):
        other = taken[at]
        if other.start >= finding.end:
            break
        if start < other.start:
            rest.append(Finding(start, other.start, finding.kind))
        start = other.end
    if start < finding.end:
        rest.append(Finding(start, finding.end, finding.kind))
    return rest
