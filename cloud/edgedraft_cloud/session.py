"""One session of the verifier as a pure state machine: frames and outcomes in, works and verdicts out.

What breaks the protocol ends the session with `InvalidInput`; what is merely late does no harm:

| frame | what happens |
| --- | --- |
| a block that came before, or of an older epoch | dropped |
| a block behind a node that the target has left | dropped |
| a block at positions that are settled | compared; the tail behind what agrees is a draft like any other |
| an acknowledgement lower than an earlier one | ignored |
| a given token that contradicts a settled one, or one being settled | takes its place, and the engine begins again |
| the same where the settled one was acknowledged | `InvalidInput` |
| an acknowledgement or an epoch that no verdict can have caused | `InvalidInput` |
| a gap, an unknown parent, a repeated child, more than the window | `InvalidInput` |

Where the device may give tokens, a text that is over is so for good only once the device has acknowledged its end.

A device that lost its stream comes back with `resume`: what is settled stays, what was pending is sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import takewhile
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire import FrameLimits, check_draft, given_flags
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.draft_tree import DraftTree
from edgedraft_cloud.engines.base import Outcome, SessionId, Work
from edgedraft_cloud.habits import Habits

_MOST_US: Final = (1 << 32) - 1


class State(Enum):
    """Where a session stands."""

    PARKED = auto()
    """Nothing is under way in the engine."""
    WORKING = auto()
    """A work of it is under way."""
    ENDING = auto()
    """Its text is over, unless the device, which may give tokens, has another one for what it has not acknowledged."""
    FINISHED = auto()
    """Nothing more will happen."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a session may do.

    Attributes:
        frames: What one frame may hold.
        max_tokens: Settled tokens after which it finishes.
        context_room: Generated tokens that the context holds behind the prompt.
        stop_tokens: Token ids that end it.
        window: Unverified draft tokens that may wait.
        run_ahead: Tokens that the cloud may settle by itself beyond what the device has acknowledged; 0 is off.
        may_give: Whether the mode lets the device give tokens.
    """

    frames: FrameLimits
    max_tokens: int
    context_room: int
    stop_tokens: Collection[int]
    window: int
    run_ahead: int
    may_give: bool = False


@dataclass(slots=True)
class Session:
    """State of one generation. Opening it in the engine is its first work.

    Args:
        id: Names it in the engine and in logs.
        limits: What it may do.
        prompt: Token ids of the prompt.
        restored: Tokens that were settled before, elsewhere; None: its device begins.

    Attributes:
        unread: Given tokens that took the place of what the engine has settled: where there are any it holds another
            text, and the session must be opened there again.
    """

    id: SessionId
    limits: SessionLimits
    prompt: tuple[int, ...]
    restored: Sequence[int] | None = None
    state: State = State.WORKING
    tree: DraftTree = field(default_factory=DraftTree)
    habits: Habits = field(default_factory=Habits)
    usage: pb.Usage = field(default_factory=pb.Usage)
    unread: int = 0
    finish_reason: pb.Finished.Reason = pb.Finished.REASON_UNSPECIFIED
    _acknowledged: int = 0
    _settlements: int = 0
    _received: int = 0
    _resumes: int = 0
    _work: Work = field(init=False)
    _arrived: float = 0.0
    _waiting_since: float | None = None

    def __post_init__(self) -> None:
        self.usage.prompt_tokens = len(self.prompt)
        self._work = Work(self.id)
        if self.restored is not None:
            for token in self.restored:
                self.tree.settle(token)
            self.usage.settled_tokens = self._acknowledged = len(self.restored)
            self._resumes = 1
        self._end_if_over()

    @property
    def needs_engine(self) -> bool:
        """Whether there is more to settle."""
        return self.state in (State.PARKED, State.WORKING)

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and settled tokens: what an engine must read to go on with this session."""
        return (*self.prompt, *self.tree.settled)

    @property
    def counts(self) -> dict[str, int]:
        """What to log of it at its end."""
        usage = self.usage
        return {
            "settled": usage.settled_tokens,
            "drafted": usage.drafted_tokens,
            "accepted": usage.accepted_tokens,
            "given": usage.given_tokens,
            "steps": usage.steps,
        }

    # ------------------------------------------------------------ the device comes back

    def resume(self, tokens: Sequence[int]) -> None:
        """The device begins a new stream.

        Args:
            tokens: What it holds settled. Where it may give tokens, it may have decided some that did not get here.

        Raises:
            InvalidInput: That is not how this session began.
        """
        pairs = zip(tokens, self.tree.settled, strict=False)
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        decided = tokens[agreed:]
        over = self.state is State.FINISHED or agreed < self._acknowledged
        if decided and (over or not self.limits.may_give):
            raise InvalidInput("open.resume_tokens", "are not what was settled", "open a new session")
        self.tree.drop_pending()
        self._waiting_since = None
        self._resumes += 1
        self._acknowledged = max(self._acknowledged, agreed)
        if decided:
            self.tree.cut(agreed)
            self._overrule(decided)
        elif self.state is State.ENDING:
            self._end_if_over()

    def verdict_since(self, position: int, window: int) -> pb.Verdict | None:
        """What is settled from a position on, as one verdict; None where that is nothing."""
        tokens = self.tree.settled[position:]
        if not tokens:
            return None
        return pb.Verdict(
            epoch=self.tree.epoch, block=self.tree.last_block, position=position, tokens=tokens, window=window
        )

    # ------------------------------------------------------------ frames in

    def receive(self, frame: pb.ClientFrame, now: float) -> pb.Verdict | None:
        """Take a frame of the device that is not its `Open`.

        Args:
            frame: Decoded, not checked yet.
            now: When it arrived, in seconds of any clock.

        Returns:
            What to tell it at once, where it has decided something anew; the window is for the caller to fill in.

        Raises:
            InvalidInput: It breaks the protocol; the session must end.
        """
        if self.state is State.FINISHED:
            return None
        told = None
        match frame.WhichOneof("frame"):
            case "draft":
                told = self._draft(frame.draft, now)
            case "close":
                self._move(State.FINISHED, pb.Finished.REASON_CLOSED)
            case "open":
                raise InvalidInput("frame.open", "came a second time", "open a stream for each session")
            case _:
                pass  # an acknowledgement, or padding that keeps the pace
        self._acknowledge(frame.settled)  # of what stands now
        return told

    def _acknowledge(self, settled: int) -> None:
        if settled > len(self.tree.settled):
            raise InvalidInput(
                "frame.settled", f"is {settled}, only {len(self.tree.settled)} are", "acknowledge what verdicts settled"
            )
        self._acknowledged = max(self._acknowledged, settled)
        if self.state is State.ENDING:
            self._end_if_over()

    def _draft(self, draft: pb.Draft, now: float) -> pb.Verdict | None:
        check_draft(draft, self.limits.frames)
        if draft.given and not self.limits.may_give:
            raise InvalidInput("draft.given", "is set in a mode where the target decides all", "open a sealed session")
        if draft.epoch > self._settlements + self._resumes:
            raise InvalidInput(
                "draft.epoch",
                f"is {draft.epoch} after {self._settlements} settled tokens and {self._resumes} resumes",
                "begin one epoch a rollback",
            )
        if draft.block <= self.tree.last_block:
            return None  # a duplicate
        total = self._received + len(draft.tokens)
        # A device has at most a window in flight; each settled token frees at most a window, and so does a resume. A
        # device that overrules a token sends its window again too, also where that then says what was settled.
        freed = self._settlements * (2 if self.limits.may_give else 1)
        most = self.limits.window * (freed + self._resumes + 1)
        if total > most:
            raise InvalidInput("draft.tokens", f"make {total} in this session, the limit is {most}", "keep the window")
        flags = given_flags(draft)
        again = draft.epoch > self.tree.epoch and flags[0]
        received = self.tree.receive(draft, self.limits.window, self._acknowledged)
        self._received = total
        self.usage.drafted_tokens += len(flags) - sum(flags)
        self.usage.late_tokens += received.late
        if received.cut is not None:
            self._overrule(iter(lambda: self.tree.given_next, None))
        self._arrived = now
        if not self.tree.pending:
            self._waiting_since = None
        elif received.fresh:
            self.habits.came(received.fresh, now)
            if self._waiting_since is None or received.cut is not None:
                self._waiting_since = now
        # A device that overrules a verdict passes over those that were on their way to it, also where its token was
        # settled before, by an earlier block.
        return self.verdict_since(draft.position, 0) if again or received.cut is not None else None

    def _overrule(self, tokens: Iterable[int]) -> None:
        """Settle tokens that the device has decided, against what the engine has, or beyond it.

        They are final, as is what they follow, so that no position is decided twice and nobody makes the engine begin
        again without end.
        """
        self._move(State.WORKING)
        self._work = Work(self.id)
        for token in tokens:
            self._settle(token)
            self.unread += 1
            self.usage.given_tokens += 1
            self._acknowledged = len(self.tree.settled)
            if self._end_if_over():
                break
        self.usage.settled_tokens = len(self.tree.settled)

    # ------------------------------------------------------------ works out, outcomes in

    @property
    def has_drafts(self) -> bool:
        """Whether it is parked with drafts that can be verified."""
        return self.state is State.PARKED and self.tree.pending > 0

    @property
    def may_decode(self) -> bool:
        """Whether it is parked without drafts, and the cloud may decode its next token by itself."""
        ahead = len(self.tree.settled) - self._acknowledged
        return self.state is State.PARKED and not self.tree.pending and ahead < self.limits.run_ahead

    def next_work(self, rows: int, drafts: int | None = None) -> Work:
        """The session's part of the next step, where `has_drafts` or `may_decode`.

        Args:
            rows: What it may take of the step: a row a token, and one more.
            drafts: How many tokens that are not given are worth their rows; None: all.
        """
        # The step puts one token after the chain, so a chain that fills the room would be one too many.
        chain = self.tree.chain(min(self.limits.frames.max_block, self._left - 1, rows - 1), drafts)
        self._move(State.WORKING)
        self.habits.taken()
        given = tuple(node.given for node in chain)
        self._work = Work(self.id, tuple(node.token for node in chain), given if any(given) else ())
        return self._work

    def waited(self, now: float) -> float:
        """Seconds since there were drafts to verify; 0 where there are none."""
        return 0.0 if self._waiting_since is None else now - self._waiting_since

    def apply(self, outcome: Outcome, *, now: float, queue_seconds: float, verify_seconds: float) -> pb.Verdict:
        """Settle what a step found; `state` and `finish_reason` tell whether that was the end.

        Args:
            outcome: Of the work under way, without an error.
            now: The time, by the clock of `receive`.
            queue_seconds: How long its drafts waited for the step.
            verify_seconds: How long the step took.

        Returns:
            The verdict; its window is for the caller to fill in.
        """
        position = len(self.tree.settled)
        self._move(State.PARKED)
        taken = 0
        for token in outcome.tokens:
            decided = self.tree.given_next
            if decided not in (None, token):
                break  # the target's own token, where the device has decided meanwhile
            self._settle(token)
            taken += 1
            self.usage.given_tokens += decided is not None
            if self._end_if_over():
                break
        accepted = self._work.drafts(min(outcome.accepted, taken))
        judged = self._work.drafts(outcome.judged)
        self.habits.judged(accepted, judged)
        if taken < len(outcome.tokens) and self.needs_engine:
            self._overrule(iter(lambda: self.tree.given_next, None))
        if self.tree.pending:
            self._waiting_since = now
        else:
            self._waiting_since = None
            self.habits.parted(now)
        tokens = self.tree.settled[position:]
        self.usage.steps += 1
        self.usage.settled_tokens = len(self.tree.settled)
        self.usage.accepted_tokens += accepted
        return pb.Verdict(
            epoch=self.tree.epoch,
            block=self.tree.last_block,
            position=position,
            tokens=tokens,
            accepted=accepted,
            block_used=judged > 0,
            queue_us=_microseconds(queue_seconds),
            verify_us=_microseconds(verify_seconds),
            held_us=_microseconds(now - self._arrived) if self.tree.last_block else 0,
        )

    def lose_work(self) -> None:
        """The engine is gone, and with it what was under way: the session must be opened in another."""
        if self.needs_engine:
            self._move(State.WORKING)
            self._work = Work(self.id)

    @property
    def _left(self) -> int:
        return min(self.limits.max_tokens, self.limits.context_room) - len(self.tree.settled)

    def _settle(self, token: int) -> None:
        self.tree.settle(token)
        self._settlements += 1

    def _end_if_over(self) -> bool:
        settled = self.tree.settled
        over = State.ENDING if self.limits.may_give and self._acknowledged < len(settled) else State.FINISHED
        if settled and settled[-1] in self.limits.stop_tokens:
            self._move(over, pb.Finished.REASON_STOP)
        elif self._left <= 0:
            self._move(over, pb.Finished.REASON_LENGTH)
        return not self.needs_engine

    def _move(self, state: State, reason: pb.Finished.Reason = pb.Finished.REASON_UNSPECIFIED) -> None:
        """The one place where the state changes; nothing leaves FINISHED."""
        if self.state is not State.FINISHED:
            self.state = state
            self.finish_reason = reason


def _microseconds(seconds: float) -> int:
    """As a frame has it, which holds 71 minutes; a session may go without drafts for longer."""
    return min(round(seconds * 1e6), _MOST_US)


def merge_verdicts(first: pb.Verdict, second: pb.Verdict) -> pb.Verdict:
    """One verdict that says what two consecutive ones do: for a device that reads slowly.

    The second may begin before the first ends, where the device has decided anew: it holds.
    """
    merged = pb.Verdict()
    merged.CopyFrom(second)
    merged.position = min(first.position, second.position)
    kept = first.tokens[: max(0, second.position - first.position)]
    merged.accepted += first.accepted
    merged.block_used |= first.block_used
    del merged.tokens[:]
    merged.tokens.extend([*kept, *second.tokens])
    return merged
