"""Time that passes only when a test says so."""

import asyncio
import heapq
import itertools
from functools import partial

from devices import turns

from edgedraft.wire import Beat


class FakeTime:
    """A clock and a sleep that go together; `beat` makes beats of them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waking = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), waking))
        await waking

    @property
    def beat(self) -> partial[Beat]:
        return partial(Beat, clock=self.clock, sleep=self.sleep)

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that happens meanwhile."""
        end = self.now + seconds
        await turns()
        while self._sleepers and self._sleepers[0][0] <= end + 1e-9:
            self.now, _, waking = heapq.heappop(self._sleepers)
            if not waking.done():
                waking.set_result(None)
            await turns()
        self.now = end
