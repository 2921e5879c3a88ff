"""Takes an engine's steps until it dies, and learns of the faults of those who hand works over meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Never

from edgedraft.errors import VerifierUnavailable
from edgedraft_cloud.engines.base import Engine, Step


class StepLoop:
    """The steps of one engine.

    Args:
        engine: Started before each `run`.
        take: Called with each step.
        retry_after: Seconds after which a device should come back to an engine that was lost by a fault of ours.
    """

    def __init__(self, engine: Engine, take: Callable[[Step], None], retry_after: float) -> None:
        self._engine = engine
        self._take = take
        self._retry_after = retry_after
        self._steps: asyncio.Task[Never] | None = None
        self._fault: Exception | None = None

    async def run(self) -> VerifierUnavailable:
        """Take steps until the engine dies or something fails, for nobody may wait for steps that nobody takes; why."""
        this = asyncio.current_task()
        self._fault = None
        self._steps = asyncio.create_task(self._take_steps(), name="edgedraft-engine-steps")
        try:
            await self._steps
        except (Exception, asyncio.CancelledError) as error:
            fault = error if isinstance(error, Exception) else self._fault
            if fault is None or (this is not None and this.cancelling()):
                raise  # the verifier is being closed
            return self._death(fault)

    def guard(self, act: Callable[[], None]) -> None:
        """Act for a timer, which nobody waits for: a fault ends `run`."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  not swallowed, see above
            self._fault = error
            if self._steps is not None:
                self._steps.cancel()

    async def _take_steps(self) -> Never:
        while True:
            self._take(await self._engine.step())

    def _death(self, error: Exception) -> VerifierUnavailable:
        if isinstance(error, VerifierUnavailable):
            return error
        death = VerifierUnavailable("the verifier failed; try again in a moment", self._retry_after)
        death.__cause__ = error
        return death
