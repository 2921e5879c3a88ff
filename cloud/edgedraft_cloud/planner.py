"""Which sessions go into the next step, and how much each may have in flight: pure, with the time passed in.

Drafts go first, in the order of the fair queue; what room they leave is filled with sessions that can decode by
themselves. So a full house spends every step on drafts, and an empty one never stands still. Drafts that come
to nothing go before nobody: their sessions and those that decode take turns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from edgedraft_cloud.engines.base import SessionId, Work
from edgedraft_cloud.fair_queue import FairQueue
from edgedraft_cloud.session import Session
from edgedraft_cloud.step_times import StepTimes
from edgedraft_cloud.tenants import Tenant, TokenBucket

QUEUE_SHARE: Final = 1.0
"""How long drafts may wait for their step, in steps: windows shrink so that not more of them pile up."""
ROWS_A_TOKEN: Final = 4
"""Rows for which a session is charged a token at least: three wrong drafts of four are within what honest ones need."""
REREAD_ROWS: Final = 32
"""Rows for which a session is charged that is opened again: a page of the KV cache at most is read another time."""
READ_A_TOKEN: Final = 32
"""Prompt tokens for which a session is charged a token: they are read many at a time, as fast as arithmetic goes."""
LEAST_ACCEPTANCE: Final = 0.1
"""Drafts that are right less often than that settle no more than decoding would, for more rows."""
_DRAFTING: Final = 0
_DECODING: Final = 1
_BACKGROUND: Final = 1


@dataclass(slots=True)
class _Member:
    session: Session
    tenant: Tenant
    charged: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a planned step.

    Attributes:
        work: What the engine is to do.
        waited: Seconds that its drafts waited for this step.
    """

    work: Work
    waited: float


