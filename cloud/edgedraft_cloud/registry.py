"""Keeps the live sessions: found by their id for outcomes, and by their resume token for devices that come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from edgedraft_cloud.engines.base import SessionId
from edgedraft_cloud.live import LiveSession, SessionHandle
from edgedraft_cloud.tenants import Tenant


class Registry:
    """All sessions from their first `Open` until nobody can come back to them."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, LiveSession] = {}
        self._tokens: dict[bytes, LiveSession] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._sessions.values()))

    @property
    def connected(self) -> int:
        """Sessions whose device is there."""
        return sum(live.handle is not None for live in self._sessions.values())

    def add(self, live: LiveSession) -> None:
        """Take in a session."""
        self._sessions[live.session.id] = live
        self._counts[live.tenant.name] += 1

    def remove(self, live: LiveSession) -> bool:
        """Drop a session; whether it was there."""
        if self._sessions.pop(live.session.id, None) is None:
            return False
        for token in (live.resume_token, live.former_token):
            self._tokens.pop(token, None)
        self._counts[live.tenant.name] -= 1
        if not self._counts[live.tenant.name]:
            del self._counts[live.tenant.name]
        return True

    def get(self, session: SessionId) -> LiveSession | None:
        """The session of an id."""
        return self._sessions.get(session)

    def resumable(self, token: bytes) -> LiveSession | None:
        """The session that a resume token stands for."""
        return self._tokens.get(token)

    def attach(self, live: LiveSession, handle: SessionHandle, token: bytes) -> None:
        """Let a new stream serve a session, under a new token.

        The one that it came with stays good until `heard`: the link may break before its device has the next.
        """
        former = token if self.resumable(token) is live else b""
        for spent in {live.resume_token, live.former_token} - {former}:
            self._tokens.pop(spent, None)
        live.former_token = former
        live.attach(handle)
        self._tokens[live.resume_token] = live

    def heard(self, live: LiveSession) -> None:
        """A frame came on the stream of a session: its device has the token, and the former one is spent."""
        self._tokens.pop(live.former_token, None)
        live.former_token = b""

    def count(self, tenant: str) -> int:
        """Sessions of a tenant."""
        return self._counts[tenant]

    def longest_away(self, tenant: str) -> LiveSession | None:
        """The session of a tenant whose device has been away longest."""
        away = [live for live in self._sessions.values() if live.tenant.name == tenant and live.is_away]
        return min(away, key=lambda live: live.detached_at, default=None)

    def most_in_the_way(self, tenant: Tenant) -> LiveSession | None:
        """Of the tenants with more sessions for their weight than this one would have: of the fullest, one away."""

        def fullness(other: Tenant, more: int = 0) -> float:
            return (self._counts[other.name] + more) / other.weight

        least = fullness(tenant, more=1)
        away = [live for live in self._sessions.values() if live.is_away and fullness(live.tenant) > least]
        return min(away, key=lambda live: (-fullness(live.tenant), live.detached_at), default=None)
