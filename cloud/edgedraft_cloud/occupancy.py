"""Which sessions the engine holds: taken in, opened again where the device has decided anew, and let go."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from edgedraft.errors import EdgedraftError, VerifierUnavailable
from edgedraft_cloud.engines.base import Engine
from edgedraft_cloud.live import LiveSession
from edgedraft_cloud.planner import Planner

logger = logging.getLogger(__name__)

RETRY_AFTER: Final = 2.0
"""Seconds after which a refused device should try again."""
RESTART_AFTER: Final = 5.0
"""The same where the engine is being started again."""


class Occupancy:
    """The sessions in one engine.

    Args:
        engine: Holds them.
        planner: Plans their steps meanwhile.
    """

    def __init__(self, engine: Engine, planner: Planner) -> None:
        self._engine = engine
        self._planner = planner
        self._beginning: dict[LiveSession, asyncio.Task[None]] = {}

    async def enter(self, live: LiveSession) -> None:
        """Open a session in the engine, unless nothing is left to settle; one that it holds begins again.

        Raises:
            Overloaded: The engine has no room for it.
            VerifierUnavailable: The engine died.
        """
        session = live.session
        if not session.needs_engine:
            return
        held, text = live.in_engine, session.text
        if held:
            live.part = None
            self._engine.release(session.id)
        live.in_engine = True
        self._planner.join(session, live.tenant, background=live.background)
        if session.unread:
            self._planner.reread(session.id, session.unread, time.monotonic())
            session.unread = 0
        try:
            await self._engine.open(session.id, text, live.next_sampling(), live.tenant.name)
        except BaseException:
            # The device may have left meanwhile, and the engine may have taken the session already.
            self.leave(live)
            if live.handle is not None:
                # Its stream, or a further one that has come in the meantime, has counted on this opening.
                live.handle.fail(VerifierUnavailable("the session could not be taken up; try again", RETRY_AFTER))
            raise
        if not live.in_engine:
            raise VerifierUnavailable("the verifier's engine died; try again in a moment", RESTART_AFTER)
        if not held:
            self._planner.read(session.id, len(text))

    def begin_again(self, live: LiveSession) -> None:
        """Let a session whose text is not the engine's any more enter anew, once its tenant's rate allows."""
        self._planner.pause(live.session.id)
        if live not in self._beginning:
            task = asyncio.create_task(self._begin_again(live), name="edgedraft-begin-again")
            self._beginning[live] = task

    def leave(self, live: LiveSession) -> None:
        """Let a session go, if the engine holds it."""
        if live.in_engine:
            live.in_engine = False
            self._engine.release(live.session.id)
        self._planner.leave(live.session.id)
        live.part = None

    async def close(self) -> None:
        """Begin nothing any more."""
        tasks = list(self._beginning.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _begin_again(self, live: LiveSession) -> None:
        try:
            while _waits(live):
                wait = self._planner.over_rate(live.tenant, time.monotonic())
                if wait > 0:
                    await asyncio.sleep(wait)
                else:
                    await self.enter(live)
        except EdgedraftError:
            logger.info("session lost", extra={"session": live.session.id})  # its stream was told
        except Exception as error:  # its stream was told that it is lost; this is why
            logger.error("session could not begin again", exc_info=error, extra={"session": live.session.id})
        finally:
            del self._beginning[live]


def _waits(live: LiveSession) -> bool:
    """Whether a session is to begin again now; one whose device is away does so when that comes back."""
    there = live.handle is not None and live.handle.is_open
    return there and live.session.needs_engine and live.session.unread > 0
