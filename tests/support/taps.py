"""A transport that keeps what passes, in front of a real one."""

from edgedraft.transport.base import Stream, Transport


class RecordingTransport(Transport):
    """Keeps frames as they are handed over.

    Attributes:
        up: What was sent, by stream.
        down: What was received, by stream.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.up: list[list[bytes]] = []
        self.down: list[list[bytes]] = []

    async def describe(self, request: bytes) -> bytes:
        return await self._inner.describe(request)

    async def open_stream(self) -> Stream:
        self.up.append([])
        self.down.append([])
        return _RecordingStream(await self._inner.open_stream(), self.up[-1], self.down[-1])

    async def close(self) -> None:
        await self._inner.close()


class _RecordingStream(Stream):
    def __init__(self, inner: Stream, up: list[bytes], down: list[bytes]) -> None:
        self._inner = inner
        self._up = up
        self._down = down

    async def send(self, frame: bytes) -> None:
        self._up.append(frame)
        await self._inner.send(frame)

    async def receive(self) -> bytes | None:
        frame = await self._inner.receive()
        if frame is not None:
            self._down.append(frame)
        return frame

    async def close(self) -> None:
        await self._inner.close()
