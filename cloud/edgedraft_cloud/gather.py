"""When the next step begins: at once, or a moment later, so that drafts that are nearly there go in it too.

A step that begins just before a session's drafts arrive settles one token for it where it could have settled several.
Waiting costs what the engine could have settled meanwhile. So it waits while what is expected is worth more than that
(the rule of `StepTimes.row_price`, with time in place of rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from edgedraft_cloud.engines.base import SessionId
from edgedraft_cloud.habits import LATE
from edgedraft_cloud.planner import Planner
from edgedraft_cloud.session import Session, State
from edgedraft_cloud.step_times import StepTimes

MOMENT: Final = 0.001
"""Seconds within which frames count as of one moment."""
PATIENCE: Final = 0.5
"""Part of the shortest step that may be spent waiting, whatever is expected."""
COURTESY: Final = 0.2
"""The same where drafts of others are there: it delays their verdicts."""


class Gathering:
    """Whom the next step waits for.

    Args:
        times: How long steps take, and what they are good for.
        planner: Knows what waits for the next one.
    """

    def __init__(self, times: StepTimes, planner: Planner) -> None:
        self._times = times
        self._planner = planner
        self._sessions: dict[SessionId, Session] = {}
        self._awaited: set[SessionId] = set()
        self._since = 0.0

    def ended(self, sessions: Iterable[Session], now: float) -> float:
        """A step has ended.

        Args:
            sessions: Those that were in it.
            now: The time.

        Returns:
            Seconds until the next one should begin, 0 where there is nobody to wait for.
        """
        self._begin(now)
        self._sessions |= {session.id: session for session in sessions}
        return self._decide(now)

    def changed(self, session: Session, now: float) -> float | None:
        """Something happened to a session between two steps.

        Args:
            session: Which.
            now: The time.

        Returns:
            Seconds until the next step should begin; None: when it was to begin anyway.
        """
        self._begin(now)
        self._sessions[session.id] = session
        self._awaited.discard(session.id)
        return None if self._awaited else max(MOMENT, self._decide(now))

    def begun(self) -> None:
        """The next step has begun."""
        self._sessions.clear()
        self._awaited.clear()

    def _begin(self, now: float) -> None:
        """The last step has ended; one that only read prompts while others are waited for does not count."""
        if not self._sessions:
            self._since = now

    def _decide(self, now: float) -> float:
        """Wait for those frames that settle most more than the engine would meanwhile; how long at most."""
        line = self._times.roofline
        self._awaited = set()
        if line is None or self._planner.is_full:
            return 0.0
        until = self._since + line.base * (COURTESY if self._planner.drafts_wait else PATIENCE)
        sessions = [session for session in self._sessions.values() if session.state is State.PARKED]
        expected = sorted(
            (due, worth, session.id)
            for session in sessions
            for due, worth in self._expected(session, now)
            if due <= until
        )
        total = best = wait = 0.0
        for index, (due, worth, _) in enumerate(expected):
            total += worth
            if (net := total - self._times.rate * (due - now)) > best:
                best, wait = net, due - now
                self._awaited = {session for *_, session in expected[: index + 1]}
        return max(0.0, min(LATE * wait, until - now))

    def _expected(self, session: Session, now: float) -> Iterator[tuple[float, float]]:
        """When a session's next frames are due, and how many tokens they settle beyond what their rows' time would.

        The n-th draft settles a token with probability αⁿ.
        """
        price, alpha = self._times.row_price, session.habits.acceptance
        place = session.tree.pending + 1
        for frame in session.habits.expected(now):
            end = place + round(frame.tokens)
            yield frame.seconds, sum(max(0.0, alpha**each - price) for each in range(place, end))
            place = end
