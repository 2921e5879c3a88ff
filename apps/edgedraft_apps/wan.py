"""A proxy that puts a wide-area link between two ends of a TCP connection on one machine: delay, jitter, cuts."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import TracebackType
from typing import Final, Self

from edgedraft.errors import InvalidInput

_CHUNK: Final = 64 * 1024
_IN_FLIGHT: Final = 4 * 1024 * 1024
"""Bytes that one direction may hold, so that a stalled link pushes back instead of filling memory."""


class WanProxy:
    """Listens on a loopback port and forwards to a target with a delay each way; order is kept.

    Delay adds latency and takes no throughput: many chunks are under way at once.

    Args:
        host: Of the target.
        port: Of the target.
        rtt: Round-trip time to add, in seconds; half of it each way.
        jitter: Further delay of up to this many seconds a chunk, uniformly drawn.
        bytes_per_second: Rate limit of each direction; None is none.
        seed: Of the jitter.

    Attributes:
        port: The port to connect to, once it is started.

    Raises:
        InvalidInput: A negative delay or a rate that is not positive.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        rtt: float = 0.0,
        jitter: float = 0.0,
        bytes_per_second: float | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("rtt", rtt), ("jitter", jitter)):
            if not 0 <= value < 3600:
                raise InvalidInput(name, f"is {value} s", "use 0 or more, below an hour")
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise InvalidInput("bytes_per_second", f"is {bytes_per_second}", "use more than 0, or None")
        self._target = (host, port)
        self._one_way = rtt / 2
        self._jitter = jitter
        self._rate = bytes_per_second
        self._draws = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Close all connections at once, as a lost link does; new ones are taken."""
        links = set(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    def stall(self) -> None:
        """Let nothing through until `resume`; the connections stay."""
        self._open.clear()

    def resume(self) -> None:
        """Let everything through again, in order."""
        self._open.set()

    # ------------------------------------------------------------ inside

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=_CHUNK)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as group:
                for source, sink in ((reader, far_writer), (far_reader, writer)):
                    line = _Line()
                    group.create_task(self._take(source, line))
                    group.create_task(self._give(line, sink))
            for end in ends:
                end.close()
                await end.wait_closed()
        except* (OSError, asyncio.CancelledError):
            # One end is gone, or the link was cut: the other end learns of it by its closed connection.
            pass
        finally:
            self._links.discard(link)
            for end in ends:
                end.transport.abort()

    async def _take(self, source: asyncio.StreamReader, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        last = 0.0
        while True:
            data = await source.read(_CHUNK)
            due = loop.time() + self._one_way + self._draws.uniform(0, self._jitter)
            # Never before what came earlier: a TCP connection keeps its order.
            last = max(due, last)
            await line.put(last, data)
            if not data:
                return

    async def _give(self, line: _Line, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_at = 0.0
        while True:
            due, data = await line.get()
            if self._rate is not None:
                free_at = due = max(due, free_at) + len(data) / self._rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._open.wait()
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


class _Line:
    """What is under way in one direction: chunks with the times at which they are due, bounded in bytes."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def put(self, due: float, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._bytes < _IN_FLIGHT)
            self._chunks.append((due, data))
            self._bytes += len(data)
            self._changed.notify_all()

    async def get(self) -> tuple[float, bytes]:
        """The next chunk; empty at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._chunks))
            due, data = self._chunks.popleft()
            self._bytes -= len(data)
            self._changed.notify_all()
            return due, data
