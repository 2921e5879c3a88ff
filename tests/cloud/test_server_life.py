"""The server's own life: readiness, devices that vanish or say nothing, stopping, and what it needs to start."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import serialization
from grpc_health.v1 import health_pb2, health_pb2_grpc
from toy import scripted_info, toy_greedy, toy_target

import edgedraft_cloud.server as server_module
from edgedraft.errors import IdentityError, InvalidInput, ModelNotFound, RequestRejected, VerifierUnavailable
from edgedraft.sampling import SamplingParams
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION, SERVICE_NAME, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud import authority as authority_module
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.live import SessionHandle
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import FRAMES_BURST, FRAMES_PER_SECOND, start_server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def channel(bench, port=None):
    identity = bench.identity
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.secure_channel(f"localhost:{port or bench.server.port}", credentials, options) as channel:
        yield channel


def opening(bench, **limits) -> bytes:
    message = pb.Open(
        protocol=PROTOCOL_VERSION,
        tokenizer_fingerprint=bench.codec.fingerprint,
        mode=pb.MODE_OPEN,
        prompt=[5, 6, 7],
        limits=pb.Limits(**{"max_tokens": 150, "ignore_eos": True, **limits}),
    )
    return pb.ClientFrame(open=message).SerializeToString()


@asynccontextmanager
async def live_session(bench, port=None):
    """A session that waits for its device: the cloud has run ahead as far as it may."""
    transport = bench.transport(port=port)
    try:
        stream = await transport.open_stream()
        await stream.send(opening(bench))
        frame = decode_server_frame(await stream.receive())
        assert frame.HasField("opened")
        yield stream
    finally:
        await transport.close()


# ---------------------------------------------------------------- readiness


@pytest.mark.parametrize("service", ["", SERVICE_NAME])
async def test_readiness_follows_the_engine_down_and_up_again(bench, service, monkeypatch):
    mended = asyncio.Event()
    start = bench.engine.start

    async def slow():
        await mended.wait()
        await start()

    monkeypatch.setattr(bench.engine, "start", slow)
    async with channel(bench) as to_server:
        stub = health_pb2_grpc.HealthStub(to_server)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        assert (await watch.read()).status == SERVING
        bench.engine.die()
        assert (await watch.read()).status == NOT_SERVING
        with pytest.raises(VerifierUnavailable, match="is loading its model"):
            async with live_session(bench):
                pass
        mended.set()
        assert (await watch.read()).status == SERVING
        watch.cancel()
    async with live_session(bench):
        pass


async def test_an_engine_that_is_given_up_takes_readiness_along(bench, monkeypatch):
    async def broken():
        raise ModelNotFound("its disk is gone")

    monkeypatch.setattr(bench.engine, "start", broken)
    async with channel(bench) as to_server:
        watch = health_pb2_grpc.HealthStub(to_server).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        bench.engine.die()
        assert (await watch.read()).status == NOT_SERVING
        await bench.server.engine_given_up()
        watch.cancel()
    with pytest.raises(VerifierUnavailable, match="could not be started again"):
        async with live_session(bench):
            pass


async def test_a_verifier_that_is_still_loading_is_there_and_not_ready(codec, certificates, bench):
    loading, loaded = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedEngine):
        async def start(self):
            loading.set()
            await loaded.wait()

    slow = orchestrator(codec, Slow(toy_target, scripted_info(codec)))
    port = await free_port(codec, certificates)
    starting = asyncio.create_task(start_server(slow, certificates.server(), "localhost", port))
    await loading.wait()
    async with channel(bench, port) as to_server:
        watch = health_pb2_grpc.HealthStub(to_server).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == NOT_SERVING
        with pytest.raises(VerifierUnavailable, match="is loading its model"):
            async with live_session(bench, port):
                pass
        loaded.set()
        assert (await watch.read()).status == SERVING
        watch.cancel()
    async with live_session(bench, port):
        pass
    await (await starting).stop(0)


async def test_readiness_is_off_before_live_sessions_have_left(bench):
    async with channel(bench) as to_server, live_session(bench) as stream:
        watch = health_pb2_grpc.HealthStub(to_server).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(bench.server.stop(3000))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        with pytest.raises(VerifierUnavailable, match="shutting down"):
            async with live_session(bench):
                pass
        assert not stopping.done()
        await stream.send(pb.ClientFrame(close=pb.Close()).SerializeToString())
        while (data := await stream.receive()) is not None:
            last = decode_server_frame(data)
        assert last.HasField("finished")
        await stopping


# ---------------------------------------------------------------- devices


async def test_a_device_that_vanishes_is_waited_for_and_then_gives_its_place_back(bench, caplog):
    async with WanProxy("127.0.0.1", bench.server.port) as proxy, live_session(bench, proxy.port):
        assert bench.orchestrator.live_sessions == 1
        await proxy.cut()
        async with asyncio.timeout(30):
            await bench.orchestrator.idle()
    assert len(bench.orchestrator._sessions) == 1
    bench.orchestrator.tidy(time.monotonic() + 61)
    assert len(bench.orchestrator._sessions) == 0
    assert "internal error" not in caplog.messages


async def test_a_stream_without_a_first_frame_is_not_kept(bench, monkeypatch):
    monkeypatch.setattr(server_module, "OPEN_SECONDS", 0.0)
    async with channel(bench) as to_server:
        call = to_server.stream_stream(f"/{SERVICE_NAME}/Verify")()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "frame: did not come within 0 s; send Open first"


async def test_streams_without_a_first_frame_are_counted_by_tenant(bench, monkeypatch):
    monkeypatch.setattr(server_module, "OPENING_STREAMS", 2)
    async with channel(bench) as to_server:
        verify = to_server.stream_stream(f"/{SERVICE_NAME}/Verify")
        silent = [verify(), verify()]
        for call in silent:
            await call.wait_for_connection()
        refused = verify()
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 streams of this tenant" in await refused.details()
        for call in silent:
            await call.write(opening(bench, max_tokens=3))
            assert pb.ServerFrame.FromString(await call.read()).HasField("opened")


async def test_a_stream_that_ends_without_a_frame_is_told(bench):
    async with channel(bench) as to_server:
        call = to_server.stream_stream(f"/{SERVICE_NAME}/Verify")()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "frame: is missing; send Open first"
        assert (await call.trailing_metadata())["edgedraft-field"] == "frame"


async def test_a_description_that_is_asked_for_wrongly_is_refused(bench):
    transport = bench.transport()
    with pytest.raises(RequestRejected, match="no DescribeRequest"):
        await transport.describe(b"\xff\xff")
    await transport.close()


async def test_a_device_that_has_nothing_more_to_say_still_gets_its_answer(bench):
    async with channel(bench) as to_server:
        call = to_server.stream_stream(f"/{SERVICE_NAME}/Verify")()
        await call.write(opening(bench, max_tokens=3))
        await call.done_writing()
        frames = [decode_server_frame(data) async for data in call]
    assert [frame.WhichOneof("frame") for frame in frames][-1] == "finished"
    assert sum(len(frame.verdict.tokens) for frame in frames) == 3


async def test_tenant_and_device_come_from_the_certificate(bench, monkeypatch):
    seen = []
    open_session = bench.orchestrator.open

    async def spy(message, tenant, device):
        seen.append((tenant, device))
        return await open_session(message, tenant, device)

    monkeypatch.setattr(bench.orchestrator, "open", spy)
    async with live_session(bench):
        assert seen == [("acme", "phone-1")]


# ---------------------------------------------------------------- a device that floods


class Pace:
    """A clock that stands still except while somebody is made to wait."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        monkeypatch.setattr(server_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(server_module, "asyncio", SimpleNamespace(sleep=self.sleep))

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Taker:
    """Stands for the handle of a session."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def receive(self, frame: pb.ClientFrame) -> None:
        self.taken.append(frame.settled)

    def fail(self, error: Exception) -> None:
        raise error


async def acknowledgements(count: int, *, pace: Pace | None = None, seconds_apart: float = 0.0):
    for number in range(count):
        if pace is not None:
            pace.now += seconds_apart
        yield pb.ClientFrame(settled=number).SerializeToString()


async def test_one_that_floods_is_taken_at_the_rate_and_loses_nothing(monkeypatch):
    pace, taker = Pace(monkeypatch), Taker()
    count = FRAMES_BURST + 5 * FRAMES_PER_SECOND
    await server_module._read(acknowledgements(count), taker)
    assert taker.taken == [*range(count)]
    assert pace.now == pytest.approx(5.0)
    assert len(pace.waits) == 5 * FRAMES_PER_SECOND


async def test_one_that_keeps_the_pace_never_waits(monkeypatch):
    pace, taker = Pace(monkeypatch), Taker()
    frames = acknowledgements(5000, pace=pace, seconds_apart=1 / FRAMES_PER_SECOND)
    await server_module._read(frames, taker)
    assert len(taker.taken) == 5000
    assert pace.waits == []


async def test_a_flood_on_one_stream_holds_up_no_other(bench, monkeypatch):
    """Its frames are left where they are; over the real server, with a rate of as good as nothing."""
    monkeypatch.setattr(server_module, "FRAMES_BURST", 50)
    monkeypatch.setattr(server_module, "FRAMES_PER_SECOND", 1e-9)
    taken: Counter[str] = Counter()
    overdrawn = asyncio.Event()
    receive = SessionHandle.receive

    def count(handle, frame):
        taken[handle.live.session.id] += 1
        receive(handle, frame)
        if taken[flooded] > 50:
            overdrawn.set()

    monkeypatch.setattr(SessionHandle, "receive", count)
    async with live_session(bench) as flooding:
        (flooded,) = [live.session.id for live in bench.orchestrator._sessions]
        for _ in range(200):
            await flooding.send(pb.ClientFrame(padding=bytes(64)).SerializeToString())
        async with bench.client(block_size=8) as client:
            for text in ("sky", "sea", "sun"):
                prompt = bench.codec.encode_chat([{"role": "user", "content": text}])
                answer = await client.generate(text, SamplingParams(max_tokens=12))
                assert answer == bench.codec.decode(toy_greedy(prompt, 12))
        await overdrawn.wait()
        assert taken[flooded] == 51, "the burst, and the one that overdraws it"


# ---------------------------------------------------------------- starting


def orchestrator(codec, engine=None):
    return Orchestrator(engine or ScriptedEngine(toy_target, scripted_info(codec)))


async def free_port(codec, certificates) -> int:
    server = await start_server(orchestrator(codec), certificates.server(), "localhost", 0)
    await server.stop(0)
    return server.port


async def test_a_port_that_is_taken_is_named_before_the_model_is_loaded(bench, codec, certificates):
    class Slow(ScriptedEngine):
        async def start(self):
            raise AssertionError("loaded for nothing")

    slow = orchestrator(codec, Slow(toy_target, scripted_info(codec)))
    with pytest.raises(InvalidInput, match=f"port: localhost:{bench.server.port} cannot be listened on"):
        await start_server(slow, certificates.server(), "localhost", bench.server.port)


async def test_an_engine_that_does_not_start_gives_the_port_back(codec, certificates):
    class Broken(ScriptedEngine):
        async def start(self):
            raise ModelNotFound("no such model")

    port = await free_port(codec, certificates)
    broken = orchestrator(codec, Broken(toy_target, scripted_info(codec)))
    with pytest.raises(ModelNotFound):
        await start_server(broken, certificates.server(), "localhost", port)
    again = await start_server(orchestrator(codec), certificates.server(), "localhost", port)
    await again.stop(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_it_listens_where_it_is_told(codec, certificates, bench, host):
    server = await start_server(orchestrator(codec), certificates.server(), host, 0)
    transport = GrpcTransport(f"{host}:{server.port}", bench.identity)
    answer = pb.DescribeResponse.FromString(await transport.describe(b""))
    assert answer.models[0].name == "toy"
    await transport.close()
    await server.stop(0)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
@pytest.mark.parametrize("content", [None, b"no PEM", "another"])
async def test_tls_files_that_cannot_be_used_are_told(codec, tmp_path, name, content):
    authority = DevelopmentAuthority(tmp_path)
    path = authority.server() / name
    match content:
        case None:
            path.unlink()
        case "another" if name == "ca.pem":
            return  # which CA the devices have is the operator's to say
        case "another":
            path.write_bytes((authority.device("a", "b") / name).read_bytes())
        case _:
            path.write_bytes(content)
    words = f"{name} cannot be read" if content is None else "cannot be used"
    with pytest.raises(IdentityError, match=words):
        await start_server(orchestrator(codec), path.parent, "localhost", 0)


def test_a_key_that_is_encrypted_is_told_and_nobody_is_asked_to_unlock_it(tmp_path):
    folder = DevelopmentAuthority(tmp_path).server()
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, locked))
    with pytest.raises(IdentityError, match=r"key\.pem is encrypted"):
        server_module.load_credentials(folder)


def test_a_certificate_of_no_authority_is_no_ca(tmp_path):
    folder = DevelopmentAuthority(tmp_path).server()
    (folder / "ca.pem").write_bytes((folder / "ca.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    with pytest.raises(IdentityError, match=r"ca\.pem holds a certificate of no CA"):
        server_module.load_credentials(folder)


async def test_an_expired_certificate_is_told(codec, tmp_path, monkeypatch):
    monkeypatch.setattr(authority_module, "_LIFE", timedelta(minutes=-1))
    with pytest.raises(IdentityError, match="expired on"):
        await start_server(orchestrator(codec), DevelopmentAuthority(tmp_path).server(), "localhost", 0)
