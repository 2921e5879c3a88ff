"""What a transport must offer; `grpcio` and `memory` implement it. It carries bytes and never looks inside."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Stream(ABC):
    """One session: frames go both ways, in order, until either side ends it."""

    @abstractmethod
    async def send(self, frame: bytes) -> None:
        """Hand over one encoded `ClientFrame`. Only the gate may call this.

        It waits while the link is congested, and that may last until what has come is read: `receive` must go on.

        Raises:
            VerifierError: The stream is broken or was refused.
        """

    @abstractmethod
    async def receive(self) -> bytes | None:
        """Wait for one encoded `ServerFrame`; None once the verifier has ended the stream in good order.

        Raises:
            VerifierError: The stream is broken or was refused; the subclass says how.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the stream at once; may be called again."""


class Transport(ABC):
    """A way to one verifier; opened once, used for many streams."""

    @abstractmethod
    async def describe(self, request: bytes) -> bytes:
        """Call Describe with an encoded `DescribeRequest`; the encoded answer.

        Raises:
            VerifierError: It could not be reached or refused.
        """

    @abstractmethod
    async def open_stream(self) -> Stream:
        """Start a stream.

        Raises:
            VerifierError: The verifier could not be reached.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all streams and the connection; may be called again."""
