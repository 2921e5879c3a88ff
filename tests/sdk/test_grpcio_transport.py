"""The gRPC transport against real servers over real TLS: each way to fail has its own words, and none hides another."""

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from edgedraft.errors import (
    Cancelled,
    InvalidInput,
    Overloaded,
    RequestRejected,
    Unauthenticated,
    VerifierUnavailable,
)
from edgedraft.identity import Identity
from edgedraft.transport.grpcio import GrpcTransport, translate
from edgedraft.wire import MAX_FRAME_BYTES, SERVICE_NAME
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud import authority as authority_module
from edgedraft_cloud.authority import DevelopmentAuthority


def read_pair(folder):
    return [(folder / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem")]


def status_details(*details):
    """Trailing metadata with the standard details of an error."""
    status = Status()
    for detail in details:
        status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def retry_after(seconds, nanos=0):
    return status_details(RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos)))


@asynccontextmanager
async def serving(verify, folder):
    """A gRPC server of its own behind mutual TLS; yields its port."""
    key, certificate, ca = read_pair(folder)
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(verify)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {"Verify": handler}),))
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(port, identity, **settings):
    transport = GrpcTransport(f"localhost:{port}", identity, **settings)
    try:
        yield transport
    finally:
        await transport.close()


@pytest.fixture(scope="module")
def identity(certificates):
    return Identity.load(certificates.device("acme", "phone-1"))


async def echo(requests, context):
    async for data in requests:
        yield data


async def exchange(transport):
    """One frame there and back."""
    stream = await transport.open_stream()
    await stream.send(b"x")
    return await stream.receive()


async def failure(port, identity, kind, **settings):
    """How it fails, by Describe as well as on a stream."""
    async with connected(port, identity, **settings) as transport:
        with pytest.raises(kind) as of_stream:
            await exchange(transport)
        with pytest.raises(kind) as of_describe:
            await transport.describe(b"")
    assert str(of_stream.value) == str(of_describe.value)
    return str(of_stream.value)


# ---------------------------------------------------------------- frames


async def test_frames_go_both_ways_and_the_end_is_told(certificates, identity):
    async def three(requests, context):
        for _ in range(3):
            yield await anext(aiter(requests))

    frames = [b"", b"\0\xff", bytes(MAX_FRAME_BYTES)]
    async with serving(three, certificates.server()) as port, connected(port, identity) as transport:
        stream = await transport.open_stream()
        for frame in frames:
            await stream.send(frame)
        assert [await stream.receive() for _ in frames] == frames
        assert await stream.receive() is None
        with pytest.raises(VerifierUnavailable, match="has ended this session"):
            await stream.send(b"late")


async def test_streams_share_a_connection_and_end_by_themselves(certificates, identity):
    async with serving(echo, certificates.server()) as port, connected(port, identity) as transport:
        first, second = await transport.open_stream(), await transport.open_stream()
        await first.close()
        await first.close()
        await second.send(b"x")
        assert await second.receive() == b"x"
        with pytest.raises(Cancelled):
            await first.receive()
        with pytest.raises(Cancelled):
            await first.send(b"x")


async def test_what_was_sent_before_a_good_end_arrives_although_the_device_is_still_sending(certificates, identity):
    async def three(requests, context):
        await anext(aiter(requests))
        for frame in (b"a", b"b", b"c"):
            yield frame

    async with serving(three, certificates.server()) as port, connected(port, identity) as transport:
        for _ in range(30):
            stream = await transport.open_stream()
            with pytest.raises(VerifierUnavailable, match="has ended this session"):
                await send_without_end(stream, and_receive=3)
            assert await stream.receive() is None


async def send_without_end(stream, and_receive=0):
    async def receive():
        return [await stream.receive() for _ in range(and_receive)]

    receiving = asyncio.create_task(receive())
    try:
        while True:
            await stream.send(bytes(100))
    finally:
        assert await receiving == [b"a", b"b", b"c"][:and_receive]


async def test_a_refusal_keeps_its_reason_although_the_device_is_still_sending(certificates, identity):
    async def full(requests, context):
        await anext(aiter(requests))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "all 4 sessions are taken", retry_after(2, 500_000_000))
        yield b""

    async with serving(full, certificates.server()) as port, connected(port, identity) as transport:
        for _ in range(30):
            stream = await transport.open_stream()
            with pytest.raises(Overloaded) as caught:
                await send_without_end(stream)
            assert str(caught.value) == "the verifier has no room: all 4 sessions are taken; try again in 2.5 s"
            assert caught.value.retry_after == 2.5
            with pytest.raises(Overloaded, match="all 4 sessions"):
                await stream.receive()


