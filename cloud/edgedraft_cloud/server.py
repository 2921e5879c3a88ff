"""The gRPC server: mutual TLS, one stream a session, health and graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio
from cryptography import x509
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc

from edgedraft.errors import (
    EdgedraftError,
    IdentityError,
    InvalidInput,
    Overloaded,
    Unauthenticated,
    VerifierUnavailable,
)
from edgedraft.wire import (
    DEVICE_URI,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    SERVICE_NAME,
    decode_client_frame,
)
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.health import SAN_KEY, HealthService
from edgedraft_cloud.live import SessionHandle
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.shaping import Outlet
from edgedraft_cloud.tenants import Tenant, TokenBucket

logger = logging.getLogger(__name__)

STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
FIELD_KEY: Final = "edgedraft-field"
LEAVE_SECONDS: Final = 0.5
"""How long the last frames may take to get out when the server stops."""
OPEN_SECONDS: Final = 30.0
"""How long a stream may stay open without its first frame."""
OPENING_STREAMS: Final = 256
"""Streams of one tenant that may be open without a first frame."""
DEVICE_OPENING_STREAMS: Final = 128
"""The same of one device, so that it cannot take all of its tenant's; a thousand sessions begun at once stay below."""
REFUSALS_PER_SECOND: Final = 10
"""Refused sessions of one device in the long run; beyond, its next streams are made to wait."""
REFUSALS_BURST: Final = 100
MOST_REFUSED: Final = 1024
"""Devices whose refusals are remembered, the latest ones."""
FILL_SECONDS: Final = 600.0
"""How long a stream goes on at most, to fill its span, when its session is over."""
MOST_DETAIL: Final = 1000
"""Bytes of an error's text that go out: gRPC breaks a stream whose trailers are too long."""
WRITE_SECONDS: Final = 30.0
"""How long a device may let a frame wait that it has no room for; beyond that its stream is broken, not its session."""
FRAMES_PER_SECOND: Final = 200
"""Frames that are taken from one stream in the long run; who floods is made to wait."""
FRAMES_BURST: Final = 400

Context = Any  # grpc.aio.ServicerContext is generic in ways that its own stubs leave open
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as its certificate says."""

    tenant: str
    device: str


class RunningServer:
    """A server that takes connections. Made by `start_server`; `stop` must be called at the end.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, server: grpc.aio.Server, orchestrator: Orchestrator, health: HealthService, port: int) -> None:
        self._server = server
        self._orchestrator = orchestrator
        self._health = health
        self._watch = asyncio.create_task(self._follow_engine(), name="edgedraft-readiness")
        self.port = port

    async def engine_given_up(self) -> None:
        """Wait until the engine has died for good; readiness is off then."""
        await asyncio.shield(self._watch)

    async def stop(self, grace: float) -> None:
        """Take no new sessions, let live ones finish for `grace` seconds, ask the rest to go, and end everything."""
        self._watch.cancel()
        await asyncio.wait([self._watch])
        self._health.serving(False)
        await self._orchestrator.drain(grace)
        await self._server.stop(LEAVE_SECONDS)
        await self._orchestrator.close()

    async def _follow_engine(self) -> None:
        async with aclosing(self._orchestrator.readiness()) as readiness:
            async for ready in readiness:
                self._health.serving(ready)


