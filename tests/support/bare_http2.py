"""A device that speaks HTTP/2 by itself, to do what gRPC's own client never would: to take nothing at all."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header(name: str, value: str) -> bytes:
    """As HPACK takes it without any table (RFC 7541, section 6.2.2)."""
    return b"\0" + b"".join(bytes([len(part)]) + part for part in (name.encode(), value.encode()))


@asynccontextmanager
async def deaf_call(port: int, identity: Path, path: str, message: bytes) -> AsyncIterator[None]:
    """A call with one message, of a device whose window for what comes back is zero."""
    context = ssl.create_default_context(cafile=identity / "ca.pem")
    context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    headers = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    writer.write(_frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)))
    writer.write(_frame(_SETTINGS, _ACK, 0, b""))
    writer.write(_frame(_HEADERS, _END_HEADERS, 1, b"".join(_header(*pair) for pair in headers.items())))
    writer.write(_frame(_DATA, _END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message))
    try:
        await writer.drain()
        yield
    finally:
        writer.transport.abort()
