"""The gRPC transport over mutual TLS, on grpcio; it turns gRPC's errors into ours, with words that say what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from edgedraft.errors import (
    Cancelled,
    InvalidInput,
    Overloaded,
    RequestRejected,
    Unauthenticated,
    VerifierError,
    VerifierUnavailable,
)
from edgedraft.identity import Identity
from edgedraft.transport.base import Stream, Transport
from edgedraft.wire import DESCRIBE_METHOD, MAX_FRAME_BYTES, VERIFY_METHOD

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_DETAILS_KEY: Final = "grpc-status-details-bin"
"""Trailing metadata in which gRPC puts the standard details of an error, a `google.rpc.Status`."""


class GrpcTransport(Transport):
    """Speaks to one verifier.

    Args:
        address: `host:port`; an IPv6 address in brackets.
        identity: Key, certificate and CA.
        timeout: Seconds that connecting, or an answer to Describe, may take.
        server_name: Name in the verifier's certificate, if it is another than the host.

    Raises:
        InvalidInput: The address is not `host:port`, or the timeout not positive; or, later, it is used in another
            event loop than before.
    """

    def __init__(
        self, address: str, identity: Identity, *, timeout: float = 10.0, server_name: str | None = None
    ) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match.group(2)) < 65536:
            raise InvalidInput("verifier", f"is {address!r}", "write host:port, e.g. verifier.example:7443")
        if not timeout > 0:
            raise InvalidInput("timeout", f"is {timeout} s", "use more than 0")
        self._address = address
        self._timeout = timeout
        self._greeted = False
        self._closed = False
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MAX_FRAME_BYTES + 1024),
            ("grpc.max_send_message_length", MAX_FRAME_BYTES + 1024),
            # A phone's NAT forgets idle connections; a dead link shows within the sum of both.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.enable_retries", 0),
            # A connection of its own, and soon tried again: a phone's network comes and goes.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 5_000),
            # A proxy that the environment names cannot reach this machine's loopback.
            ("grpc.enable_http_proxy", 0 if match.group(1) in _LOOPBACK else 1),
        ]
        if server_name is not None:
            options.append(("grpc.ssl_target_name_override", server_name))
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        self._settings = credentials, options
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def describe(self, request: bytes) -> bytes:
        """Call Describe."""
        try:
            method: Any = self._connection().unary_unary(DESCRIBE_METHOD)
            answer: bytes = await method(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            metadata = tuple(error.trailing_metadata() or ())
            raise translate(error.code(), error.details() or "", metadata, self._address, self._greeted) from error
        except asyncio.CancelledError as error:
            if _cancels_this_task(error) or not self._closed:
                raise
            raise Cancelled("the connection was closed") from error
        self._greeted = True
        return answer

    async def open_stream(self) -> Stream:
        """Start a stream, and connect first where no connection stands."""
        method: Any = self._connection().stream_stream(VERIFY_METHOD)
        stream = _GrpcStream(self, method())
        try:
            async with asyncio.timeout(self._timeout):
                await stream.connected()
        except BaseException as error:
            await stream.close()
            if not isinstance(error, TimeoutError):
                raise
            raise VerifierUnavailable(
                f"{self._address} did not answer within {self._timeout:g} s; check the address and the network"
            ) from error
        return stream

    async def close(self) -> None:
        """End all streams and the connection."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    def _connection(self) -> grpc.aio.Channel:
        # Made at its first use: gRPC ties a channel to the event loop of that moment.
        loop = asyncio.get_running_loop()
        if self._channel is None:
            self._channel, self._loop = grpc.aio.secure_channel(self._address, *self._settings), loop
        if self._loop is not loop:
            raise InvalidInput("verifier", "was connected to in another event loop", "make a client in each loop")
        return self._channel


class _GrpcStream(Stream):
    """A stream whose reads and writes go on where who waits for them is cancelled.

    To cancel one ends the call, and with it what is still to be said on it. So whoever asks next gets what a read
    brings, and waits for a write to be out.
    """

    def __init__(self, transport: GrpcTransport, call: Any) -> None:
        self._transport = transport
        self._call = call
        self._reading: asyncio.Future[Any] | None = None
        self._writing: asyncio.Future[Any] | None = None
        self._closed = False

    async def connected(self) -> None:
        try:
            await self._call.wait_for_connection()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            if _cancels_this_task(error):
                raise
            raise await self._status() from error

    async def send(self, frame: bytes) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._call.done():
            raise await self._status()
        try:
            # Not `call.write`: where the call ends while a write is under way, that puts an INTERNAL of its own in
            # place of the status that the verifier sent, and drops frames not yet read (grpc/grpc#36066).
            self._writing = _unhindered(self._call._cython_call.send_serialized_message(frame))
            await asyncio.shield(self._writing)
        except grpc.aio.InternalError as error:
            raise await self._status() from error

    async def receive(self) -> bytes | None:
        if self._reading is None:
            self._reading = _unhindered(self._call.read())
        try:
            frame = await asyncio.shield(self._reading)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            if _cancels_this_task(error):
                raise
            raise await self._status() from error
        self._reading = None
        if frame is grpc.aio.EOF:
            if await self._call.code() is grpc.StatusCode.OK:
                return None
            raise await self._status()
        self._transport._greeted = True
        data: bytes = frame
        return data

    async def close(self) -> None:
        self._closed = True
        self._call.cancel()

    async def _status(self) -> VerifierError:
        """Why the call has ended; waits until that is known."""
        code, details = await self._call.code(), await self._call.details() or ""
        if code is grpc.StatusCode.OK:
            return VerifierUnavailable("the verifier has ended this session; open another")
        if code is grpc.StatusCode.CANCELLED and (self._closed or self._transport._closed):
            return Cancelled("the session was closed")
        metadata = await self._call.trailing_metadata() or ()
        return translate(code, details, metadata, self._transport._address, self._transport._greeted)


