"""The steady pace: one frame leaves at each beat, an empty one where there is nothing to say."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from edgedraft.errors import Cancelled, EdgedraftError, LeakError
from edgedraft.report import Traffic
from edgedraft.wire import Beat, span_end
from edgedraft.wire import verify_pb2 as pb

GRACE_BEATS: Final = 40
"""How long a device beats on behind the end of a span for a verifier that does not end the stream."""

HeldBack = Sequence[tuple[int, int]]
"""Position and token of each token that stays on the device in place of a placeholder in the frame."""


@dataclass(slots=True)
class _Waiting:
    """A frame that waits for its beat."""

    frame: pb.ClientFrame
    held: HeldBack
    since: float
    sent: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, error: EdgedraftError | None = None) -> None:
        """Tell who sent it how that went, if it still waits."""
        if self.sent.done():
            return
        if error is None:
            self.sent.set_result(None)
        else:
            self.sent.set_exception(error)


class Pacer:
    """Beats from the moment it is made until it is stopped, a frame cannot be sent, or a span ends after `leave`.

    Args:
        let_out: Sends a frame.
        beat: When.
        span_beats: See `span_end`.
        traffic: Told how long frames wait.
        clock: Seconds.
    """

    def __init__(
        self,
        let_out: Callable[[pb.ClientFrame, HeldBack], Awaitable[None]],
        beat: Beat,
        span_beats: int,
        traffic: Traffic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._let_out = let_out
        self._beat = beat
        self._span_beats = span_beats
        self._traffic = traffic
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._leaving = False
        self._broken: EdgedraftError = Cancelled("the stream is closed")
        self._task = asyncio.create_task(self._run(), name="edgedraft-pace")

    @property
    def is_over(self) -> bool:
        """Whether no more beats follow."""
        return self._task.done()

    async def send(self, frame: pb.ClientFrame, held: HeldBack) -> None:
        """Send a frame at the next free beat; if the waiting is cancelled before that, it does not leave.

        Raises:
            EdgedraftError: What `let_out` raised for it, or for a frame before it after which nothing can leave.
        """
        if self.is_over:
            raise self._broken
        waiting = _Waiting(frame, held, self._clock())
        self._waiting.append(waiting)
        await waiting.sent

    def leave(self) -> None:
        """Beat on to the end of the span, and a little longer for a verifier that has not ended the stream by then."""
        self._leaving = True

    async def ended(self) -> None:
        """Wait until no more beats follow."""
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        """End it at once."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._keep_beating()
        except EdgedraftError as error:
            self._broken = error
        finally:
            for waiting in self._waiting:
                waiting.settle(self._broken)

    async def _keep_beating(self) -> None:
        last: int | None = None
        while True:
            number = await self._beat.next()
            if self._leaving and last is None:
                last = span_end(number, self._span_beats) + GRACE_BEATS
            if last is not None and number >= last:
                return
            while self._waiting and self._waiting[0].sent.done():
                self._waiting.popleft()  # it has left, or who wanted to send it is gone
            if not self._waiting:
                await self._let_out(pb.ClientFrame(), ())
                continue
            waiting = self._waiting[0]
            self._traffic.delay_seconds += self._clock() - waiting.since
            try:
                await self._let_out(waiting.frame, waiting.held)
            except LeakError as error:
                waiting.settle(error)  # this frame alone must not leave
            else:
                waiting.settle()
