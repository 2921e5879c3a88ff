"""What a session's past says of its next drafts: how many are likely to be right, and when they will be there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_PRIOR_RIGHT: Final = 6.0
_PRIOR_WRONG: Final = 2.0
_MEMORY: Final = 0.95
"""Weight of all verdicts before one more."""
_NEW: Final = 0.25
"""Weight of one more frame among those before."""
LATE: Final = 1.5
"""A frame that takes so many times what frames take on average is expected no more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Draft tokens that come together.

    Attributes:
        seconds: How long they take; as they are expected: when they will be there.
        tokens: How many they are.
    """

    seconds: float
    tokens: float


class Habits:
    """Learnt from one session's verdicts and drafts; pure, with the time passed in."""

    def __init__(self) -> None:
        self._right = _PRIOR_RIGHT
        self._wrong = _PRIOR_WRONG
        self._first: Frame | None = None  # after a verdict that left no drafts
        self._next: Frame | None = None
        self._since: float | None = None  # when the last frame came, or the verdict before the first
        self._frames = 0

    @property
    def acceptance(self) -> float:
        """The estimated probability α that a draft token is right where those before it were; within (0, 1)."""
        return self._right / (self._right + self._wrong)

    @property
    def back(self) -> float:
        """Seconds from a verdict that left no drafts until the next ones come; 0 where that is not known yet."""
        return self._first.seconds if self._first is not None else 0.0

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
        if self._since is None or self._frames:
            self._since, self._frames = now, 0

    def came(self, tokens: int, now: float) -> None:
        """Draft tokens came together that can be verified."""
        if self._since is None:
            return
        frame = Frame(now - self._since, tokens)
        if self._frames:
            self._next = _mean(self._next, frame)
        else:
            self._first = _mean(self._first, frame)
        self._since = now
        self._frames += 1

    def taken(self) -> None:
        """Its drafts went into a step, or it decodes; with what comes meanwhile there is no telling how fast it is."""
        if self._frames:
            self._since, self._frames = None, 0

    def expected(self, now: float) -> list[Frame]:
        """The frames that should come next, if no step begins: none where there is no telling, or the next is late."""
        frames = [self._next] if self._frames else [self._first, self._next]
        if self._since is None or frames[0] is None or now > self._since + LATE * frames[0].seconds:
            return []
        due, found = self._since, []
        for frame in frames:
            if frame is not None:
                due = max(now, due + frame.seconds)
                found.append(Frame(due, frame.tokens))
        return found


def _mean(known: Frame | None, new: Frame) -> Frame:
    if known is None:
        return new
    seconds, tokens = (
        (1 - _NEW) * old + _NEW * now for old, now in ((known.seconds, new.seconds), (known.tokens, new.tokens))
    )
    return Frame(seconds, tokens)
