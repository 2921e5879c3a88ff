"""Fixed sizes and fixed times of frames, the same at both ends: sizes and times are known to give prompts away."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire import verify_pb2 as pb
from edgedraft.wire.method import MAX_FRAME_BYTES

MAX_SIZES: Final = 8
LEAST_SIZE: Final = 16
MOST_SIZE: Final = 16 * 1024
LEAST_BEAT_MS: Final = 10
MOST_BEAT_MS: Final = 10_000
MOST_BYTES_PER_SECOND: Final = 128 * 1024
"""Of empty frames; more would make a verifier's line the device's to fill."""
MOST_SPAN_BEATS: Final = 60_000
MOST_SPAN_MS: Final = 600_000


def pad(frame: pb.ClientFrame | pb.ServerFrame, sizes: Sequence[int]) -> None:
    """Bring a frame to the next of some sizes, or beyond the last of them to a multiple of it.

    Args:
        frame: Its `padding` is set.
        sizes: Bytes, ascending; empty leaves the frame as it is.
    """
    frame.ClearField("padding")
    if not sizes:
        return
    bare = frame.ByteSize()
    size = _fitting(bare, sizes)
    while size <= MAX_FRAME_BYTES:
        # The field's tag and length take two to four bytes. One or two alone cannot be filled: the next size, then.
        for head in (2, 3, 4):
            frame.padding = bytes(max(0, size - bare - head))
            if frame.ByteSize() == size:
                return
        size = _fitting(size + 1, sizes)
    frame.ClearField("padding")


def _fitting(least: int, sizes: Sequence[int]) -> int:
    for size in sizes:
        if size >= least:
            return size
    return -(-least // sizes[-1]) * sizes[-1]


def check_shaping(message: pb.Shaping) -> None:
    """Check what a device asks of the verifier.

    Raises:
        InvalidInput: Names the first field that is wrong.
    """
    field, sizes = "open.shaping", list(message.sizes)
    if len(sizes) > MAX_SIZES:
        raise InvalidInput(f"{field}.sizes", f"has {len(sizes)} entries, the limit is {MAX_SIZES}", "use fewer")
    if sizes != sorted(set(sizes)) or any(not LEAST_SIZE <= size <= MOST_SIZE for size in sizes):
        raise InvalidInput(f"{field}.sizes", f"are {sizes}", f"use {LEAST_SIZE} to {MOST_SIZE} bytes, ascending")
    if message.beat_ms:
        if not LEAST_BEAT_MS <= message.beat_ms <= MOST_BEAT_MS:
            raise InvalidInput(
                f"{field}.beat_ms", f"is {message.beat_ms}", f"use {LEAST_BEAT_MS} to {MOST_BEAT_MS}, or 0 (off)"
            )
        if not sizes:
            raise InvalidInput(f"{field}.sizes", "is empty beside a beat", "name the size of the frames")
        if sizes[0] * 1000 > MOST_BYTES_PER_SECOND * message.beat_ms:
            raise InvalidInput(
                f"{field}.sizes",
                f"make {sizes[0] * 1000 // message.beat_ms} bytes of empty frames a second",
                f"use smaller frames or a slower beat, for at most {MOST_BYTES_PER_SECOND}",
            )
    if message.span_beats > MOST_SPAN_BEATS:
        raise InvalidInput(
            f"{field}.span_beats", f"is {message.span_beats}, the limit is {MOST_SPAN_BEATS}", "lower it"
        )
    if message.span_beats * message.beat_ms > MOST_SPAN_MS:
        raise InvalidInput(
            f"{field}.span_beats",
            f"last {message.span_beats * message.beat_ms} ms, the limit is {MOST_SPAN_MS}",
            "use fewer, or a faster beat",
        )


def span_end(beat: int, span: int) -> int:
    """The first of 1, 2, 4, 8, ... times `span` beats that is not before `beat`; `beat` itself where `span` is 0."""
    if not span:
        return beat
    return span << max(0, math.ceil(beat / span) - 1).bit_length()


class Beat:
    """Moments at a fixed distance from each other; number 0 is the moment at which it is made.

    Args:
        seconds: The distance.
        clock: Seconds.
        sleep: Waits so many seconds.

    Attributes:
        number: Of the latest one.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._start = clock()
        self.number = 0

    async def next(self) -> int:
        """Wait for the next one; its number. Who comes late gets the latest that has passed, and no earlier ones."""
        elapsed = self._clock() - self._start
        self.number = max(self.number + 1, math.floor(elapsed / self._seconds))
        await self._sleep(max(0.0, self.number * self._seconds - elapsed))
        return self.number


BeatMaker = Callable[[float], Beat]
"""Starts a beat of so many seconds."""
