"""A transport that looks at the clock: when each block left, and when the verdict on it came back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edgedraft.transport.base import Stream, Transport
from edgedraft.wire import verify_pb2 as pb


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
        waits: Seconds since the blocks left whose first position it settles; none where it answers no block.
    """

    at: float
    tenant: str
    settled: int
    accepted: int
    used: bool
    right: int
    wrong: int
    waits: tuple[float, ...]


@dataclass(slots=True)
class Samples:
    """All verdicts of a run, in order."""

    verdicts: list[Sample] = field(default_factory=list)

    def between(self, start: float, end: float, tenant: str | None = None) -> list[Sample]:
        """Those that came in [start, end), of one tenant or of all."""
        return [each for each in self.verdicts if start <= each.at < end and tenant in (None, each.tenant)]


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
            self._waiting.append((draft.position, list(draft.tokens), self._clock()))
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
            Sample(now, self._tenant, len(tokens), verdict.accepted, verdict.block_used, right, wrong, tuple(waits))
        )
