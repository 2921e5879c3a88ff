"""A transport within one process: for unit tests of the client against a handler, with no socket and no TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from edgedraft.errors import EdgedraftError, VerifierUnavailable
from edgedraft.transport.base import Stream, Transport


class MemoryPeer:
    """The verifier's end of a stream in memory."""

    def __init__(self) -> None:
        self._up: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._down: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def receive(self) -> bytes | None:
        """The next frame of the device; None once it is gone."""
        return await self._up.get()

    def send(self, frame: bytes) -> None:
        """Send a frame to the device."""
        self._down.put_nowait(frame)


Handler = Callable[[MemoryPeer], Awaitable[None]]
"""Serves one stream until it returns; an `EdgedraftError` or `AssertionError` that it raises reaches the device."""


class MemoryTransport(Transport):
    """Connects streams to a handler.

    Args:
        handler: Serves each stream, in a task of its own.
        description: The encoded answer to Describe.
    """

    def __init__(self, handler: Handler, description: bytes = b"") -> None:
        self._handler = handler
        self._description = description
        self._streams: set[_MemoryStream] = set()

    async def describe(self, request: bytes) -> bytes:
        """Answer with the fixed description."""
        return self._description

    async def open_stream(self) -> Stream:
        """Start the handler for a new stream."""
        stream = _MemoryStream(self._handler)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        """End all streams."""
        for stream in self._streams:
            await stream.close()
        self._streams.clear()


class _MemoryStream(Stream):
    def __init__(self, handler: Handler) -> None:
        self._peer = MemoryPeer()
        self._closed = False
        self._task = asyncio.ensure_future(self._serve(handler))

    async def _serve(self, handler: Handler) -> None:
        try:
            await handler(self._peer)
        except (EdgedraftError, AssertionError) as error:
            self._peer._down.put_nowait(error)
        else:
            self._peer._down.put_nowait(None)

    async def send(self, frame: bytes) -> None:
        if self._closed:
            raise VerifierUnavailable("the stream is closed")
        self._peer._up.put_nowait(frame)

    async def receive(self) -> bytes | None:
        item = await self._peer._down.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._peer._up.put_nowait(None)
            self._task.cancel()
            await asyncio.wait([self._task])
