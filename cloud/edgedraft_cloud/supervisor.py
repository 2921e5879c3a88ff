"""The engine's life: starts it, measures its steps, starts it again when it died, and gives up in the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from edgedraft.errors import VerifierUnavailable
from edgedraft_cloud.engines.base import Engine
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.step_times import StepTimes, measure

logger = logging.getLogger(__name__)

MOST_RESTARTS: Final = 3
RESTART_WINDOW: Final = 600.0
"""An engine that dies more often than that within so many seconds is given up."""


class Supervisor:
    """One engine's life.

    Args:
        engine: Not started.
        metrics: Told about readiness and restarts.
        times: To be filled by measuring at each start; None: they are known.

    Attributes:
        ready: Whether the engine takes works.
        fatal: Why it was given up, or None.
    """

    def __init__(self, engine: Engine, metrics: Metrics, times: StepTimes | None) -> None:
        self._engine = engine
        self._metrics = metrics
        self._times = times
        self._deaths: deque[float] = deque(maxlen=MOST_RESTARTS + 1)
        self._changed = asyncio.Event()
        self.ready = False
        self.fatal: VerifierUnavailable | None = None

    async def start(self) -> None:
        """Start the engine.

        Raises:
            ModelError: The target cannot be loaded.
        """
        await self._engine.start()
        if self._times is not None:
            await measure(self._engine, self._times)
            logger.info("step times measured", extra={"room": self._times.room})
        self._set_ready(True)

    def lost(self, error: VerifierUnavailable) -> None:
        """The engine died."""
        logger.error("engine died", exc_info=error.__cause__ or error)
        self._set_ready(False)

    async def restart(self) -> None:
        """Start a dead engine again, or set `fatal`."""
        now = time.monotonic()
        self._deaths.append(now)
        if len(self._deaths) > MOST_RESTARTS and now - self._deaths[0] < RESTART_WINDOW:
            self._give_up(VerifierUnavailable("the engine died again and again; its log says why"))
            return
        try:
            await self._engine.close()
            await self.start()
        except Exception as error:  # noqa: BLE001  whatever it is, nobody may wait for an engine that does not come
            death = VerifierUnavailable("the engine could not be started again; its log says why")
            death.__cause__ = error
            self._give_up(death)
            return
        self._metrics.engine_restarted()
        logger.info("engine restarted")

    async def readiness(self) -> AsyncGenerator[bool, None]:
        """Whether the engine is ready, now and at each change; it ends when the engine is given up."""
        last: bool | None = None
        while True:
            self._changed.clear()
            if self.ready is not last:
                last = self.ready
                yield last
            elif self.fatal is not None:
                return
            else:
                await self._changed.wait()

    async def close(self) -> None:
        """Stop the engine."""
        self.ready = False
        await self._engine.close()

    def _give_up(self, error: VerifierUnavailable) -> None:
        logger.error("engine given up", exc_info=error.__cause__ or error)
        self.fatal = error
        self._changed.set()

    def _set_ready(self, ready: bool) -> None:
        self.ready = ready
        self._metrics.ready(ready)
        self._changed.set()
