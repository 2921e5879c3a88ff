"""The server's own life: readiness, devices that vanish or say nothing, stopping, and what it needs to start."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from toy import scripted_info, toy_target

import edgedraft_cloud.server as server_module
from edgedraft.errors import IdentityError, InvalidInput, ModelNotFound, RequestRejected, VerifierUnavailable
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION, SERVICE_NAME, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud import authority as authority_module
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import start_server

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
async def test_readiness_follows_the_engine(bench, service):
    async with channel(bench) as to_server:
        stub = health_pb2_grpc.HealthStub(to_server)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        assert (await watch.read()).status == SERVING
        bench.engine.die()
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


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
        with pytest.raises(VerifierUnavailable, match="still loading"):
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


async def test_a_device_that_vanishes_gives_its_place_back(bench, caplog):
    async with WanProxy("127.0.0.1", bench.server.port) as proxy, live_session(bench, proxy.port):
        assert bench.orchestrator.live_sessions == 1
        await proxy.cut()
        async with asyncio.timeout(30):
            await bench.orchestrator.idle()
    assert "internal error" not in caplog.messages


async def test_a_stream_without_a_first_frame_is_not_kept(bench, monkeypatch):
    monkeypatch.setattr(server_module, "OPEN_SECONDS", 0.0)
    async with channel(bench) as to_server:
        call = to_server.stream_stream(f"/{SERVICE_NAME}/Verify")()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "frame: did not come within 0 s; send Open first"


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


async def test_an_expired_certificate_is_told(codec, tmp_path, monkeypatch):
    monkeypatch.setattr(authority_module, "_LIFE", timedelta(minutes=-1))
    with pytest.raises(IdentityError, match="expired on"):
        await start_server(orchestrator(codec), DevelopmentAuthority(tmp_path).server(), "localhost", 0)
