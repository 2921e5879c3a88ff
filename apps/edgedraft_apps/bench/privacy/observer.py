"""Somebody on the line between device and verifier: sees when TLS records pass and how long they are, no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 64 * 1024
_HEAD: Final = 5
"""Bytes in front of a TLS record; the last two are its length."""


class Observer:
    """Listens on a loopback port and passes on what comes, at once; an async context manager.

    Args:
        host: Of the verifier.
        port: Of the verifier.
        clock: Seconds.

    Attributes:
        port: The port to connect to.
        seen: For each record, in the order in which they ended: seconds since the first one, and its length in bytes,
            negative if it came from the verifier.
    """

    def __init__(self, host: str, port: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._verifier = (host, port)
        self._clock = clock
        self._start: float | None = None
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.port = 0
        self.seen: list[tuple[float, int]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._verifier)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, far_writer, 1))
                group.create_task(self._pass_on(far_reader, writer, -1))
        except* (OSError, asyncio.CancelledError):
            pass  # one end is gone, and the other learns of it by its closed connection
        finally:
            for end in ends:
                end.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, sign: int) -> None:
        rest = b""
        while data := await source.read(_CHUNK):
            now = self._clock()
            if self._start is None:
                self._start = now
            rest += data
            while len(rest) >= _HEAD and len(rest) >= (size := _HEAD + int.from_bytes(rest[3:_HEAD])):
                self.seen.append((now - self._start, sign * size))
                rest = rest[size:]
            sink.write(data)
            await sink.drain()
        sink.write_eof()