class Planner:
    """Keeps which sessions wait for a step.

    Args:
        times: Says how many rows a step should have.
        max_window: The largest window that is granted.
    """

    def __init__(self, times: StepTimes, max_window: int) -> None:
        self._times = times
        self._max_window = max_window
        self._queue = FairQueue(lanes=2)
        self._members: dict[SessionId, _Member] = {}
        self._buckets: dict[str, TokenBucket | None] = {}
        self._weights: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._rows_each = 2.0  # of a session that drafts, in the last step

    @property
    def drafts_wait(self) -> bool:
        """Whether there are drafts for the next step."""
        return self._queue.waiting(_DRAFTING) > 0

    @property
    def is_full(self) -> bool:
        """Whether there are drafts for all of the next step, going by what each session had in the last one."""
        return self._queue.waiting(_DRAFTING) * self._rows_each >= self._times.room

    def join(self, session: Session, tenant: Tenant, *, background: bool) -> None:
        """Make a session known; one that is may join again."""
        self._members.setdefault(session.id, _Member(session, tenant))
        self._queue.join(session.id, tenant.name, tenant.weight, _BACKGROUND if background else 0)

    def leave(self, session: SessionId) -> None:
        """Forget a session."""
        self._members.pop(session, None)
        self._queue.leave(session)

    def pause(self, session: SessionId) -> None:
        """Plan no step for a session until its next `update`."""
        self._queue.discard(session)

    def update(self, session: SessionId) -> None:
        """Something changed for a session: let it wait for a step if it has something to do."""
        state = self._members[session].session
        if state.has_drafts:
            self._queue.put(session, _DRAFTING)
        elif state.may_decode:
            self._queue.put(session, _DECODING)
        else:
            self._queue.discard(session)

    def window(self, tenant: Tenant, session: Session) -> int:
        """Unverified tokens that a session of a tenant may have in flight now.

        No more than steps will take of it until it can answer a verdict: what it drafts beyond is not likely to be
        right, and costs its battery. And tenants share what the coming steps hold, `1 + QUEUE_SHARE` of them, by
        weight; so do the sessions of each that draft. What a tenant cannot use, since its sessions have the largest
        window already, is the others'.
        """
        share = self._shares.get(tenant.name)
        if share is None:  # it has not drafted yet
            total = tenant.weight + sum(self._weights.values())
            share = self._times.room * (1 + QUEUE_SHARE) * tenant.weight / total
        return max(1, min(self._max_window, int(share), self._use(session)))

    def plan(self, now: float) -> list[Part]:
        """The next step; empty where nobody has anything to do, or those who have are over their rate."""
        room = self._times.room
        parts = list(self._fill(_DRAFTING, room, now))
        drafting = [part for part in parts if part.work.tokens]
        self._share(Counter(self._members[part.work.session].tenant.name for part in drafting))
        rows = sum(len(part.work.tokens) + 1 for part in drafting)
        self._rows_each = rows / len(drafting) if drafting else self._rows_each
        room -= rows + len(parts) - len(drafting)
        # Drafts that still wait have no room, or are over their rate; only the latter leave some to others.
        if room > 1 or not self._queue.waiting(_DRAFTING):
            parts += self._fill(_DECODING, room, now)
        return parts

    def settle(self, session: SessionId, tokens: int, rows: int, now: float) -> None:
        """Count what a step settled for a session.

        Args:
            session: Whose; unknown ones are ignored.
            tokens: Settled tokens.
            rows: What it had of the step.
            now: The time.
        """
        member = self._members.get(session)
        if member is None:
            return
        # A fair share is one of verified tokens; but who drafts next to nothing right must not get the house for it.
        self._queue.charge(session, max(tokens, rows / ROWS_A_TOKEN) - member.charged)
        member.charged = 0
        self.meter(member.tenant, tokens, now)

    def read(self, session: SessionId, tokens: int) -> None:
        """Count that the engine reads the text of a session, of so many tokens."""
        self._queue.charge(session, tokens / READ_A_TOKEN)

    def reread(self, session: SessionId, tokens: int, now: float) -> None:
        """Count that a session is opened again, since its device has decided tokens anew.

        Args:
            session: Whose.
            tokens: How many it has decided.
            now: The time.
        """
        member = self._members[session]
        member.charged = 0  # what was under way for it counts, though nothing comes of it
        self._queue.charge(session, tokens + REREAD_ROWS / ROWS_A_TOKEN)
        self.meter(member.tenant, tokens, now)

    # ------------------------------------------------------------ rates

    def meter(self, tenant: Tenant, tokens: int, now: float) -> None:
        """Take tokens, read or settled, out of a tenant's rate."""
        bucket = self._bucket(tenant)
        if bucket is not None:
            bucket.take(tokens, now)

    def put_back(self, tenant: Tenant, tokens: int) -> None:
        """Give back to a tenant's rate what was metered and not read."""
        bucket = self._bucket(tenant)
        if bucket is not None:
            bucket.put_back(tokens)

    def over_rate(self, tenant: Tenant, now: float) -> float:
        """Seconds until a tenant is within its rate; 0 where it is."""
        bucket = self._bucket(tenant)
        return 0.0 if bucket is None else bucket.wait(now)

    def next_refill(self, now: float) -> float | None:
        """Seconds until a tenant that is over its rate may go on; None where none is."""
        waits = [wait for bucket in self._buckets.values() if bucket is not None and (wait := bucket.wait(now)) > 0]
        return min(waits, default=None)

    # ------------------------------------------------------------ inside

    def _bucket(self, tenant: Tenant) -> TokenBucket | None:
        if tenant.name not in self._buckets:
            self._buckets[tenant.name] = tenant.bucket()
        return self._buckets[tenant.name]

    def _share(self, drafting: Counter[str]) -> None:
        """Divide what the coming steps hold among the tenants that draft.

        Args:
            drafting: Sessions of each in the step that was planned; those that still wait come on top.
        """
        drafting.update(self._queue.waiting_by_tenant(_DRAFTING))
        self._weights = {name: self._queue.weight(name) for name in drafting}
        left, weights = self._times.room * (1 + QUEUE_SHARE), sum(self._weights.values())
        self._shares = {}
        # Those first that can use least, so that what they leave is divided among the rest.
        for name in sorted(drafting, key=lambda name: drafting[name] / self._weights[name]):
            share = min(self._max_window * drafting[name], left * self._weights[name] / weights)
            self._shares[name] = share / drafting[name]
            left -= share
            weights -= self._weights[name]

    def _worth(self, session: Session) -> int:
        """Draft tokens of a session that are worth their rows: the n-th settles a token with probability αⁿ."""
        price = self._times.row_price
        if price <= 0:
            return self._max_window
        return max(1, int(math.log(min(price, 1.0)) / math.log(session.habits.acceptance)))

    def _use(self, session: Session) -> int:
        """Drafts of a session that steps will take: those of the one under way, of the next, and of any until then."""
        line = self._times.roofline
        if session.limits.may_give or line is None:
            return self._max_window  # given tokens are worth their rows in any case
        return math.ceil((self._worth(session) + 1) * (2 + session.habits.back / line.base))

    def _fill(self, lane: int, room: int, now: float) -> Iterable[Part]:
        """Take sessions from a lane while there is room for one; drafts need two rows at least."""

        def may(tenant: str) -> bool:
            bucket = self._buckets.get(tenant)
            return bucket is None or bucket.wait(now) <= 0

        least = 2 if lane == _DRAFTING else 1
        while room >= least and (name := self._queue.take(self._turn(lane, may), may)) is not None:
            member = self._members[name]
            work = member.session.next_work(room, self._worth(member.session))
            rows = len(work.tokens) + 1
            room -= rows
            # An estimate, so that others come to their turn in this very step; `settle` sets it right.
            member.charged = rows
            self._queue.charge(name, rows)
            yield Part(work, member.session.waited(now))

    def _turn(self, lane: int, may: Callable[[str], bool]) -> int:
        """The lane that is served next where a lane is: not that of drafts that come to nothing, before its turn."""
        first = self._queue.peek(lane, may) if lane == _DRAFTING else None
        if first is None or self._members[first].session.habits.acceptance >= LEAST_ACCEPTANCE:
            return lane
        other = self._queue.peek(_DECODING, may)
        behind = other is not None and self._queue.clocks(other) <= self._queue.clocks(first)
        return _DECODING if behind else lane
