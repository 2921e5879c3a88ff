"""What a stream costs before it has a session, and after: refusals leave nothing behind, and cannot be had for ever."""

import asyncio
import gc
import tracemalloc
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

import edgedraft_cloud.server as server_module
from edgedraft.errors import InvalidInput, Overloaded
from edgedraft.identity import Identity
from edgedraft.wire import PROTOCOL_VERSION, SERVICE_NAME
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.server import REFUSALS_BURST, REFUSALS_PER_SECOND, Peer, VerifierService

PEER = Peer("acme", "phone-1")
LARGE = 400_000


@asynccontextmanager
async def verify(bench, identity=None):
    identity = identity or bench.identity
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{bench.server.port}", credentials, options) as channel:
        yield channel.stream_stream(f"/{SERVICE_NAME}/Verify")


def opening(codec, **changes) -> bytes:
    message = pb.Open(
        protocol=PROTOCOL_VERSION,
        tokenizer_fingerprint=codec.fingerprint,
        mode=pb.MODE_OPEN,
        prompt=[5, 6, 7],
        limits=pb.Limits(max_tokens=150, ignore_eos=True),
    )
    message.MergeFrom(pb.Open(**changes))
    return pb.ClientFrame(open=message).SerializeToString()


async def refusal(multicallable, frame: bytes) -> tuple[grpc.StatusCode, str]:
    call = multicallable()
    await call.write(frame)
    await call.done_writing()
    return await call.code(), await call.details()


# ---------------------------------------------------------------- what is left of it


@pytest.mark.parametrize("kind", ["refused", "no Open", "no frame"])
async def test_a_refused_stream_leaves_no_message_behind_that_only_a_collection_would_free(bench, kind):
    frame = {
        "refused": opening(bench.codec, prompt=[5] * LARGE),
        "no Open": pb.ClientFrame(padding=bytes(LARGE)).SerializeToString(),
        "no frame": b"\xff" * LARGE,
    }[kind]
    async with verify(bench) as multicallable:
        await refusal(multicallable, frame)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(10):
                assert (await refusal(multicallable, frame))[0] is grpc.StatusCode.INVALID_ARGUMENT
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 5 * LARGE, "some are on their way, but not all ten"


async def test_what_has_opened_a_session_is_not_kept_for_as_long_as_it_lives():
    frame = pb.ClientFrame(open=pb.Open(prompt=[5] * 1000, shaping=pb.Shaping(sizes=[64])))
    taken = []

    async def take(message, tenant, device):
        taken.append(message)
        return "handle"

    async def frames():
        yield frame.SerializeToString()

    handle, shaping = await VerifierService(SimpleNamespace(open=take), Metrics())._open(frames(), PEER)
    assert (handle, shaping) == ("handle", frame.open.shaping)
    assert shaping is not taken[0].shaping, "a part of a message keeps the whole"


async def test_an_error_that_is_told_holds_no_frames():
    told: dict[str, object] = {}
    context = SimpleNamespace(
        set_code=lambda code: told.update(code=code),
        set_details=lambda text: told.update(text=text),
        set_trailing_metadata=lambda metadata: told.update(metadata=metadata),
    )

    def fail():
        try:
            raise KeyError("x")
        except KeyError as error:
            raise InvalidInput("field", "is wrong", "mend it") from error

    with pytest.raises(InvalidInput) as caught:
        fail()
    server_module._end(context, caught.value, PEER)
    assert caught.value.__traceback__ is None
    assert caught.value.__cause__.__traceback__ is None
    assert told["code"] is grpc.StatusCode.INVALID_ARGUMENT
    assert told["metadata"] == (("edgedraft-field", "field"),)


# ---------------------------------------------------------------- what is said of it


@pytest.mark.parametrize("letter", ["m", "é", "🙂", "\n"])
async def test_a_long_name_of_a_model_is_not_told_again_in_full(bench, letter):
    async with verify(bench) as multicallable:
        code, text = await refusal(multicallable, opening(bench.codec, model=letter * 50_000))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("open.model: is '")
    assert text.endswith("'..., this verifier serves 'toy'; ask for that")
    assert text.count(letter) <= 65, "64, and one in what is served"


