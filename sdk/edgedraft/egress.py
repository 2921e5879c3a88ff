"""The one gate: every byte that leaves the device for a verifier passes here, and nowhere else.

No other module may hand bytes to a transport; a test holds the code to that.
"""

from __future__ import annotations

from edgedraft.errors import ProtocolError
from edgedraft.report import Traffic
from edgedraft.transport.base import Stream, Transport
from edgedraft.wire import PROTOCOL_VERSION, decode_describe_response, decode_server_frame
from edgedraft.wire import verify_pb2 as pb


class GatedStream:
    """One session's way out, and back.

    Args:
        stream: Carries the frames.
        traffic: Counts them.
    """

    def __init__(self, stream: Stream, traffic: Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    async def send(self, frame: pb.ClientFrame) -> None:
        """Let a frame out.

        Raises:
            VerifierError: The stream is broken or was refused.
        """
        data = frame.SerializeToString()
        self._traffic.bytes_up += len(data)
        self._traffic.frames_up += 1
        await self._stream.send(data)

    async def receive(self) -> pb.ServerFrame | None:
        """Wait for a frame of the verifier; None once it has ended the stream.

        Raises:
            VerifierError: The stream is broken or was refused.
            ProtocolError: The frame is none of this protocol.
        """
        data = await self._stream.receive()
        if data is None:
            return None
        self._traffic.bytes_down += len(data)
        self._traffic.frames_down += 1
        return decode_server_frame(data)

    async def close(self) -> None:
        """End the stream at once."""
        await self._stream.close()


class Gate:
    """The way to one verifier.

    Args:
        transport: Carries what the gate lets through.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def describe(self) -> pb.DescribeResponse:
        """Ask the verifier what it serves.

        Raises:
            VerifierError: It could not be reached or refused.
            ProtocolError: It speaks another version of the protocol.
        """
        request = pb.DescribeRequest(protocol=PROTOCOL_VERSION)
        answer = decode_describe_response(await self._transport.describe(request.SerializeToString()))
        if answer.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the verifier speaks protocol {answer.protocol}, this SDK {PROTOCOL_VERSION}; update the older side"
            )
        return answer

    async def open_stream(self, traffic: Traffic) -> GatedStream:
        """Start a session's stream.

        Args:
            traffic: Counts what passes.

        Raises:
            VerifierError: The verifier could not be reached.
        """
        return GatedStream(await self._transport.open_stream(), traffic)

    async def close(self) -> None:
        """End all streams and the connection."""
        await self._transport.close()
