"""The loop of one generation: draft, send, take verdicts, all three at once.

Drafting never waits for a verdict unless the window is full; sending never holds up drafting; a verdict is applied the
moment it comes. They meet only in the draft log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from edgedraft.core.log import Block, DraftLog
from edgedraft.egress import GatedStream
from edgedraft.errors import ProtocolError, VerifierError, VerifierUnavailable
from edgedraft.events import Drafted, Event, FinishReason, Revised, Verified
from edgedraft.report import Meter
from edgedraft.transcript import Transcript
from edgedraft.wire import verify_pb2 as pb
from edgedraft.worker import DraftContext

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
        opening: The `Open` frame.
        prompt: Token ids of the prompt as the drafter reads it.
        log: The draft log, empty.
        context: The drafter's sequence.
        stream: The way to the verifier.
        transcript: Turns tokens into text.
        meter: Gathers the figures.
        emit: Takes every event but `Finished`, in order.
        block_size: Draft tokens to gather into a frame while others are in flight.
        draft_limit: Tokens, prompt included, that the drafter can hold.
        vocab_size: Ids that the drafter knows; it must be able to read what the target settles.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        opening: pb.Open,
        prompt: Sequence[int],
        log: DraftLog,
        context: DraftContext,
        stream: GatedStream,
        transcript: Transcript,
        meter: Meter,
        emit: Callable[[Event], None],
        block_size: int,
        draft_limit: int,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opening = opening
        self._prompt = list(prompt)
        self._log = log
        self._context = context
        self._stream = stream
        self._transcript = transcript
        self._meter = meter
        self._emit = emit
        self._block_size = block_size
        self._draft_limit = draft_limit
        self._vocab_size = vocab_size
        self._clock = clock
        self._acknowledged = 0
        self._sent_at: dict[int, float] = {}
        self._changed_for_drafting = asyncio.Event()
        self._changed_for_sending = asyncio.Event()
        self._opened = asyncio.Event()
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """End the generation; `run` returns soon."""
        self._cancelled.set()

    async def run(self) -> FinishReason:
        """Generate until the end.

        Raises:
            VerifierError: The verifier refused, failed or went away; what is settled stays in the log.
            ProtocolError: The verifier broke the protocol.
            DrafterError: The drafter failed.
        """
        opened_at = self._clock()
        await self._stream.send(pb.ClientFrame(open=self._opening))
        receiving = asyncio.ensure_future(self._receive(opened_at))
        others: list[Coroutine[Any, Any, FinishReason]] = [self._draft(), self._send(), self._wait_for_cancel()]
        tasks = [receiving, *(asyncio.ensure_future(other) for other in others)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = receiving if receiving in done else done.pop()
            if isinstance(first.exception(), VerifierError) and first is not receiving:
                # A broken stream shows on both sides; the receiving side knows why.
                await asyncio.wait([receiving])
                first = receiving
            return first.result()
        finally:
            self._meter.overlap.update(self._clock(), waiting=False, busy=False)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self, reason: pb.Close.Reason) -> None:
        """Tell the verifier that no more is needed, and give it a moment to take that in."""
        # If it has gone already or does not answer, there is nothing left to tell it.
        with contextlib.suppress(VerifierError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._stream.send(pb.ClientFrame(close=pb.Close(reason=reason)))
                while await self._stream.receive() is not None:
                    pass

    # ------------------------------------------------------------ drafting

    async def _draft(self) -> FinishReason:
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

    async def _send(self) -> FinishReason:
        # Not before the verifier has taken the session: there is no window before that.
        await self._opened.wait()
        while True:
            while (frame := self._next_frame()) is None:
                self._changed_for_sending.clear()
                await self._changed_for_sending.wait()
            await self._stream.send(frame)

    def _next_frame(self) -> pb.ClientFrame | None:
        """The frame to send now, or None where it pays to wait for more."""
        log = self._log
        ready = log.unsent >= self._block_size or log.in_flight == 0 or not self._may_draft()
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

    async def _receive(self, opened_at: float) -> FinishReason:
        while (frame := await self._stream.receive()) is not None:
            now = self._clock()
            match frame.WhichOneof("frame"):
                case "opened":
                    self._meter.round_trip(now - opened_at)
                    self._log.window = _window(frame.opened.window)
                    self._opened.set()
                case "verdict":
                    if self._take(frame.verdict, now):
                        return FinishReason.STOP
                case "finished":
                    return _finish_reason(frame.finished)
                case "go_away":
                    raise VerifierUnavailable("the verifier is shutting down; try again in a moment")
                case _:
                    continue
        raise VerifierUnavailable("the verifier ended the stream before the answer was complete; try again")

    def _take(self, verdict: pb.Verdict, now: float) -> bool:
        """Apply a verdict; whether a stop string was completed."""
        log, meter = self._log, self._meter
        self._time(verdict, now)
        log.window = _window(verdict.window)
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


def _window(granted: int) -> int:
    if granted < 1:
        raise ProtocolError("the verifier granted a window of 0 tokens")
    return granted


def _finish_reason(finished: pb.Finished) -> FinishReason:
    reason = _REASONS.get(finished.reason)
    if reason is None:
        raise ProtocolError(f"the verifier finished for an unknown reason ({finished.reason})")
    return reason