def _unhindered(awaitable: Awaitable[Any]) -> asyncio.Future[Any]:
    """Runs to its end, though perhaps nobody asks for its result."""
    future = asyncio.ensure_future(awaitable)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _cancels_this_task(error: BaseException) -> bool:
    """Whether a cancellation is meant for this task; grpcio raises CancelledError also where only the call has it."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def translate(
    code: grpc.StatusCode, details: str, metadata: Sequence[tuple[str, str | bytes]], address: str, greeted: bool
) -> VerifierError:
    """What a gRPC status means for the app.

    Args:
        code: The status.
        details: Its text.
        metadata: Trailing metadata.
        address: Of the verifier, for the message.
        greeted: Whether it has answered on this connection before.
    """
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.OUT_OF_RANGE:
            return RequestRejected(f"the verifier rejected the request: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return RequestRejected(f"{address} is no Edgedraft verifier, or of another version; check the address")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return RequestRejected(f"the frame is too large ({details}); shorten the prompt")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            after = _retry_after(metadata)
            when = "later" if after is None else f"in {after:g} s"
            return Overloaded(f"the verifier has no room: {details}; try again {when}", after)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return Unauthenticated(f"the verifier refused this device: {details}")
        case grpc.StatusCode.CANCELLED:
            return VerifierUnavailable("the verifier cancelled the session; try again")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return VerifierUnavailable(f"{address} did not answer in time; check the network, or try again")
        case grpc.StatusCode.UNAVAILABLE if (after := _retry_after(metadata)) is not None:
            return VerifierUnavailable(f"the verifier is not available: {details}; try again in {after:g} s", after)
        case grpc.StatusCode.UNAVAILABLE:
            return _unavailable(details, address, greeted)
        case _:
            return VerifierUnavailable(f"the verifier failed ({code.name}: {details}); try again")


def _retry_after(metadata: Sequence[tuple[str, str | bytes]]) -> float | None:
    """Seconds after which to try again, if the verifier has said so in a way that can be read."""
    packed = dict(metadata).get(_DETAILS_KEY)
    if not isinstance(packed, bytes):
        return None
    retry = RetryInfo()
    try:
        if not any(detail.Unpack(retry) for detail in Status.FromString(packed).details):
            return None
    except DecodeError:
        return None  # the status itself says enough
    seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return seconds if seconds >= 0 else None


def _unavailable(details: str, address: str, greeted: bool) -> VerifierError:
    """GRPC says UNAVAILABLE for everything from a wrong port to a refused certificate; its text tells them apart."""
    text = details.lower()
    if "certificate_verify_failed" in text or "certificate verify failed" in text or "hostname verification" in text:
        return Unauthenticated(
            f"the certificate of {address} cannot be trusted: it is expired, for another name, or not from this "
            "device's CA; check the address, or enrol again"
        )
    if "peer name" in text or "not in peer certificate" in text:
        return Unauthenticated(f"the certificate of {address} is for another name; check the address")
    if "connection refused" in text:
        return VerifierUnavailable(f"nothing listens at {address}; check host and port, and that the verifier runs")
    if "name resolution" in text or "dns resolution" in text or "domain name not found" in text:
        return VerifierUnavailable(f"the name in {address} cannot be found; check its spelling and the network")
    if "wrong_version_number" in text or "wrong version number" in text:
        return VerifierUnavailable(f"what listens at {address} does not speak TLS; check host and port")
    if not greeted and ("socket closed" in text or "handshake" in text or "connection reset" in text or "eof" in text):
        # TLS 1.3 refuses a client certificate after the handshake, so all that shows is a closed connection.
        return Unauthenticated(
            f"{address} closed the connection during the handshake: it does not accept this device's certificate "
            "(missing, expired, or of another CA), or is no Edgedraft verifier; enrol again, or check the address"
        )
    return VerifierUnavailable(f"the connection to {address} was lost ({details}); try again")
