"""A transport that looks at the clock: when each block left, and when the verdict on it came back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from edgedraft.transport.base import Stream, Transport
from edgedraft.wire import verify_pb2 as pb

_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """One verdict.

    Attributes:
        at: When it came, in seconds of the clock.
        tenant: Whose session.
        settled: Tokens that it settles.
        accepted: How many of them were verified drafts.
        used: Whether drafts were judged.
        right: Positions where a draft was the token that was settled.
        wrong: Positions where one was not; what hangs on it does not count.
        queue: Seconds that the drafts waited for their step, as the verifier says.
        waits: Seconds since the blocks left whose first position it settles; none where it answers no block.
    """

    at: float
    tenant: str
    settled: int
    accepted: int
    used: bool
    right: int
    wrong: int
    queue: float
    waits: tuple[float, ...]


@dataclass(slots=True)
class Samples:
    """What went to and fro in a run, in order.

    Attributes:
        verdicts: All of them.
        blocks: When each block left.
    """

    verdicts: list[Sample] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)

    def blocks_between(self, start: float, end: float) -> int:
        """How many blocks left in [start, end)."""
        return sum(start <= at < end for at in self.blocks)

    def between(self, start: float, end: float, tenant: str | None = None) -> list[Sample]:
        """Those that came in [start, end), of one tenant or of all."""
        return [each for each in self.verdicts if start <= each.at < end and tenant in (None, each.tenant)]


class LoopLag:
    """How late this process's own event loop is: what a load tool that is overloaded adds to every time it takes.

    An async context manager; it looks every few milliseconds meanwhile.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.lags: list[tuple[float, float]] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def between(self, start: float, end: float) -> list[float]:
        """The delays in seconds that were seen in [start, end)."""
        return [lag for at, lag in self.lags if start <= at < end]

    async def _look(self) -> None:
        while True:
            due = self._clock() + _LOOK_SECONDS
            await asyncio.sleep(_LOOK_SECONDS)
            self.lags.append((due, self._clock() - due))


class MeasuredTransport(Transport):
    """Passes everything on and takes the times.

    Args:
        inner: The transport that does the work.
        tenant: Whose it is.
        samples: Takes the verdicts.
        clock: Seconds.
    """

    def __init__(
        self, inner: Transport, tenant: str, samples: Samples, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._tenant = tenant
        self._samples = samples
        self._clock = clock

    async def describe(self, request: bytes) -> bytes:
        """Call Describe."""
        return await self._inner.describe(request)

    async def open_stream(self) -> Stream:
        """Start a stream that is measured."""
        return _MeasuredStream(await self._inner.open_stream(), self._tenant, self._samples, self._clock)

    async def close(self) -> None:
        """End all streams and the connection."""
        await self._inner.close()


class _MeasuredStream(Stream):
    def __init__(self, inner: Stream, tenant: str, samples: Samples, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._tenant = tenant
        self._samples = samples
        self._clock = clock
        self._epoch = 0
        self._waiting: deque[tuple[int, list[int], float | None]] = deque()

    async def send(self, frame: bytes) -> None:
        parsed = pb.ClientFrame.FromString(frame)
        if parsed.HasField("draft"):
            draft = parsed.draft
            if draft.epoch != self._epoch:
                self._epoch = draft.epoch
                self._waiting.clear()
            now = self._clock()
            self._waiting.append((draft.position, list(draft.tokens), now))
            self._samples.blocks.append(now)
        await self._inner.send(frame)

    async def receive(self) -> bytes | None:
        frame = await self._inner.receive()
        if frame is not None:
            parsed = pb.ServerFrame.FromString(frame)
            if parsed.HasField("verdict"):
                self._take(parsed.verdict)
        return frame

    async def close(self) -> None:
        await self._inner.close()

    def _take(self, verdict: pb.Verdict) -> None:
        now = self._clock()
        start, tokens = verdict.position, list(verdict.tokens)
        end = start + len(tokens)
        waits = []
        right = wrong = 0
        # What hangs on a wrong token is void and gets no verdict.
        while not wrong and self._waiting and self._waiting[0][0] < end:
            position, drafted, sent = self._waiting.popleft()
            if sent is not None:
                waits.append(now - sent)
            offset = max(position, start)
            pairs = list(zip(drafted[offset - position :], tokens[offset - start :], strict=False))
            agreed = next((index for index, (draft, token) in enumerate(pairs) if draft != token), len(pairs))
            right += agreed
            wrong = int(agreed < len(pairs))
            if end < position + len(drafted):
                self._waiting.appendleft((end, drafted[end - position :], None))
        if wrong:
            self._waiting.clear()
        self._samples.verdicts.append(
            Sample(
                at=now,
                tenant=self._tenant,
                settled=len(tokens),
                accepted=verdict.accepted,
                used=verdict.block_used,
                right=right,
                wrong=wrong,
                queue=verdict.queue_us / 1e6,
                waits=tuple(waits),
            )
        )
