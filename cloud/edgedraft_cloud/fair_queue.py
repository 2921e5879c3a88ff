"""A weighted fair queue over tenants, then over the sessions of each, in units of verified tokens: pure.

Start-time fair queueing (Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM 1996): everybody has a clock that
advances by what it was served over its weight, the one that is furthest behind goes next, and who comes back after a
pause starts at the time of those who stayed, so that nobody saves up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
_STALE: Final = 64
"""Entries that no longer hold and are put up with; more of them, and more than half of all, are cleared away."""


@dataclass(slots=True)
class _Clock:
    time: float = 0.0
    weight: float = 1.0


@dataclass(slots=True)
class _Time:
    """The time of whoever was served last, in any lane: one that comes from another lane has saved nothing up there."""

    now: float = 0.0


class _Ready(Generic[Key]):
    """Keys that wait, by rank and clock; entries that no longer hold are passed over when they come up."""

    def __init__(self, clocks: dict[Key, _Clock], time: _Time) -> None:
        self._clocks = clocks
        self._time = time
        self._waiting: dict[Key, tuple[int, float, int]] = {}
        self._heap: list[tuple[int, float, int, Key]] = []
        self._count = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Key, rank: int = 0) -> None:
        """Let a key wait; if it already does, with its clock and rank as they are now."""
        clock = self._clocks.setdefault(key, _Clock(self._time.now))
        if key not in self._waiting:
            clock.time = max(clock.time, self._time.now)
        self._count += 1
        self._push(key, (rank, clock.time, self._count))

    def first(self, may: Callable[[Key], bool] = lambda _: True, *, served: bool = True) -> Key | None:
        """The key that is next among those that may; it goes on waiting. Those that may not save nothing up by it.

        Args:
            may: Which may go.
            served: Whether that one goes now, so that time goes on.
        """
        passed: list[tuple[int, int, Key]] = []
        found = None
        while self._heap:
            rank, time, count, key = heapq.heappop(self._heap)
            if self._waiting.get(key) != (rank, time, count):
                continue
            if may(key):
                found = key
                if served:
                    self._time.now = max(self._time.now, time)
                self._push(key, (rank, time, count))
                break
            passed.append((rank, count, key))
        for rank, count, key in passed:
            clock = self._clocks[key]
            clock.time = max(clock.time, self._time.now)
            self._push(key, (rank, clock.time, count))
        return found

    def discard(self, key: Key) -> None:
        """Let a key wait no longer."""
        self._waiting.pop(key, None)

    def _push(self, key: Key, entry: tuple[int, float, int]) -> None:
        self._waiting[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        if len(self._heap) > _STALE + 2 * len(self._waiting):
            self._heap = [(*entry, key) for key, entry in self._waiting.items()]
            heapq.heapify(self._heap)


class _Room:
    """The sessions of one tenant."""

    def __init__(self, lanes: int) -> None:
        self.clocks: dict[str, _Clock] = {}
        time = _Time()
        self.lanes = [_Ready(self.clocks, time) for _ in range(lanes)]
        self.ranks: dict[str, int] = {}


class FairQueue:
    """Sessions that wait for their turn, in lanes that share what each was served.

    A session is known from `join` to `leave` and waits in a lane between `put` and `take` or `discard`.

    Args:
        lanes: How many; a session waits in one at a time.
    """

    def __init__(self, lanes: int = 1) -> None:
        self._clocks: dict[str, _Clock] = {}
        time = _Time()
        self._tenants = [_Ready(self._clocks, time) for _ in range(lanes)]
        self._of: dict[str, str] = {}
        self._rooms: dict[str, _Room] = {}

    def waiting(self, lane: int = 0) -> int:
        """How many sessions wait in a lane."""
        return sum(len(room.lanes[lane]) for room in self._rooms.values())

    def waiting_by_tenant(self, lane: int = 0) -> dict[str, int]:
        """How many sessions of each tenant that has any wait in a lane."""
        return {tenant: count for tenant, room in self._rooms.items() if (count := len(room.lanes[lane]))}

    def weight(self, tenant: str) -> float:
        """The share of a tenant that has joined."""
        return self._clocks[tenant].weight

    def join(self, session: str, tenant: str, weight: float, rank: int = 0) -> None:
        """Make a session known.

        Args:
            session: Its id.
            tenant: Whose it is.
            weight: The tenant's share of the engine, relative to others.
            rank: Sessions of a lower rank go first within their tenant.
        """
        room = self._rooms.get(tenant)
        if room is None:
            room = self._rooms[tenant] = _Room(len(self._tenants))
        room.ranks[session] = rank
        self._of[session] = tenant
        self._clocks.setdefault(tenant, _Clock()).weight = weight

    def leave(self, session: str) -> None:
        """Forget a session. Its tenant's clock stays, so that to leave and come back gains nothing."""
        tenant = self._of.get(session)
        if tenant is None:
            return
        self.discard(session)
        room = self._rooms[tenant]
        room.clocks.pop(session, None)
        del room.ranks[session], self._of[session]
        if not room.ranks:
            del self._rooms[tenant]

    def put(self, session: str, lane: int = 0) -> None:
        """Let a session that has joined wait for its turn in a lane, and in no other."""
        self.discard(session)
        tenant = self._of[session]
        room = self._rooms[tenant]
        room.lanes[lane].put(session, room.ranks[session])
        if tenant not in self._tenants[lane]:
            self._tenants[lane].put(tenant)

    def discard(self, session: str) -> None:
        """Let a session wait no longer."""
        tenant = self._of.get(session)
        if tenant is None:
            return
        for tenants, sessions in zip(self._tenants, self._rooms[tenant].lanes, strict=True):
            sessions.discard(session)
            if not len(sessions):
                tenants.discard(tenant)

    def take(self, lane: int = 0, may: Callable[[str], bool] = lambda _: True) -> str | None:
        """The session of a lane whose turn it is; it waits no longer.

        Args:
            lane: Which.
            may: Whether a tenant may go now.
        """
        session = self._first(lane, may, served=True)
        if session is not None:
            self.discard(session)
        return session

    def peek(self, lane: int = 0, may: Callable[[str], bool] = lambda _: True) -> str | None:
        """The session that `take` would take."""
        return self._first(lane, may, served=False)

    def clocks(self, session: str) -> tuple[float, float]:
        """What the tenant of a session that waits was served over its weight, and the session of that."""
        tenant = self._of[session]
        return self._clocks[tenant].time, self._rooms[tenant].clocks[session].time

    def charge(self, session: str, tokens: float) -> None:
        """Count what a session was served, or with a negative number what it was charged too much."""
        tenant = self._of.get(session)
        if tenant is None:
            return
        clock, own = self._clocks[tenant], self._rooms[tenant].clocks.get(session)
        clock.time += tokens / clock.weight
        if own is not None:
            own.time += tokens
        for tenants in self._tenants:
            if tenant in tenants:
                tenants.put(tenant)

    def _first(self, lane: int, may: Callable[[str], bool], *, served: bool) -> str | None:
        tenant = self._tenants[lane].first(may, served=served)
        if tenant is None:
            return None
        session = self._rooms[tenant].lanes[lane].first(served=served)
        assert session is not None  # a tenant waits only while one of its sessions does
        return session
