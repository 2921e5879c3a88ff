"""The one gate: every byte that leaves the device for a verifier passes here, and nowhere else.

No other module may hand bytes to a transport; a test holds the code to that. On a stream it is one function,
`GatedStream._let_out`: the guard looks at the frame a last time, it is padded, written into the ledger, and leaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from edgedraft.errors import EdgedraftError, LeakError, PrivacyError, ProtocolError
from edgedraft.privacy.guard import Guard
from edgedraft.privacy.ledger import Ledger, Page
from edgedraft.privacy.pace import HeldBack, Pacer
from edgedraft.privacy.shaping import Shaping
from edgedraft.prompt import Mode
from edgedraft.report import Traffic
from edgedraft.transport.base import Stream, Transport
from edgedraft.wire import PROTOCOL_VERSION, Beat, BeatMaker, decode_describe_response, decode_server_frame, pad
from edgedraft.wire import verify_pb2 as pb


class GatedStream:
    """One session's way out, and back. Made by `Gate.open_stream`.

    Args:
        stream: Carries the frames.
        page: The generation's part of the ledger.
        guard: Knows what must not leave; None where everything may.
        shaping: Sizes and times of frames.
        traffic: Counts them.
        beat: Starts the beat of a pace.
        clock: Seconds.
        see_off: Runs what is left to do once the app has what it wanted.
    """

    def __init__(
        self,
        stream: Stream,
        page: Page,
        guard: Guard | None,
        shaping: pb.Shaping,
        traffic: Traffic,
        *,
        beat: BeatMaker,
        clock: Callable[[], float],
        see_off: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._stream = stream
        self._page = page
        self._guard = guard
        self._shaping = shaping
        self._sizes = tuple(shaping.sizes)
        self._traffic = traffic
        self._beat = beat
        self._clock = clock
        self._see_off = see_off
        self._in_order = asyncio.Lock()
        self._pacer: Pacer | None = None
        self._closing = False  # the device has said that it needs no more
        self._finished = False  # the verifier has said that this was all
        self._broken = False
        self._left = False

    async def send(self, frame: pb.ClientFrame, held: HeldBack = ()) -> None:
        """Let a frame out, at a beat where there is a pace.

        Args:
            frame: Its padding is set here, and the shaping of an `Open`.
            held: What was held back from it, for the ledger.

        Raises:
            VerifierError: The stream is broken or was refused.
            PrivacyError: The frame must not leave.
        """
        self._closing |= frame.HasField("close")
        if self._pacer is not None:
            await self._pacer.send(frame, held)
            return
        if frame.HasField("open"):
            frame.open.shaping.CopyFrom(self._shaping)
        await self._let_out(frame, held)
        if self._shaping.beat_ms:
            beat = self._beat(self._shaping.beat_ms / 1000)
            self._pacer = Pacer(self._let_out, beat, self._shaping.span_beats, self._traffic, self._clock)

    async def receive(self) -> pb.ServerFrame | None:
        """Wait for a frame of the verifier that says something; None once it has nothing more to say.

        Raises:
            VerifierError: The stream is broken or was refused.
            ProtocolError: The frame is none of this protocol.
            LedgerError: The ledger cannot be written.
        """
        # With a pace the stream goes on behind the last word, which is no matter for the app.
        while not (self._finished and self._pacer is not None):
            frame = await self._take_in()
            if frame is None or frame.WhichOneof("frame") is not None:
                return frame
        return None

    async def close(self) -> None:
        """End the stream; where there is a pace, in the background at the end of its span."""
        if self._pacer is None or self._pacer.is_over or self._broken:
            await self._end()
        elif not self._left:
            self._left = True
            self._see_off(self._fill_span(self._pacer))

    async def _let_out(self, frame: pb.ClientFrame, held: HeldBack) -> None:
        """The one way out."""
        async with self._in_order:
            self._check(frame)
            bare, is_open = frame.ByteSize(), frame.HasField("open")
            # An opening frame holds the prompt, whose length a smaller size would tell.
            pad(frame, self._sizes[-1:] if is_open else self._sizes)
            data = frame.SerializeToString()
            empty = frame.WhichOneof("frame") is None and not frame.settled
            self._page.record("up", frame, data, held)
            self._traffic.sent(len(data), len(data) - bare, empty)
            await self._stream.send(data)

    def _check(self, frame: pb.ClientFrame) -> None:
        """The guard's last look: what it would not let through here should have been held back long before."""
        if frame.HasField("open") and pb.Mode.Name(frame.open.mode) != f"MODE_{self._page.mode.upper()}":
            raise PrivacyError(f"a frame of another mode than {self._page.mode} was about to leave")
        if self._guard is None:
            return
        text = self._page.text_of
        if frame.HasField("open"):
            self._guard.check_text(frame.open.model, "model")
            self._guard.check_public(text(frame.open.prompt), "prompt")
            self._guard.check_text(text(frame.open.limits.stop_token_ids), "stop_token_ids")
            if not self._page.was_on_wire(frame.open.resume_tokens):
                raise LeakError("a token that never left", "a resumed session", "report this: the SDK must not do that")
        elif frame.HasField("draft"):
            # Halves of characters at its ends belong to words that the frame is cut out of.
            self._guard.check_text(text(frame.draft.tokens).strip("\ufffd"), "draft", cut=True)

    async def _take_in(self) -> pb.ServerFrame | None:
        try:
            data = await self._stream.receive()
        except EdgedraftError:
            self._broken = True
            raise
        if data is None:
            self._broken = True
            return None
        frame = decode_server_frame(data)
        self._page.record("down", frame, data, ())
        kind = frame.WhichOneof("frame")
        self._traffic.received(len(data), len(frame.padding), kind is None)
        self._finished |= kind in ("finished", "go_away")
        return frame

    async def _fill_span(self, pacer: Pacer) -> None:
        """Beat on until the verifier ends the stream at the end of the span, or should have."""

        async def until_the_end() -> None:
            # Nobody waits for this any more. Where the stream breaks, or nothing may leave, it is over as well.
            with suppress(EdgedraftError):
                if not (self._closing or self._finished):
                    await self.send(pb.ClientFrame(close=pb.Close(reason=pb.Close.REASON_CANCELLED)))
                while await self._take_in() is not None:
                    pass

        pacer.leave()
        tasks = [asyncio.ensure_future(until_the_end()), asyncio.ensure_future(pacer.ended())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end()

    async def _end(self) -> None:
        if self._pacer is not None:
            await self._pacer.stop()
        await self._stream.close()


class Gate:
    """The way to one verifier.

    Args:
        transport: Carries what the gate lets through.
        ledger: Takes an entry for every frame; None makes one in memory.
        shaping: Sizes and times of frames in all modes; None is what each mode has by default.
        beat: Starts the beat of a pace.
        clock: Seconds.
    """

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger | None = None,
        shaping: Shaping | None = None,
        *,
        beat: BeatMaker = Beat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._shaping = shaping
        self._beat = beat
        self._clock = clock
        self._leaving: set[asyncio.Task[None]] = set()
        self.ledger = ledger if ledger is not None else Ledger()

    async def describe(self) -> pb.DescribeResponse:
        """Ask the verifier what it serves.

        Raises:
            VerifierError: It could not be reached or refused.
            ProtocolError: It speaks another version of the protocol.
            LedgerError: The ledger cannot be written.
        """
        request = pb.DescribeRequest(protocol=PROTOCOL_VERSION)
        data = request.SerializeToString()
        self.ledger.record(None, "up", request, data, ())
        data = await self._transport.describe(data)
        answer = decode_describe_response(data)
        self.ledger.record(None, "down", answer, data, ())
        if answer.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the verifier speaks protocol {answer.protocol}, this SDK {PROTOCOL_VERSION}; update the older side"
            )
        return answer

    async def open_stream(self, traffic: Traffic, page: Page, guard: Guard | None = None) -> GatedStream:
        """Start a session's stream.

        Args:
            traffic: Counts what passes.
            page: The generation's part of the ledger, which knows its privacy mode.
            guard: Looks at every frame before it leaves; None in mode `open`, where everything may.

        Raises:
            VerifierError: The verifier could not be reached.
            PrivacyError: There is no guard in a mode that withholds something.
        """
        if guard is None and page.mode != Mode.OPEN:
            raise PrivacyError(f"a stream in mode {page.mode} has no guard")
        shaping = self._shaping if self._shaping is not None else Shaping.of_mode(page.mode)
        return GatedStream(
            await self._transport.open_stream(),
            page,
            guard,
            shaping.wire,
            traffic,
            beat=self._beat,
            clock=self._clock,
            see_off=self._see_off,
        )

    async def close(self) -> None:
        """Wait for the ends of spans where there is a pace, then end all streams and the connection."""
        try:
            while self._leaving:
                await asyncio.wait(self._leaving)
        finally:
            for task in self._leaving:
                task.cancel()
            await self._transport.close()

    def _see_off(self, rest: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(rest, name="edgedraft-span")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
