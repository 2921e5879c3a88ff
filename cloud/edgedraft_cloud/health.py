"""gRPC's health service; grpc_health's own writes to its watchers under a lock, so that one of them can stop all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEVICE_WATCHES: Final = 16
"""Watches that one certificate may have open."""
WRITE_SECONDS: Final = 30.0
"""How long a watcher may leave a status that it has no room for; beyond that its watch ends."""
SAN_KEY: Final = "x509_subject_alternative_name"

Context = Any  # grpc.aio.ServicerContext is generic in ways that its own stubs leave open
Status = int  # a `health_pb2.HealthCheckResponse.ServingStatus`


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it comes without types
    """One status for all names; not serving at first.

    Args:
        names: Services that there are.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._status: Status = health_pb2.HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()
        self._watches: Counter[tuple[bytes, ...]] = Counter()

    def serving(self, serving: bool) -> None:
        """Change the status; nobody is waited for."""
        kinds = health_pb2.HealthCheckResponse
        self._status = kinds.SERVING if serving else kinds.NOT_SERVING
        # A new event for what comes next: who waits for this one reads the status when its turn comes.
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The status now."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this service is not here")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The status now and at each change; who is slow misses those in between."""
        # Not the device: a probe's certificate may name none.
        watcher = tuple(context.auth_context().get(SAN_KEY, ()))
        if self._watches[watcher] >= DEVICE_WATCHES:
            problem = f"{DEVICE_WATCHES} watches of this certificate are open; end one"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
        self._watches[watcher] += 1
        try:
            await self._tell(request.service in self._names, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"no status was taken for {WRITE_SECONDS:g} s")
        finally:
            self._watches[watcher] -= 1
            if not self._watches[watcher]:
                del self._watches[watcher]

    async def _tell(self, known: bool, context: Context) -> None:
        last: Status | None = None
        while True:
            changed = self._changed
            status = self._status if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != last:
                last = status
                async with asyncio.timeout(WRITE_SECONDS):
                    await context.write(health_pb2.HealthCheckResponse(status=status))
            await changed.wait()
