"""Crowds of devices that keep a verifier busy: each device is a client of the SDK with a connection of its own."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from edgedraft.client import Client
from edgedraft.errors import EdgedraftError, InvalidInput, Overloaded
from edgedraft.identity import Identity
from edgedraft.prompt import Mode, Prompt
from edgedraft.report import Report
from edgedraft.sampling import SamplingParams
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.measured import MeasuredTransport, Samples
from edgedraft_apps.bench.trace_drafter import Material, TraceCodec, TraceDrafter

PAUSE: Final = 1.0
"""Seconds that a session waits after an error, and after a refusal that names no time."""
PARKED_A_CONNECTION: Final = 100
CONNECT_SECONDS: Final = 60.0
"""On a small machine hundreds of handshakes at once take their time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What each device does.

    Attributes:
        draft_seconds: Time of a step of the drafter.
        max_tokens: Tokens of an answer at most.
        block_size: Draft tokens to gather into a frame.
        ignore_eos: Go on behind the end of a text.

    Raises:
        InvalidInput: A value is out of range.
    """

    draft_seconds: float = 0.02
    max_tokens: int = 128
    block_size: int = 4
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.draft_seconds <= 60:
            raise InvalidInput("draft_ms", f"is {self.draft_seconds * 1000:g}", "use 0 to 60000")
        for name in ("max_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise InvalidInput(name, f"is {getattr(self, name)}", "use at least 1")


class Crowd:
    """Devices of one tenant that keep a number of generations going, one after the other; an async context manager.

    Args:
        verifier: `host:port`.
        identities: Of the devices; sessions are spread over them, and those of a device share its drafter's time.
        material: What to ask and to draft.
        pace: What each device does.
        samples: Takes the verdicts.

    Attributes:
        reports: Of the generations that finished.
        refused: Sessions that the verifier had no room for.
        errors: Other ends, by the kind of error.
        problem: The first error that ended a session.
    """

    def __init__(
        self, verifier: str, identities: Sequence[Identity], material: Material, pace: Pace, samples: Samples
    ) -> None:
        self._material = material
        self._pace = pace
        self._clients = [self._client(verifier, identity, samples) for identity in identities]
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self.reports: list[Report] = []
        self.refused = 0
        self.errors: Counter[str] = Counter()
        self.problem: EdgedraftError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await asyncio.gather(*(client.close() for client in self._clients))

    async def connect(self) -> None:
        """Connect every device, a few at a time.

        Raises:
            VerifierError: One was refused.
        """
        few = asyncio.Semaphore(8)

        async def connect(client: Client) -> None:
            async with few:
                await client.connect()

        await asyncio.gather(*(connect(client) for client in self._clients))

    def start(self, sessions: int) -> None:
        """Keep so many generations going, from now on."""
        self._tasks += [asyncio.create_task(self._session(number)) for number in range(sessions)]

    async def stop(self) -> None:
        """Cancel all generations and wait until they are closed."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _client(self, verifier: str, identity: Identity, samples: Samples) -> Client:
        transport = GrpcTransport(verifier, identity, timeout=CONNECT_SECONDS)
        return Client(
            TraceDrafter(self._material, self._pace.draft_seconds),
            verifier=MeasuredTransport(transport, identity.tenant, samples),
            mode=Mode.OPEN,
            codec=TraceCodec(self._material),
            block_size=self._pace.block_size,
        )

    async def _session(self, number: int) -> None:
        client = self._clients[number % len(self._clients)]
        while True:
            prompt = next(self._numbers)
            length = self._material.length(prompt, self._pace.max_tokens)
            try:
                async with client.generate(
                    Prompt(raw=str(prompt)), SamplingParams(length, ignore_eos=self._pace.ignore_eos)
                ) as generation:
                    async for _ in generation:
                        pass
                    assert generation.report is not None  # it has finished
                    self.reports.append(generation.report)
                continue
            except Overloaded as error:
                self.refused += 1
                self.problem = self.problem or error
                pause = error.retry_after or PAUSE
            except EdgedraftError as error:
                self.errors[type(error).__name__] += 1
                self.problem = self.problem or error
                pause = PAUSE
            await asyncio.sleep(pause * random.uniform(1, 1.5))  # not all of them together


class ParkedSessions:
    """Sessions that are open and do nothing; an async context manager.

    Args:
        verifier: `host:port`.
        identity: Of the device whose they are.
        material: What to ask.
        count: How many.

    Attributes:
        errors: How many have ended, by the kind of error.
    """

    def __init__(self, verifier: str, identity: Identity, material: Material, count: int) -> None:
        self._told = asyncio.Event()
        self._material = material
        self._count = count
        connections = -(-count // PARKED_A_CONNECTION)
        self._links = [GrpcTransport(verifier, identity, timeout=CONNECT_SECONDS) for _ in range(connections)]
        self._tasks: list[asyncio.Task[None]] = []
        self.errors: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        opened = [asyncio.Event() for _ in range(self._count)]
        self._tasks = [asyncio.create_task(self._session(number, event)) for number, event in enumerate(opened)]
        for event in opened:
            await event.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            await link.close()

    async def rest(self, seconds: float = 3.0) -> None:
        """Wait until none of them was told anything for so long: the cloud has run ahead as far as it may."""
        while True:
            self._told.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._told.wait()
            except TimeoutError:
                return

    async def _session(self, number: int, opened: asyncio.Event) -> None:
        try:
            stream = await self._links[number // PARKED_A_CONNECTION].open_stream()
            try:
                await stream.send(pb.ClientFrame(open=self._open(number)).SerializeToString())
                while (frame := await stream.receive()) is not None:
                    decode_server_frame(frame)
                    self._told.set()
                    opened.set()
                self.errors["ended"] += 1
            finally:
                await stream.close()
        except EdgedraftError as error:
            self.errors[type(error).__name__] += 1
        finally:
            opened.set()

    def _open(self, number: int) -> pb.Open:
        return pb.Open(
            protocol=PROTOCOL_VERSION,
            tokenizer_fingerprint=self._material.fingerprint,
            mode=pb.MODE_OPEN,
            prompt=self._material.prompt(number),
            limits=pb.Limits(max_tokens=self._material.length(number, 1024)),
            service_class=pb.SERVICE_CLASS_INTERACTIVE,
        )


def jain_index(amounts: Sequence[float]) -> float:
    """Fairness of a division: 1 where all are equal, 1/n where one has all (Jain, Chiu and Hawe 1984, eq. 1)."""
    squares = sum(amount**2 for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; 0 where there are none."""
    ordered = sorted(values)
    with suppress(IndexError):
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return 0.0