async def start_server(
    orchestrator: Orchestrator, tls: Path, host: str, port: int, metrics: Metrics | None = None
) -> RunningServer:
    """Listen, then start the engine: a port that is taken shows before a model is loaded, and readiness follows it.

    Args:
        orchestrator: Shares the engine.
        tls: Folder with `key.pem`, `cert.pem` and `ca.pem`.
        host: Address to listen on.
        port: Port; 0 takes a free one.
        metrics: Those of the orchestrator.

    Raises:
        IdentityError: The TLS files cannot be used.
        InvalidInput: The port cannot be had.
        ModelError: The target cannot be loaded.
    """
    credentials = load_credentials(tls)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_FRAME_BYTES + 1024),
            ("grpc.max_send_message_length", MAX_FRAME_BYTES + 1024),
            ("grpc.max_concurrent_streams", 256),
            ("grpc.so_reuseport", 0),
            # A phone that vanished without a word is noticed within the sum of both.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            # Two minutes by default, in which who says nothing holds a file of this process.
            ("grpc.server_handshake_timeout_ms", 10_000),
        ]
    )
    service = VerifierService(orchestrator, Metrics() if metrics is None else metrics)
    health = HealthService(("", SERVICE_NAME))
    server.add_generic_rpc_handlers((service.handler(),))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise InvalidInput("port", f"{address} cannot be listened on", "choose another, or 0 for a free one") from error
    await server.start()
    try:
        await orchestrator.start()
    except BaseException:
        await server.stop(None)
        await orchestrator.close()
        raise
    return RunningServer(server, orchestrator, health, bound)


