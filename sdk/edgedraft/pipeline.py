"""The loop of one generation: draft, send, take verdicts, all three at once.

Drafting never waits for a verdict unless the window is full; sending never holds up drafting; a verdict is applied the
moment it comes. They meet only in the draft log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from edgedraft.core.log import Block, DraftLog
from edgedraft.egress import Gate, GatedStream
from edgedraft.errors import Overloaded, ProtocolError, VerifierError, VerifierUnavailable
from edgedraft.events import Drafted, Event, FinishReason, Interrupted, Resumed, Revised, Verified
from edgedraft.report import Meter
from edgedraft.resume import Resuming
from edgedraft.transcript import Transcript
from edgedraft.wire import verify_pb2 as pb
from edgedraft.worker import DraftContext

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
        prompt: Token ids of the prompt as the drafter reads it.
        log: The draft log, empty; as many draft tokens as it puts in a block are gathered while others are in flight.
        context: The drafter's sequence.
        gate: The way to the verifier.
        transcript: Turns tokens into text.
        meter: Gathers the figures.
        emit: Takes every event but `Finished`, in order.
        draft_limit: Tokens, prompt included, that the drafter can hold.
        vocab_size: Ids that the drafter knows; it must be able to read what the target settles.
        resume_seconds: How long to look for a verifier that was lost; 0: not at all.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        opening: pb.Open,
        prompt: Sequence[int],
        log: DraftLog,
        context: DraftContext,
        gate: Gate,
        transcript: Transcript,
        meter: Meter,
        emit: Callable[[Event], None],
        draft_limit: int,
        vocab_size: int,
        resume_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opening = opening
        self._prompt = list(prompt)
        self._log = log
        self._context = context
        self._gate = gate
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
        """Tell the verifier that no more is needed, and give it a moment to take that in."""
        if self._stream is None:
            return
        # If it has gone already or does not answer, there is nothing left to tell it.
        with contextlib.suppress(VerifierError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._stream.send(pb.ClientFrame(close=pb.Close(reason=reason)))
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
                    self._stream = await self._gate.open_stream(self._meter.traffic)
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
            opening.resume_tokens.extend(self._log.settled)
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

    async def _draft(self) -> NoReturn:
        while True:
            while not self._may_draft():
                self._changed_for_drafting.clear()
                self._changed_for_sending.set()
                await self._changed_for_drafting.wait()
            await self._draft_one()

    def _may_draft(self) -> bool:
        return (
            self._log.room > 0 and len(self._prompt) + len(self._log.settled) + len(self._log.path) < self._draft_limit
        )

    async def _draft_one(self) -> None:
        stamp = self._log.stamp
        self._meter.overlap.update(self._clock(), busy=True)
        candidates = await self._context.next(self._prompt + self._log.tokens)
        now = self._clock()
        self._meter.overlap.update(now, busy=False)
        self._meter.drafted_token(now)
        if stamp != self._log.stamp or self._log.room < 1:
            self._meter.wasted += 1
            return
        node = self._log.add(candidates.ids[0], candidates.probs[0])
        self._show_draft(node.position, node.token, node.probability)
        self._changed_for_sending.set()

    def _show_draft(self, position: int, token: int, probability: float) -> None:
        self._emit(Drafted(position, token, self._transcript.draft(token), probability))

    # ------------------------------------------------------------ sending

    async def _send(self, stream: GatedStream) -> NoReturn:
        with contextlib.suppress(VerifierError):
            while True:
                while (frame := self._next_frame()) is None:
                    self._changed_for_sending.clear()
                    await self._changed_for_sending.wait()
                await stream.send(frame)
        # A broken stream shows on both sides; the receiving side knows why.
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")

    def _next_frame(self) -> pb.ClientFrame | None:
        """The frame to send now, or None where it pays to wait for more."""
        log = self._log
        ready = log.unsent >= log.max_block or log.in_flight == 0 or not self._may_draft()
        block = log.take_block() if log.unsent and ready else None
        settled = len(log.settled)
        if block is None and settled - self._acknowledged < ACKNOWLEDGE_EVERY:
            return None
        self._acknowledged = settled
        frame = pb.ClientFrame(settled=settled)
        if block is not None:
            frame.draft.CopyFrom(encode_block(block))
            now = self._clock()
            self._sent_at[block.number] = now
            self._meter.overlap.update(now, waiting=True)
        return frame

    # ------------------------------------------------------------ verdicts

    async def _receive(self, stream: GatedStream) -> FinishReason:
        while (frame := await stream.receive()) is not None:
            match frame.WhichOneof("frame"):
                case "verdict":
                    if self._take(frame.verdict, self._clock()):
                        return FinishReason.STOP
                case "finished":
                    return _finish_reason(frame.finished)
                case "go_away":
                    raise self._gone(frame.go_away)
                case "opened":
                    raise ProtocolError("the verifier opened the session twice")
                case _:
                    continue
        raise _ended()

    def _take(self, verdict: pb.Verdict, now: float) -> bool:
        """Apply a verdict; whether a stop string was completed."""
        log, meter = self._log, self._meter
        self._time(verdict, now)
        log.window = _granted("a window", verdict.window)
        largest = max(verdict.tokens, default=0)
        if largest >= self._vocab_size:
            raise ProtocolError(f"the verifier settled token {largest}, the vocabulary has {self._vocab_size} ids")
        settlement = log.settle(verdict.position, verdict.tokens)
        meter.settled_tokens(now, len(settlement.tokens))
        meter.matched += settlement.matched
        meter.missed += settlement.missed
        meter.wasted += settlement.dropped - len(settlement.revived)
        meter.rollbacks += settlement.rolled_back
        meter.overlap.update(now, waiting=log.in_flight > 0)
        if settlement.cut is not None:
            self._emit(Revised(settlement.cut, settlement.dropped))
        text = self._transcript.settle(settlement.tokens)
        if settlement.tokens:
            self._emit(Verified(settlement.position, settlement.tokens, text))
        if self._transcript.stopped:
            return True
        first = len(log.settled) + len(log.path) - len(settlement.revived)
        for offset, token in enumerate(settlement.revived):
            self._show_draft(first + offset, token, log.path[offset].probability)
        self._changed_for_drafting.set()
        self._changed_for_sending.set()
        return False

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
    draft = pb.Draft(epoch=block.epoch, position=block.position, block=block.number, tokens=block.tokens)
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
