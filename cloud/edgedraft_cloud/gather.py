"""When the next step begins: at once, or a moment later, so that drafts that are nearly there go in it too.

A step that begins just before a session's drafts arrive settles one token for it where it could have settled several.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edgedraft_cloud.engines.base import SessionId
from edgedraft_cloud.session import Session, State
from edgedraft_cloud.step_times import StepTimes

MOMENT: Final = 0.001
"""Seconds within which frames count as of one moment."""
PATIENCE: Final = 0.15
"""Part of the shortest step that may be spent waiting: an eighth of the steps' rate at most, for a draft or more in
each."""


class Gathering:
    """Whom the next step waits for.

    Args:
        times: How long steps take.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._awaited: set[SessionId] = set()

    def ended(self, sessions: Iterable[Session], now: float) -> float:
        """A step has ended.

        Args:
            sessions: Those that were in it.
            now: The time.

        Returns:
            Seconds until the next one should begin, 0 where there is nobody to wait for.
        """
        line = self._times.roofline
        patience = PATIENCE * line.base if line is not None else 0.0
        self._awaited = {
            session.id for session in sessions if _rests(session) and session.habits.returns_within(patience, now)
        }
        return patience if self._awaited else 0.0

    def changed(self, session: Session) -> float | None:
        """Something happened to a session between two steps.

        Returns:
            Seconds until the next step should begin; None: when it was to begin anyway.
        """
        if not self._awaited:
            return MOMENT
        if not _rests(session):
            self._awaited.discard(session.id)
        return None if self._awaited else MOMENT

    def begun(self) -> None:
        """The next step has begun."""
        self._awaited.clear()


def _rests(session: Session) -> bool:
    """Whether it could be in the next step and has no drafts for it."""
    return session.state is State.PARKED and not session.has_drafts