class VerifierService:
    """The two methods of `edgedraft.v1.Verifier`, on raw bytes: frames are checked before they are used.

    Args:
        orchestrator: Takes in the sessions.
        metrics: Counts the streams that are refused before their first frame.
    """

    def __init__(self, orchestrator: Orchestrator, metrics: Metrics) -> None:
        self._orchestrator = orchestrator
        self._metrics = metrics
        self._opening: Counter[str | Peer] = Counter()
        self._filling: Counter[str] = Counter()
        self._refusals: OrderedDict[Peer, TokenBucket] = OrderedDict()

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods as gRPC takes them."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Verify": grpc.stream_stream_rpc_method_handler(self.verify),
                "Describe": grpc.unary_unary_rpc_method_handler(self.describe),
            },
        )

    async def describe(self, request: bytes, context: Context) -> bytes:
        """What is served here."""
        peer = await _peer(context)
        if not _is_describe_request(request):
            error = InvalidInput("request", "is no DescribeRequest of edgedraft.v1", "use a client of this protocol")
            _end(context, error, peer)
            return b""  # not sent
        answer = self._orchestrator.describe()
        answer.protocol = PROTOCOL_VERSION
        answer.version = version("edgedraft")
        return answer.SerializeToString()

    async def verify(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """One session: what goes wrong in it ends it, and touches no other."""
        peer = await _peer(context)
        incoming = cast("AsyncGenerator[bytes, None]", aiter(requests))
        try:
            await self._serve(incoming, context, peer)
        except Exception as error:  # noqa: BLE001  nothing may get past this session
            _end(context, error, peer)
        finally:
            # It holds its last message, and by way of gRPC's reader itself.
            await incoming.aclose()

    async def _serve(self, requests: AsyncIterator[bytes], context: Context, peer: Peer) -> None:
        handle, shaping = await self._open(requests, peer)
        outlet = Outlet(shaping, partial(_write, context))
        reader = asyncio.create_task(_read(requests, handle), name="edgedraft-reader")
        try:
            async with aclosing(handle.frames()) as frames:
                await outlet.send(frames)
            handle.close()  # its room is free while the rest of the span is filled
            await self._fill(outlet, handle.live.tenant)
        finally:
            # Also where the device is gone: gRPC cancels this task then.
            handle.close()
            reader.cancel()
            await asyncio.wait([reader])

    async def _open(self, requests: AsyncIterator[bytes], peer: Peer) -> tuple[SessionHandle, pb.Shaping]:
        """Take in the session that a stream begins with; of what opened it, only the shaping is kept."""
        wait = self._wait_to_open(peer)
        try:
            # While it has no session, it holds memory that no limit of sessions counts.
            with _counted(self._opening, peer, peer.tenant):
                if wait > 0:
                    # Not read, its first frame stays in the device's own buffers, by HTTP/2's flow control.
                    await asyncio.sleep(wait)
                opening = await _opening(requests)
            handle = await self._orchestrator.open(opening, peer.tenant, peer.device)
        except EdgedraftError:
            self._note_refusal(peer)
            raise
        shaping = pb.Shaping()
        shaping.CopyFrom(opening.shaping)  # a part of the message would hold the whole
        return handle, shaping

    def _wait_to_open(self, peer: Peer) -> float:
        """Seconds that a new stream has to wait before its first frame is read."""
        limits = (DEVICE_OPENING_STREAMS, peer, "device"), (OPENING_STREAMS, peer.tenant, "tenant")
        for most, who, kind in limits:
            if self._opening[who] >= most:
                self._metrics.refused(peer.tenant, "opening")
                raise Overloaded(f"{most} streams of this {kind} are open without a first frame", OPEN_SECONDS)
        refusals = self._refusals.get(peer)
        wait = 0.0 if refusals is None else refusals.wait(time.monotonic())
        if wait > OPEN_SECONDS:
            self._metrics.refused(peer.tenant, "opening")
            raise Overloaded("this device was refused too often; mend what it asks for", wait)
        return wait

    def _note_refusal(self, peer: Peer) -> None:
        refusals = self._refusals.setdefault(peer, TokenBucket(REFUSALS_PER_SECOND, REFUSALS_BURST))
        refusals.take(1, time.monotonic())
        self._refusals.move_to_end(peer)
        if len(self._refusals) > MOST_REFUSED:
            self._refusals.popitem(last=False)

    async def _fill(self, outlet: Outlet, tenant: Tenant) -> None:
        """Fill the span of a session that is over: of as many as its tenant may have sessions, and not for ever."""
        if self._filling[tenant.name] >= tenant.max_sessions:
            return
        with _counted(self._filling, tenant.name), suppress(TimeoutError):
            async with asyncio.timeout(FILL_SECONDS):
                await outlet.fill()


@contextmanager
def _counted(counts: Counter[Key], *keys: Key) -> Iterator[None]:
    """Count something in while it lasts; what counts nothing is not kept."""
    counts.update(keys)
    try:
        yield
    finally:
        counts.subtract(keys)
        for key in keys:
            if not counts[key]:
                del counts[key]


def _is_describe_request(data: bytes) -> bool:
    try:
        pb.DescribeRequest.FromString(data)
    except DecodeError:
        return False
    return True


async def _opening(requests: AsyncIterator[bytes]) -> pb.Open:
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            first = await anext(aiter(requests), None)
    except TimeoutError as error:
        raise InvalidInput("frame", f"did not come within {OPEN_SECONDS:g} s", "send Open first") from error
    if first is None:
        raise InvalidInput("frame", "is missing", "send Open first")
    frame = decode_client_frame(first)
    if not frame.HasField("open"):
        raise InvalidInput("frame", "is not an Open", "send Open first")
    return frame.open


async def _write(context: Context, frame: bytes) -> None:
    """Hand over a frame; a device that takes none would keep its session beyond every limit."""
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await context.write(frame)
    except TimeoutError as error:
        raise VerifierUnavailable(f"the device has taken no frame for {WRITE_SECONDS:g} s") from error


async def _read(requests: AsyncIterator[bytes], handle: SessionHandle) -> None:
    """Take the device's frames; a bad one ends the session where its frames are written."""
    pace = TokenBucket(FRAMES_PER_SECOND, FRAMES_BURST)
    try:
        async for data in requests:
            handle.receive(decode_client_frame(data))
            pace.take(1, time.monotonic())
            wait = pace.wait(time.monotonic())
            if wait > 0:
                # Not read, its frames stay in the device's own buffers, by HTTP/2's flow control.
                await asyncio.sleep(wait)
    except Exception as error:  # noqa: BLE001  not swallowed: the writing side raises it
        handle.fail(error)


async def _peer(context: Context) -> Peer:
    """Tenant and device from the certificate, the only place where they count."""
    for name in context.auth_context().get(SAN_KEY, ()):
        match = DEVICE_URI.fullmatch(name.decode("utf-8", "replace"))
        if match is not None:
            return Peer(match["tenant"], match["device"])
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no device; enrol this device")
    raise AssertionError("abort returned")


def _end(context: Context, error: Exception, peer: Peer) -> None:
    """Let the call end with the status of an error, and log that without its text, which may quote tokens.

    Not by `context.abort`: gRPC keeps what that raises, which keeps the call, and so each refused message until a
    collection.
    """
    metadata: list[tuple[str, str | bytes]] = []
    facts = {"tenant": peer.tenant, "device": peer.device}
    # By bytes, each of which takes up to three in a trailer.
    text = str(error).encode(errors="replace")[:MOST_DETAIL].decode(errors="ignore")
    match error:
        case InvalidInput():
            code = grpc.StatusCode.INVALID_ARGUMENT
            metadata.append((FIELD_KEY, error.field))
            logger.info("request rejected", extra={**facts, "field": error.field})
        case Overloaded():
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            logger.info("session refused", extra=facts)
        case Unauthenticated():
            code = grpc.StatusCode.PERMISSION_DENIED
            logger.info("tenant refused", extra=facts)
        case VerifierUnavailable():
            code = grpc.StatusCode.UNAVAILABLE
            logger.info("session lost", extra=facts)
        case _:
            incident = secrets.token_hex(4)
            logger.error("internal error", exc_info=error, extra={**facts, "incident": incident})
            code, text = grpc.StatusCode.INTERNAL, f"internal error {incident}; tell the operator this number"
    _drop_frames(error)
    if isinstance(error, Overloaded | VerifierUnavailable) and error.retry_after is not None:
        metadata.append((STATUS_DETAILS_KEY, _retry_details(code, text, error.retry_after)))
    context.set_code(code)
    context.set_details(text)
    context.set_trailing_metadata(tuple(metadata))


def _drop_frames(error: BaseException) -> None:
    """Free the frames that an error has passed: they hold it in turn, and a device's message, until a collection."""
    origin: BaseException | None = error
    while origin is not None and origin.__traceback__ is not None:  # once each, if one should be its own origin
        origin.__traceback__ = None
        origin = origin.__cause__ or origin.__context__


def _retry_details(code: grpc.StatusCode, text: str, seconds: float) -> bytes:
    """The standard error details (google.rpc.Status) that say when to try again."""
    status = status_pb2.Status(code=code.value[0], message=text)
    delay = error_details_pb2.RetryInfo()
    delay.retry_delay.FromMilliseconds(round(seconds * 1000))
    status.details.add().Pack(delay)
    details: bytes = status.SerializeToString()
    return details


def load_credentials(tls: Path) -> grpc.ServerCredentials:
    """The server's side of mutual TLS: clients must have a certificate of the CA.

    Raises:
        IdentityError: A file cannot be read, is damaged, out of date or does not match the others.
    """
    paths = [tls / name for name in ("key.pem", "cert.pem", "ca.pem")]
    cure = "make one with `edgedraft-verifier dev-ca`, or have it issued anew"
    try:
        key, certificate, ca = (path.read_bytes() for path in paths)
    except OSError as error:
        raise IdentityError(f"{error.filename} cannot be read ({error.strerror}); {cure}") from error
    try:
        check = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        check.load_cert_chain(paths[1], paths[0], password=partial(_no_passphrase, paths[0]))
        check.load_verify_locations(paths[2])
        until = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        authorities = [_is_authority(each) for each in x509.load_pem_x509_certificates(ca)]
    except (ssl.SSLError, ValueError) as error:
        raise IdentityError(f"the TLS files in {tls} cannot be used ({error}); {cure}") from error
    if not all(authorities):
        raise IdentityError(f"{paths[2]} holds a certificate of no CA; put there the one that signs the devices' own")
    if until < datetime.now(UTC):
        raise IdentityError(f"{paths[1]} expired on {until:%Y-%m-%d %H:%M} UTC; {cure}")
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)


def _no_passphrase(key: Path) -> str:
    raise IdentityError(f"{key} is encrypted and nobody is here to unlock it; store it without a passphrase")


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return True  # one of before there were extensions
