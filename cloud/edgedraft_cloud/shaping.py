"""The server's way out of one stream: frames in the sizes, and at the beat, that its device has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from edgedraft.wire import Beat, BeatMaker, pad, span_end
from edgedraft.wire import verify_pb2 as pb


class Outlet:
    """Sends the frames of one stream.

    Args:
        shaping: What the device has asked for, checked.
        write: Sends bytes.
        beat: Starts the beat of a pace.
    """

    def __init__(self, shaping: pb.Shaping, write: Callable[[bytes], Awaitable[None]], beat: BeatMaker = Beat) -> None:
        self._shaping = shaping
        self._write = write
        self._beat = beat(shaping.beat_ms / 1000) if shaping.beat_ms else None

    async def send(self, frames: AsyncGenerator[pb.ServerFrame, None]) -> None:
        """Send all frames, the first one at once; with a pace, an empty one at each beat that finds none."""
        if self._beat is None:
            async for frame in frames:
                await self._send(frame)
            return
        upcoming = asyncio.ensure_future(anext(frames, None))
        try:
            await asyncio.wait([upcoming])
            while True:
                frame = pb.ServerFrame()
                if upcoming.done():
                    last = upcoming.result()
                    if last is None:
                        return
                    frame, upcoming = last, asyncio.ensure_future(anext(frames, None))
                await self._send(frame)
                await self._beat.next()
        finally:
            upcoming.cancel()
            await asyncio.wait([upcoming])

    async def fill(self) -> None:
        """Send empty frames until the span ends in which the last frame was sent."""
        if self._beat is None:
            return
        end = span_end(self._beat.number, self._shaping.span_beats)
        while await self._beat.next() < end:
            await self._send(pb.ServerFrame())

    async def _send(self, frame: pb.ServerFrame) -> None:
        pad(frame, self._shaping.sizes)
        await self._write(frame.SerializeToString())
