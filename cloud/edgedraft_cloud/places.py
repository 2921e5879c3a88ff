"""Whether there is a place for one more session, and who gives way to it."""

from __future__ import annotations

from edgedraft.errors import Overloaded
from edgedraft_cloud.live import LiveSession
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.occupancy import RETRY_AFTER
from edgedraft_cloud.planner import Planner
from edgedraft_cloud.registry import Registry
from edgedraft_cloud.tenants import Tenant


class Places:
    """The places of one verifier.

    Args:
        sessions: Who has one.
        planner: Keeps the tenants' rates.
        metrics: Counts whom there is no place for.
        most: How many there are.
    """

    def __init__(self, sessions: Registry, planner: Planner, metrics: Metrics, most: int) -> None:
        self._sessions = sessions
        self._planner = planner
        self._metrics = metrics
        self._most = most

    def place_for(self, tenant: Tenant, now: float) -> LiveSession | None:
        """Refuse a session that there is no place for; nothing is changed.

        Args:
            tenant: Whose.
            now: The time.

        Returns:
            The one that has to give way to it, if one has to: its device is away. A tenant's own before others'.

        Raises:
            Overloaded: There is no place, or the tenant is over its rate.
        """
        wait = self._planner.over_rate(tenant, now)
        if wait > 0:
            self._metrics.refused(tenant.name, "tenant_tokens")
            raise Overloaded(f"this tenant has used its {tenant.tokens_per_minute} tokens a minute", wait)
        own_full = self._sessions.count(tenant.name) >= tenant.max_sessions
        if len(self._sessions) < self._most and not own_full:
            return None
        away = self._sessions.longest_away(tenant.name)
        if away is None and not own_full:
            away = self._sessions.most_in_the_way(tenant)
        if away is not None:
            return away
        if own_full:
            self._metrics.refused(tenant.name, "tenant_sessions")
            raise Overloaded(f"all {tenant.max_sessions} sessions of this tenant are taken", RETRY_AFTER)
        self._metrics.refused(tenant.name, "sessions")
        raise Overloaded(f"all {self._most} sessions are taken", RETRY_AFTER)