async def test_a_transport_belongs_to_the_loop_that_uses_it_first(certificates, identity):
    async with serving(echo, certificates.server()) as port:
        # Made where no loop runs, as by a module that makes its client when it is imported.
        transport = await asyncio.to_thread(GrpcTransport, f"localhost:{port}", identity)
        assert await exchange(transport) == b"x"
        with pytest.raises(InvalidInput, match="another event loop"):
            await asyncio.to_thread(asyncio.run, transport.open_stream())
        await transport.close()


async def test_a_frame_that_is_too_large_is_named(certificates, identity):
    async with serving(echo, certificates.server()) as port, connected(port, identity) as transport:
        stream = await transport.open_stream()
        with contextlib.suppress(RequestRejected):  # whether the write itself sees it is a matter of time
            await stream.send(bytes(MAX_FRAME_BYTES + 2000))
        with pytest.raises(RequestRejected, match="frame is too large"):
            await stream.receive()


async def test_a_call_that_the_verifier_cancels_does_not_look_like_our_own_cancelling(certificates, identity):
    async def cancel(requests, context):
        await context.abort(grpc.StatusCode.CANCELLED, "")
        yield b""

    async with serving(cancel, certificates.server()) as port, connected(port, identity) as transport:
        with pytest.raises(VerifierUnavailable, match="cancelled the session"):
            await exchange(transport)


@pytest.mark.parametrize("end", ["stream", "transport"])
async def test_closing_wakes_who_is_receiving(certificates, identity, end):
    async with serving(echo, certificates.server()) as port, connected(port, identity) as transport:
        stream = await transport.open_stream()
        await stream.send(b"x")
        await stream.receive()
        receiving = asyncio.create_task(stream.receive())
        await asyncio.sleep(0)
        await {"stream": stream, "transport": transport}[end].close()
        with pytest.raises(Cancelled):
            await receiving
        with pytest.raises(Cancelled):
            await stream.send(b"x")


async def test_closing_wakes_who_waits_for_a_description(identity):
    async with silent_server() as port, connected(port, identity) as transport:
        describing = asyncio.create_task(transport.describe(b""))
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(Cancelled):
            await describing


async def test_cancelling_the_task_stays_a_cancellation(certificates, identity):
    async with serving(echo, certificates.server()) as port, connected(port, identity) as transport:
        stream = await transport.open_stream()
        receiving = asyncio.create_task(stream.receive())
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving


# ---------------------------------------------------------------- who is there


async def test_a_certificate_of_another_ca_is_not_accepted(certificates, identity, tmp_path):
    other = Identity.load(DevelopmentAuthority(tmp_path).device("acme", "phone-1"))
    async with serving(echo, certificates.server()) as port:
        text = await failure(port, replace(other, ca=identity.ca), Unauthenticated)
    assert "does not accept this device's certificate" in text


async def test_an_expired_certificate_is_not_accepted(certificates, identity, monkeypatch):
    monkeypatch.setattr(authority_module, "_LIFE", timedelta(minutes=-1))
    key, certificate, _ = read_pair(certificates.device("acme", "expired"))
    async with serving(echo, certificates.server()) as port:
        text = await failure(port, replace(identity, key=key, certificate=certificate), Unauthenticated)
    assert "does not accept this device's certificate" in text


async def test_no_certificate_is_not_accepted(certificates, identity):
    async with serving(echo, certificates.server()) as port:
        credentials = grpc.ssl_channel_credentials(identity.ca)
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/x/y")(b"")
    error = translate(caught.value.code(), caught.value.details(), (), "v:1", greeted=False)
    assert isinstance(error, Unauthenticated)
    assert "(missing, expired, or of another CA)" in str(error)


async def test_a_server_of_another_ca_is_not_trusted(identity, tmp_path):
    other = DevelopmentAuthority(tmp_path)
    async with serving(echo, other.server()) as port:
        text = await failure(port, identity, Unauthenticated)
    assert "cannot be trusted" in text


async def test_an_expired_server_is_not_trusted(identity, certificates, monkeypatch):
    monkeypatch.setattr(authority_module, "_LIFE", timedelta(minutes=-1))
    async with serving(echo, certificates.server(["expired.example"])) as port:
        text = await failure(port, identity, Unauthenticated)
    assert "expired" in text


async def test_a_server_of_another_name_is_not_trusted(identity, certificates):
    async with serving(echo, certificates.server()) as port:
        text = await failure(port, identity, Unauthenticated, server_name="verifier.example")
    assert "for another name" in text


