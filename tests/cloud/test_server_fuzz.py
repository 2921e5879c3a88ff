"""Ten thousand frames of hostile devices against the real server: they end their own sessions, and no other."""

import asyncio
import contextlib
import random
from collections import Counter
from contextlib import asynccontextmanager

from devices import resuming
from toy import Bench, scripted_info, toy_greedy, toy_target

from edgedraft.errors import Overloaded, RequestRejected, VerifierError, VerifierUnavailable
from edgedraft.identity import Identity
from edgedraft.sampling import SamplingParams
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import VerifierService, start_server
from edgedraft_cloud.tenants import Tenant, Tenants

FRAMES = 10_000
AT_ONCE = 6
MOST_FRAMES = 12
LENGTH = 100
RUN_AHEAD = 4
CLOSE = pb.ClientFrame(close=pb.Close()).SerializeToString()


@asynccontextmanager
async def served(certificates, codec):
    engine = ScriptedEngine(toy_target, scripted_info(codec, max_sessions=12))
    # So that neither tenant fills the house.
    tenants = Tenants({"acme": Tenant("acme", max_sessions=7), "umbra": Tenant("umbra", max_sessions=5)}, None)
    orchestrator = Orchestrator(engine, tenants=tenants, window=8, run_ahead=RUN_AHEAD)
    server = await start_server(orchestrator, certificates.server(), "localhost", 0)
    yield Bench(server, engine, orchestrator, Identity.load(certificates.device("acme", "good")), codec)
    await server.stop(0)


def opening(codec, **changes) -> pb.Open:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "tokenizer_fingerprint": codec.fingerprint,
        "mode": pb.MODE_OPEN,
        "prompt": [5, 6, 7],
        "limits": pb.Limits(max_tokens=LENGTH, ignore_eos=True),
    }
    return pb.Open(**{**fields, **changes})


class Hostile:
    """Makes frames out of those that a good device would send, and of what it has seen of other sessions.

    Args:
        draws: Where its ideas come from.
        message: A good `Open`.
        stolen: Resume tokens of other devices.
    """

    def __init__(self, draws: random.Random, message: pb.Open, stolen: list[bytes]) -> None:
        self._draws = draws
        self._message = message
        self._tokens = stolen
        self._seen: list[bytes] = [CLOSE]

    def learn(self, token: bytes) -> None:
        """Remember a resume token of its own."""
        self._tokens = [*self._tokens[-20:], token]

    def stream(self) -> list[bytes]:
        """What to say on one stream, right at first and then ever less so."""
        draws = self._draws
        frames = [self._open(), *self._drafts(draws.randrange(MOST_FRAMES))]
        match draws.randrange(6):
            case 0:
                draws.shuffle(frames)
            case 1:
                frames += draws.choices(frames, k=3)
            case 2:
                frames[1:1] = draws.choices(self._seen, k=4)
        self._seen = [*self._seen[-200:], *frames]
        spoilt = draws.randrange(len(frames) + 1)
        return [*frames[:spoilt], *(self._spoil(frame) for frame in frames[spoilt:])]

    def _open(self) -> bytes:
        draws = self._draws
        message = self._message
        if draws.random() < 0.5:
            message = pb.Open()
            message.CopyFrom(self._message)
            message.mode = pb.MODE_SEALED
        if self._tokens and draws.random() < 0.4:
            held = [toy_target((5, 6, 7))] * draws.randrange(3)
            message = resuming(message, draws.choice(self._tokens), held)
        return pb.ClientFrame(open=message).SerializeToString()

    def _drafts(self, count: int) -> list[bytes]:
        """A beginning that is right, by a device that never rolls back, but may want to decide things itself."""
        frames = []
        right = toy_greedy([5, 6, 7], 8)
        for block in range(1, count + 1):
            tokens = right[block - 1 : block + self._draws.randrange(3)] or [5]
            draft = pb.Draft(block=block, position=0 if block == 1 else block, tokens=tokens)
            if block > 1 and self._draws.random() < 0.5:
                draft.parent, draft.position = 0, 0
            if self._draws.random() < 0.2:
                draft.given = b"\1"
                draft.tokens[0] += self._draws.randrange(2)
                draft.epoch = self._draws.randrange(block)
            frames.append(pb.ClientFrame(draft=draft).SerializeToString())
        return frames

    def _spoil(self, data: bytes) -> bytes:
        draws = self._draws
        match draws.randrange(8):
            case 0:
                return data[: draws.randrange(len(data) + 1)]
            case 1:
                place = draws.randrange(len(data) + 1)
                return data[:place] + draws.randbytes(draws.randrange(1, 9)) + data[place:]
            case 2:
                other = draws.choice(self._seen)
                return data[: draws.randrange(len(data) + 1)] + other[draws.randrange(len(other) + 1) :]
            case 3:
                return draws.randbytes(draws.randrange(64))
            case 4 | 5:
                changed = bytearray(data or b"\0")
                for _ in range(draws.randrange(1, 4)):
                    changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
                return bytes(changed)
            case _:
                return self._field()

    def _field(self) -> bytes:
        """A draft that can be read, with numbers that mean anything."""
        draws = self._draws

        def number() -> int:
            return draws.choice([0, 1, 2, 3, 5, 8, 100, 199, 200, 2**31, 2**32 - 1])

        draft = pb.Draft(
            epoch=draws.choice([0, 0, 0, 1, number()]),
            position=number(),
            block=number(),
            tokens=[draws.choice([5, 6, 7, number()]) for _ in range(draws.randrange(10))],
            given=draws.choice([b"", b"", b"\1", b"\xff" * 9]),
        )
        if draws.random() < 0.5:
            draft.parent = number()
        return pb.ClientFrame(draft=draft, settled=draws.choice([0, 0, 1, number()])).SerializeToString()