@pytest.mark.parametrize("letter", ["m", "é", "🙂"])
async def test_an_error_of_any_length_reaches_the_device_as_what_it_is(bench, monkeypatch, letter):
    async def refuse(message, tenant, device):
        raise Overloaded(letter * 50_000, 2.0)

    monkeypatch.setattr(bench.orchestrator, "open", refuse)
    async with verify(bench) as multicallable:
        code, text = await refusal(multicallable, opening(bench.codec))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert set(text) == {letter}
    assert len(text.encode()) <= 1000


# ---------------------------------------------------------------- how many there may be


async def test_a_device_cannot_take_all_openings_of_its_tenant(bench, certificates, monkeypatch):
    monkeypatch.setattr(server_module, "DEVICE_OPENING_STREAMS", 2)
    other = Identity.load(certificates.device("acme", "phone-2"))
    async with verify(bench) as mine, verify(bench, other) as others:
        silent = [mine(), mine()]
        for call in silent:
            await call.wait_for_connection()
        code, text = await refusal(mine, opening(bench.codec))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text == "2 streams of this device are open without a first frame"
        call = others()
        await call.write(opening(bench.codec))
        assert pb.ServerFrame.FromString(await call.read()).HasField("opened")


class Door:
    """A service whose orchestrator refuses all, on a clock that only its own waits move."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        self.refuse = True
        self.metrics = Metrics()
        self.service = VerifierService(self, self.metrics)
        monkeypatch.setattr(server_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(
            server_module,
            "asyncio",
            SimpleNamespace(sleep=self.sleep, timeout=asyncio.timeout, TimeoutError=TimeoutError),
        )

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def open(self, message, tenant, device):
        if self.refuse:
            raise InvalidInput("open", "is refused", "ask for something else")
        return "handle"

    async def knock(self, peer: Peer = PEER) -> None:
        async def frames():
            yield pb.ClientFrame(open=pb.Open()).SerializeToString()

        await self.service._open(frames(), peer)


async def test_who_is_refused_too_often_waits_and_nobody_else(monkeypatch):
    door = Door(monkeypatch)
    for _ in range(REFUSALS_BURST + 5 * REFUSALS_PER_SECOND):
        with pytest.raises(InvalidInput):
            await door.knock()
    assert door.now == pytest.approx(5.0, abs=0.2)
    before = door.now
    with pytest.raises(InvalidInput):
        await door.knock(Peer("acme", "phone-2"))
    assert door.now == before


async def test_who_is_let_in_never_waits(monkeypatch):
    door = Door(monkeypatch)
    door.refuse = False
    for _ in range(50 * REFUSALS_BURST):
        await door.knock()
    assert door.now == 0.0


async def test_who_has_been_refused_far_too_often_is_told_when_to_come_back(monkeypatch):
    door = Door(monkeypatch)
    for _ in range(REFUSALS_BURST + 100 * REFUSALS_PER_SECOND):
        door.service._note_refusal(PEER)
    with pytest.raises(Overloaded, match="refused too often") as caught:
        await door.knock()
    assert caught.value.retry_after == pytest.approx(100.0)
    refused = {"tenant": "other", "reason": "opening"}
    assert door.metrics.registry.get_sample_value("edgedraft_sessions_refused_total", refused) == 1
    door.now += caught.value.retry_after
    door.refuse = False
    await door.knock()


async def test_refusals_of_only_so_many_devices_are_remembered(monkeypatch):
    monkeypatch.setattr(server_module, "MOST_REFUSED", 2)
    door = Door(monkeypatch)
    for name in ("a", "b", "a", "c"):
        with pytest.raises(InvalidInput):
            await door.knock(Peer("acme", name))
    assert [peer.device for peer in door.service._refusals] == ["a", "c"]