async def test_a_server_may_have_another_name_than_its_address(identity, certificates):
    async with (
        serving(echo, certificates.server(["verifier.example"])) as port,
        connected(port, identity, server_name="verifier.example") as transport,
    ):
        assert await exchange(transport) == b"x"


# ---------------------------------------------------------------- whether it is there


async def test_a_port_where_nothing_listens(identity):
    assert "nothing listens at localhost:1;" in await failure(1, identity, VerifierUnavailable)


async def test_a_verifier_of_another_kind(identity, certificates):
    async with serving(echo, certificates.server()) as port, connected(port, identity) as transport:
        with pytest.raises(RequestRejected, match="is no Edgedraft verifier, or of another version"):
            await transport.describe(b"")


async def test_a_server_without_tls(identity):
    async def talk(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        text = await failure(server.sockets[0].getsockname()[1], identity, VerifierUnavailable)
    assert "does not speak TLS" in text


@asynccontextmanager
async def silent_server():
    """Takes connections and says nothing; yields its port."""
    connections = []
    server = await asyncio.start_server(lambda *ends: connections.append(ends), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for _, writer in connections:
        writer.transport.abort()


async def test_a_server_that_says_nothing_is_not_waited_for_without_end(identity):
    async with silent_server() as port, connected(port, identity, timeout=0.2) as transport:
        with pytest.raises(VerifierUnavailable, match=r"did not answer within 0\.2 s"):
            await transport.open_stream()
        with pytest.raises(VerifierUnavailable, match="did not answer in time"):
            await transport.describe(b"")


async def test_a_link_that_is_cut_in_mid_stream_and_comes_back(identity, certificates):
    async with (
        serving(echo, certificates.server()) as port,
        WanProxy("127.0.0.1", port) as proxy,
        connected(proxy.port, identity) as transport,
    ):
        stream = await transport.open_stream()
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        await proxy.cut()
        with pytest.raises(VerifierUnavailable, match="was lost"):
            await stream.receive()
        with pytest.raises(VerifierUnavailable, match="was lost"):
            await stream.send(b"x")
        assert await exchange(transport) == b"x"


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("code", "details", "kind", "words"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "draft.block: is 0", RequestRejected, "draft.block: is 0"),
        (grpc.StatusCode.PERMISSION_DENIED, "tenant is closed", Unauthenticated, "tenant is closed"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", VerifierUnavailable, "did not answer in time"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "full", Overloaded, "full; try again later"),
        (grpc.StatusCode.INTERNAL, "internal error 1f", VerifierUnavailable, "internal error 1f"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "DNS resolution failed for nowhere.invalid:7443",
            VerifierUnavailable,
            "the name in v:1 cannot be found",
        ),
        (grpc.StatusCode.UNAVAILABLE, "whatever", VerifierUnavailable, "was lost (whatever)"),
    ],
)
def test_every_status_has_its_error_and_words(code, details, kind, words):
    error = translate(code, details, (), "v:1", greeted=True)
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
@pytest.mark.parametrize(
    ("metadata", "seconds"),
    [
        (retry_after(1, 500_000_000), 1.5),
        (retry_after(0), 0.0),
        (retry_after(-1), None),
        (status_details(pb.GoAway()), None),
        (status_details(), None),
        ((("grpc-status-details-bin", b"\xff"),), None),
        ((("grpc-status-details-bin", "soon"),), None),
        ((), None),
    ],
)
def test_a_retry_time_is_read_where_there_is_one(code, metadata, seconds):
    error = translate(code, "full", metadata, "v:1", greeted=True)
    assert error.retry_after == seconds
    assert ("again in" in str(error)) == (seconds is not None)


def test_details_that_cannot_be_read_are_passed_over():
    status = Status(details=[Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\xff")])
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    error = translate(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", metadata, "v:1", greeted=True)
    assert error.retry_after is None


def test_a_closed_socket_is_a_lost_link_once_it_has_answered():
    error = translate(grpc.StatusCode.UNAVAILABLE, "Socket closed", (), "v:1", greeted=True)
    assert type(error) is VerifierUnavailable


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "dns:///x:1", "a b:1", "::1:7443"]
)
def test_an_address_that_is_none_is_refused(identity, address):
    with pytest.raises(InvalidInput, match="verifier: is"):
        GrpcTransport(address, identity)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_is_none_is_refused(identity, timeout):
    with pytest.raises(InvalidInput, match="timeout: is"):
        GrpcTransport("host:1", identity, timeout=timeout)
