"""A tap between device and verifier: a transport that writes down every frame on its way, both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgedraft.transport.base import Stream, Transport


@dataclass(frozen=True, slots=True)
class Tapped:
    """One frame.

    Attributes:
        direction: `up` left the device, `down` came to it.
        stream: Number of its stream, from 0; -1 for a Describe.
        frame: Its bytes.
    """

    direction: Literal["up", "down"]
    stream: int
    frame: bytes


@dataclass(slots=True)
class Tap:
    """Frames in the order in which they passed.

    Attributes:
        frames: The frames.
        streams: Streams so far.
    """

    frames: list[Tapped] = field(default_factory=list)
    streams: int = 0


class TappedTransport(Transport):
    """Carries on what it is given, and tells a tap.

    Args:
        transport: The real one.
        tap: Told of every frame.
    """

    def __init__(self, transport: Transport, tap: Tap) -> None:
        self._transport = transport
        self._tap = tap

    async def describe(self, request: bytes) -> bytes:
        """Ask the verifier what it serves."""
        self._tap.frames.append(Tapped("up", -1, request))
        answer = await self._transport.describe(request)
        self._tap.frames.append(Tapped("down", -1, answer))
        return answer

    async def open_stream(self) -> Stream:
        """Start a stream."""
        stream = _TappedStream(await self._transport.open_stream(), self._tap, self._tap.streams)
        self._tap.streams += 1
        return stream

    async def close(self) -> None:
        """End all streams and the connection."""
        await self._transport.close()


class _TappedStream(Stream):
    def __init__(self, stream: Stream, tap: Tap, number: int) -> None:
        self._stream = stream
        self._tap = tap
        self._number = number

    async def send(self, frame: bytes) -> None:
        self._tap.frames.append(Tapped("up", self._number, frame))
        await self._stream.send(frame)

    async def receive(self) -> bytes | None:
        frame = await self._stream.receive()
        if frame is not None:
            self._tap.frames.append(Tapped("down", self._number, frame))
        return frame

    async def close(self) -> None:
        await self._stream.close()
