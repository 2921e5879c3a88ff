"""The gRPC server: mutual TLS, one stream a session, health and graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from edgedraft.errors import EdgedraftError, IdentityError, InvalidInput, Overloaded, VerifierUnavailable
from edgedraft.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, SERVICE_NAME, decode_client_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.orchestrator import Orchestrator, SessionHandle

logger = logging.getLogger(__name__)

RETRY_AFTER_KEY: Final = "edgedraft-retry-after-ms"
FIELD_KEY: Final = "edgedraft-field"
_DEVICE_URI: Final = re.compile(r"spiffe://edgedraft/tenant/([A-Za-z0-9._-]+)/device/([A-Za-z0-9._-]+)")
_SAN_KEY: Final = "x509_subject_alternative_name"

Context = Any  # grpc.aio.ServicerContext is generic in ways that its own stubs leave open


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as its certificate says."""

    tenant: str
    device: str


class RunningServer:
    """A server that takes connections.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, server: grpc.aio.Server, service: VerifierService, status: health.HealthServicer, port: int):
        self._server = server
        self._service = service
        self._health = status
        self.port = port

    async def engine_died(self) -> None:
        """Wait until the engine has died; returns then, with readiness turned off."""
        await self._service.orchestrator.engine_died()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Drain: no new sessions, live ones are asked to go and may take `grace` seconds; then everything ends."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._service.orchestrator.drain(grace)
        await self._server.stop(0.2)
        await self._service.orchestrator.close()

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)


async def start_server(orchestrator: Orchestrator, tls: Path, host: str, port: int) -> RunningServer:
    """Start the engine and listen.

    Args:
        orchestrator: Shares the engine.
        tls: Folder with `key.pem`, `cert.pem` and `ca.pem`.
        host: Address to listen on.
        port: Port; 0 takes a free one.

    Raises:
        IdentityError: The TLS files cannot be read.
        InvalidInput: The port cannot be had.
        ModelError: The target cannot be loaded.
    """
    credentials = load_credentials(tls)
    await orchestrator.start()
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
        ]
    )
    service = VerifierService(orchestrator)
    status = health.HealthServicer()
    server.add_generic_rpc_handlers((service.handler(),))
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        await orchestrator.close()
        raise InvalidInput("port", f"{address} cannot be listened on", "choose another, or 0 for a free one") from error
    await server.start()
    running = RunningServer(server, service, status, bound)
    await running._set_health(health_pb2.HealthCheckResponse.SERVING)
    return running


class VerifierService:
    """The two methods of `edgedraft.v1.Verifier`, on raw bytes: frames are checked before they are used."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self.orchestrator = orchestrator

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
        await self._peer(context)
        try:
            pb.DescribeRequest.FromString(request)
        except Exception as error:  # noqa: BLE001  protobuf raises its own; whatever it is, the request is bad
            await _abort(context, InvalidInput("request", f"is no DescribeRequest ({type(error).__name__})", "mend it"))
        answer = self.orchestrator.describe()
        answer.protocol = PROTOCOL_VERSION
        answer.version = version("edgedraft")
        return answer.SerializeToString()

    async def verify(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """One session."""
        peer = await self._peer(context)
        try:
            handle = await self._open(requests, peer)
        except EdgedraftError as error:
            await _abort(context, error)
        reader = asyncio.create_task(_read(requests, handle), name="edgedraft-reader")
        try:
            async for frame in _until(reader, handle):
                yield frame.SerializeToString()
        except EdgedraftError as error:
            await _abort(context, error)
        except Exception as error:  # noqa: BLE001  a fault of ours must not reach other sessions, nor say what it saw
            await _abort(context, error)
        finally:
            handle.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _open(self, requests: AsyncIterator[bytes], peer: Peer) -> SessionHandle:
        first = await anext(aiter(requests), None)
        if first is None:
            raise InvalidInput("frame", "is missing", "send Open first")
        frame = decode_client_frame(first)
        if not frame.HasField("open"):
            raise InvalidInput("frame", "is not an Open", "send Open first")
        return await self.orchestrator.open(frame.open, peer.tenant, peer.device)

    async def _peer(self, context: Context) -> Peer:
        """Tenant and device from the certificate, the only place where they count."""
        for name in context.auth_context().get(_SAN_KEY, ()):
            match = _DEVICE_URI.fullmatch(name.decode("utf-8", "replace"))
            if match is not None:
                return Peer(match.group(1), match.group(2))
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no device; enrol this device")
        raise AssertionError("abort returned")


async def _read(requests: AsyncIterator[bytes], handle: SessionHandle) -> None:
    async for data in requests:
        handle.receive(decode_client_frame(data))


async def _until(reader: asyncio.Task[None], handle: SessionHandle) -> AsyncIterator[pb.ServerFrame]:
    """The session's frames, unless the reader fails first."""
    frames = handle.frames()
    try:
        while True:
            pending = asyncio.ensure_future(anext(frames, None))
            try:
                await asyncio.wait({pending, reader}, return_when=asyncio.FIRST_COMPLETED)
                if reader.done() and not pending.done() and reader.exception() is None:
                    # The device has nothing more to say; it may still listen.
                    await asyncio.wait({pending})
                if reader.done() and reader.exception() is not None:
                    reader.result()
                frame = await pending
            finally:
                pending.cancel()
            if frame is None:
                return
            yield frame
    finally:
        await frames.aclose()


async def _abort(context: Context, error: Exception) -> NoReturn:
    """End the call with the status that the error stands for."""
    metadata: tuple[tuple[str, str], ...] = ()
    match error:
        case InvalidInput():
            code, text, metadata = grpc.StatusCode.INVALID_ARGUMENT, str(error), ((FIELD_KEY, error.field),)
        case Overloaded():
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
            if error.retry_after is not None:
                metadata = ((RETRY_AFTER_KEY, str(round(error.retry_after * 1000))),)
        case VerifierUnavailable():
            code, text = grpc.StatusCode.UNAVAILABLE, str(error)
        case _:
            incident = secrets.token_hex(4)
            logger.error("internal error", exc_info=error, extra={"incident": incident})
            code, text = grpc.StatusCode.INTERNAL, f"internal error {incident}; tell the operator this number"
    await context.abort(code, text, metadata)
    raise AssertionError("abort returned")


def load_credentials(tls: Path) -> grpc.ServerCredentials:
    """The server's side of mutual TLS: clients must have a certificate of the CA.

    Raises:
        IdentityError: A file cannot be read.
    """
    try:
        key, certificate, ca = ((tls / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
    except OSError as error:
        raise IdentityError(
            f"{error.filename} cannot be read ({error.strerror}); make one with `edgedraft-verifier dev-ca`"
        ) from error
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)
