"""The loop of one generation in every mode that has a verifier: draft, send, take verdicts, all three at once.

Drafting never waits for a verdict unless the window is full; sending never holds up drafting; a verdict is applied the
moment it comes. They meet only in the draft log. A decider says what is drafted, and whether a verdict is the last word
or a proposal that waits until the device has a word of its own there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from edgedraft.core.draft import Block, Settlement
from edgedraft.core.log import DraftLog
from edgedraft.deciders import Decider
from edgedraft.egress import Gate, GatedStream
from edgedraft.errors import Overloaded, ProtocolError, VerifierError, VerifierUnavailable
from edgedraft.events import DecidedBy, Drafted, Event, FinishReason, Interrupted, Resumed, Revised, Verified
from edgedraft.privacy.guard import Guard
from edgedraft.privacy.ledger import Page
from edgedraft.privacy.pace import HeldBack
from edgedraft.report import Meter
from edgedraft.resume import Resuming
from edgedraft.transcript import Transcript
from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb

T = TypeVar("T")

ACKNOWLEDGE_EVERY: Final = 4
"""Settled tokens after which an acknowledgement goes out by itself; drafts carry one anyway."""
CLOSE_SECONDS: Final = 2.0
"""How long a finished generation waits for the verifier to take its leave."""

_REASONS: Final = {
    pb.Finished.REASON_STOP: FinishReason.STOP,
    pb.Finished.REASON_LENGTH: FinishReason.LENGTH,
}


class Pipeline:
    """Runs one generation against a verifier.

    Args:
        opening: The `Open` frame of a new session.
        decider: Chooses what is drafted; whether it has the last word is the log's too.
        log: The draft log, empty; as many draft tokens as it puts in a block are gathered while others are in flight.
        gate: The way to the verifier.
        page: The generation's part of the ledger.
        guard: Looks at every frame before it leaves; None where everything may.
        transcript: Turns tokens into text.
        meter: Gathers the figures.
        emit: Takes every event but `Finished`, in order.
        draft_limit: Tokens behind the prompt that the drafter can hold.
        vocab_size: Ids that the drafter knows; it must be able to read what the target settles.
        resume_seconds: How long to look for a verifier that was lost; 0: not at all.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        opening: pb.Open,
        decider: Decider,
        log: DraftLog,
        gate: Gate,
        page: Page,
        guard: Guard | None,
        transcript: Transcript,
        meter: Meter,
        emit: Callable[[Event], None],
        draft_limit: int,
        vocab_size: int,
        resume_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opening = opening
        self._decider = decider
        self._log = log
        self._gate = gate
        self._page = page
        self._guard = guard
        self._transcript = transcript
        self._meter = meter
        self._emit = emit
        self._draft_limit = draft_limit
        self._vocab_size = vocab_size
        self._resume_seconds = resume_seconds
        self._clock = clock
        self._stream: GatedStream | None = None
        self._resume_token = b""
        self._lost: str | None = None  # why the verifier is away, while it is
        self._finished = False  # the verifier has said that this was all
        self._acknowledged = 0
        self._sent_at: dict[int, float] = {}
        self._changed_for_drafting = asyncio.Event()
        self._changed_for_sending = asyncio.Event()
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """End the generation; `run` returns soon."""
        self._cancelled.set()

    async def run(self) -> FinishReason:
        """Generate until the end; a verifier that is lost meanwhile is looked for, and drafting goes on.

        Raises:
            VerifierError: The verifier refused, failed or stayed away; what is settled stays in the log.
            ProtocolError: The verifier broke the protocol.
            DrafterError: The drafter failed.
        """
        verifying = Resuming(
            self._speak,
            seconds=self._resume_seconds,
            curable=self._may_resume,
            progress=lambda: len(self._log.settled),
            on_outage=self._interrupt,
        )
        try:
            return await _first_of(verifying.run(), self._draft(), self._wait_for_cancel())
        finally:
            self._meter.overlap.update(self._clock(), waiting=False, busy=False)

    async def leave(self, reason: pb.Close.Reason) -> None:
        """Tell the verifier that no more is needed, unless it has said so, and give it a moment to take that in."""
        if self._stream is None or self._finished:
            return
        frame = pb.ClientFrame(settled=len(self._log.settled))
        # Where its text is over too, it only waits to hear that the device agrees.
        if not (self._decider.last_word and self._log.wire_ended):
            frame.close.reason = reason
        # If it has gone already or does not answer, there is nothing left to tell it.
        with contextlib.suppress(VerifierError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._stream.send(frame)
                while await self._stream.receive() is not None:
                    pass

    async def close(self) -> None:
        """End the stream, if there is one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    # ------------------------------------------------------------ one stream after another

    async def _speak(self, limit: float | None) -> FinishReason:
        """Open a stream, within `limit` seconds, and follow it until the generation ends or the stream breaks."""
        try:
            try:
                async with asyncio.timeout(limit):
                    self._stream = await self._gate.open_stream(self._meter.traffic, self._page, self._guard)
                    await self._open(self._stream)
            except TimeoutError as error:
                raise VerifierUnavailable(
                    f"the verifier did not come back within {self._resume_seconds:g} s: {self._lost}"
                ) from error
            return await _first_of(self._receive(self._stream), self._send(self._stream))
        except VerifierError:
            await self.close()
            raise

    def _may_resume(self, error: BaseException) -> bool:
        return bool(self._resume_token) and isinstance(error, (VerifierUnavailable, Overloaded))

    def _interrupt(self, error: BaseException) -> None:
        if self._lost is None:
            self._meter.overlap.update(self._clock(), waiting=False)
            self._emit(Interrupted(str(error)))
        self._lost = str(error)

    async def _open(self, stream: GatedStream) -> None:
        """Open the session, or take it up again; there is no window before that."""
        opening = pb.Open()
        opening.CopyFrom(self._opening)
        if self._lost is not None:
            opening.resume_token = self._resume_token
            opening.resume_position = len(self._log.settled)
            opening.resume_tokens.extend(self._log.settled_wire)
        sent_at = self._clock()
        await stream.send(pb.ClientFrame(open=opening))
        while (frame := await stream.receive()) is not None:
            match frame.WhichOneof("frame"):
                case "opened":
                    self._meter.round_trip(self._clock() - sent_at)
                    self._take_opened(frame.opened)
                    return
                case "go_away":
                    raise self._gone(frame.go_away)
                case None:
                    continue
                case kind:
                    raise ProtocolError(f"the verifier sent {kind!r} before it had opened the session")
        raise _ended()

    def _take_opened(self, opened: pb.Opened) -> None:
        log = self._log
        log.window = _granted("a window", opened.window)
        log.max_block = min(log.max_block, _granted("blocks", opened.max_block))
        self._resume_token = opened.resume_token
        if self._lost is not None:
            if opened.settled < len(log.settled):
                raise ProtocolError(
                    f"the verifier took the session up at position {opened.settled}, {len(log.settled)} are settled"
                )
            log.reopen(opened.epoch, opened.last_block)
            self._sent_at.clear()
            self._lost = None
            self._meter.resumes += 1
            self._emit(Resumed())
        self._changed_for_drafting.set()

    def _gone(self, go_away: pb.GoAway) -> VerifierUnavailable:
        self._resume_token = go_away.resume_token or self._resume_token
        return VerifierUnavailable(
            "the verifier is shutting down; try again in a moment", go_away.retry_after_ms / 1000 or None
        )

    # ------------------------------------------------------------ drafting

    async def _draft(self) -> FinishReason:
        while True:
            while not self._may_draft():
                self._changed_for_drafting.clear()
                self._changed_for_sending.set()
                await self._changed_for_drafting.wait()
            reason = await self._draft_one()
            if reason is not None:
                return reason

    def _may_draft(self) -> bool:
        return self._log.room > 0 and len(self._log.settled) + len(self._log.path) < self._draft_limit

    async def _draft_one(self) -> FinishReason | None:
        log, stamp = self._log, self._log.stamp
        self._meter.overlap.update(self._clock(), busy=True)
        choice = await self._decider.choose(log)
        now = self._clock()
        self._meter.overlap.update(now, busy=False)
        self._meter.drafted_token(now)
        if stamp != log.stamp or log.room < 1:
            self._meter.wasted += 1
            return None
        node = log.add(choice.token, choice.probability, given=choice.given, held=choice.held, takes=choice.takes)
        self._show_draft(node.position, node.token, node.probability)
        self._changed_for_sending.set()
        return self._apply(log.resolve(), now) if log.proposed else None

    def _show_draft(self, position: int, token: int, probability: float) -> None:
        self._emit(Drafted(position, token, self._transcript.draft(token), probability))

    # ------------------------------------------------------------ sending

    async def _send(self, stream: GatedStream) -> NoReturn:
        with contextlib.suppress(VerifierError):
            while True:
                while (ready := self._next_frame()) is None:
                    self._changed_for_sending.clear()
                    await self._changed_for_sending.wait()
                await stream.send(*ready)
        # A broken stream shows on both sides; the receiving side knows why.
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")

    def _next_frame(self) -> tuple[pb.ClientFrame, HeldBack] | None:
        """The frame to send now and what was held back from it, or None where it pays to wait for more."""
        log, more = self._log, self._may_draft()
        ready = log.unsent >= log.max_block or log.in_flight == 0 or not more
        block = log.take_block(lambda node: self._decider.may_leave(node, log)) if log.unsent and ready else None
        settled = len(log.settled)
        # Without drafts, each acknowledgement counts: the cloud runs only so far ahead of them.
        if block is None and settled - self._acknowledged < (ACKNOWLEDGE_EVERY if more else 1):
            return None
        self._acknowledged = settled
        frame = pb.ClientFrame(settled=settled)
        if block is None:
            return frame, ()
        frame.draft.CopyFrom(encode_block(block))
        now = self._clock()
        self._sent_at[block.number] = now
        self._meter.overlap.update(now, waiting=True)
        if block.cut is not None:
            self._revise(block.cut, block.dropped)
        return frame, block.held

    def _revise(self, cut: int, dropped: int) -> None:
        """What was drafted from a position on is another text now, because something of it might not leave."""
        void = dropped + len(self._log.settled) + len(self._log.path) - cut
        if not void:
            return
        self._emit(Revised(cut, void))
        self._transcript.revise(cut)
        self._meter.wasted += dropped
        for node in self._log.path[cut - len(self._log.settled) :]:
            self._show_draft(node.position, node.token, node.probability)
        self._changed_for_drafting.set()

    # ------------------------------------------------------------ verdicts

    async def _receive(self, stream: GatedStream) -> FinishReason:
        while (frame := await stream.receive()) is not None:
            match frame.WhichOneof("frame"):
                case "verdict":
                    reason = self._take(frame.verdict, self._clock())
                    if reason is not None:
                        return reason
                case "finished":
                    if self._decider.last_word:
                        raise ProtocolError("the verifier finished before the device had agreed to the end")
                    self._finished = True
                    return _finish_reason(frame.finished)
                case "go_away":
                    raise self._gone(frame.go_away)
                case "opened":
                    raise ProtocolError("the verifier opened the session twice")
                case _:
                    continue
        raise _ended()

    def _take(self, verdict: pb.Verdict, now: float) -> FinishReason | None:
        """Take a verdict; why that was the end, if it was."""
        self._time(verdict, now)
        self._log.window = _granted("a window", verdict.window)
        largest = max(verdict.tokens, default=0)
        if largest >= self._vocab_size:
            raise ProtocolError(f"the verifier settled token {largest}, the vocabulary has {self._vocab_size} ids")
        return self._apply(self._log.settle(verdict.position, verdict.tokens, verdict.block), now)

    def _apply(self, settlement: Settlement, now: float) -> FinishReason | None:
        """Tell of what was settled; why that was the end, if it was."""
        log, meter = self._log, self._meter
        meter.settled(now, settlement)
        meter.overlap.update(now, waiting=log.in_flight > 0)
        if settlement.cut is not None:
            self._emit(Revised(settlement.cut, settlement.dropped))
        for run in settlement.runs():
            text = self._transcript.settle(run.tokens)
            self._emit(Verified(run.position, run.tokens, text, DecidedBy.DEVICE if run.given else DecidedBy.TARGET))
            if self._transcript.stopped:
                return FinishReason.STOP
        if self._decider.last_word and log.ended:
            return FinishReason.STOP if log.stopped else FinishReason.LENGTH
        first = len(log.settled) + len(log.path) - len(settlement.revived)
        for offset, token in enumerate(settlement.revived):
            self._show_draft(first + offset, token, log.path[offset].probability)
        self._changed_for_drafting.set()
        self._changed_for_sending.set()
        return None

    def _time(self, verdict: pb.Verdict, now: float) -> None:
        meter = self._meter
        meter.rounds += 1
        meter.verify_seconds += verdict.verify_us / 1e6
        sent_at = self._sent_at.get(verdict.block)
        if sent_at is not None:
            meter.round_trip(now - sent_at - verdict.held_us / 1e6)
        for block in [block for block in self._sent_at if block <= verdict.block]:
            del self._sent_at[block]

    async def _wait_for_cancel(self) -> FinishReason:
        await self._cancelled.wait()
        return FinishReason.CANCELLED


def encode_block(block: Block) -> pb.Draft:
    """A block as it goes on the wire."""
    draft = pb.Draft(
        epoch=block.epoch,
        position=block.position,
        block=block.number,
        tokens=block.tokens,
        given=given_bits(block.given),
    )
    if block.parent is not None:
        draft.parent = block.parent
    return draft


async def _first_of(main: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, T]) -> T:
    """What the first one to end returns or raises, `main` where several have; the rest is cancelled."""
    tasks = [asyncio.ensure_future(each) for each in (main, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _granted(what: str, tokens: int) -> int:
    if tokens < 1:
        raise ProtocolError(f"the verifier granted {what} of 0 tokens")
    return tokens


def _ended() -> VerifierUnavailable:
    return VerifierUnavailable("the verifier ended the stream before the answer was complete; try again")


def _finish_reason(finished: pb.Finished) -> FinishReason:
    reason = _REASONS.get(finished.reason)
    if reason is None:
        raise ProtocolError(f"the verifier finished for an unknown reason ({finished.reason})")
    return reason