async def attack(transport: GrpcTransport, hostile: Hostile, draws: random.Random) -> str:
    """One stream of a hostile device, to its end or to a cut; what came of it."""
    stream = await transport.open_stream()

    async def read() -> None:
        while (data := await stream.receive()) is not None:
            if token := decode_server_frame(data).opened.resume_token:
                hostile.learn(token)

    reading = asyncio.ensure_future(read())
    try:
        with contextlib.suppress(VerifierError):  # the reading side knows why
            for frame in [*hostile.stream(), CLOSE]:
                await stream.send(frame)
                if draws.random() < 0.02:
                    return "vanished"
        await reading
        return "ended"
    except RequestRejected:
        return "rejected"
    except Overloaded:
        return "refused"
    except VerifierUnavailable as error:
        # Another stream of the same device has taken the session over.
        return "replaced" if "another stream" in str(error) else str(error)
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await stream.close()


async def test_ten_thousand_hostile_frames_end_their_own_sessions_alone(certificates, codec, monkeypatch, caplog):
    taken: Counter[str] = Counter()
    serve = VerifierService._serve

    async def counted(service, requests, context, peer):
        async def frames():
            async for data in requests:
                taken[peer.device] += 1
                yield data

        await serve(service, frames(), context, peer)

    monkeypatch.setattr(VerifierService, "_serve", counted)
    came_of_it: Counter[str] = Counter()
    async with served(certificates, codec) as bench:
        transport = bench.transport()
        # One good session lives through all of it, another after the other is opened meanwhile.
        message = opening(codec)
        stream = await transport.open_stream()
        await stream.send(pb.ClientFrame(open=message).SerializeToString())
        opened = decode_server_frame(await stream.receive()).opened

        async def hostile_device(seed: int) -> None:
            draws = random.Random(seed)
            tenant = "acme" if seed % 2 else "umbra"
            hostile = Hostile(draws, message, [opened.resume_token])
            identity = Identity.load(certificates.device(tenant, f"hostile-{seed}"))
            own = bench.transport(identity)
            while taken[identity.device] < FRAMES / AT_ONCE:
                came_of_it[await attack(own, hostile, draws)] += 1
            await own.close()

        answers = 0
        async with asyncio.TaskGroup() as group, bench.client(resume_seconds=120) as client:
            attacks = [group.create_task(hostile_device(seed)) for seed in range(AT_ONCE)]
            prompt = codec.encode_chat([{"role": "user", "content": "sky"}])
            right = codec.decode(toy_greedy(prompt, 40))
            while not all(attack.done() for attack in attacks):
                assert await client.generate("sky", SamplingParams(max_tokens=40)) == right
                answers += 1
        settled: list[int] = []
        acknowledged = 0
        while (data := await stream.receive()) is not None:
            frame = decode_server_frame(data)
            if frame.HasField("verdict"):
                assert frame.verdict.position == len(settled)
                settled += frame.verdict.tokens
                if acknowledged < LENGTH - RUN_AHEAD:  # or the session may have ended by now
                    acknowledged = len(settled)
                    await stream.send(pb.ClientFrame(settled=acknowledged).SerializeToString())
        assert frame.finished.reason == pb.Finished.REASON_LENGTH
        assert settled == [toy_target((5, 6, 7, *settled[:index])) for index in range(LENGTH)]
        await transport.close()
        assert bench.engine.starts == 1, "a frame has reached the engine's life"
    assert answers > 3
    assert came_of_it.keys() <= {"rejected", "refused", "replaced", "ended", "vanished"}
    assert min(came_of_it[what] for what in ("rejected", "ended", "vanished")) > 100, came_of_it
    assert "internal error" not in caplog.messages
