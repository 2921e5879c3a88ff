"""One session of the verifier as a pure state machine: frames and outcomes in, works and verdicts out.

What breaks the protocol ends the session with `InvalidInput`; what is merely late does no harm:

| frame | what happens |
| --- | --- |
| a block that came before, or of an older epoch | dropped |
| a block behind a node that the target has left | dropped |
| a block at positions that are settled | compared; the tail behind what agrees is a draft like any other |
| an acknowledgement lower than an earlier one | ignored |
| an acknowledgement or an epoch that no verdict can have caused | `InvalidInput` |
| a gap, an unknown parent, a repeated child, more than the window | `InvalidInput` |

A device that lost its stream comes back with `resume`: what is settled stays, what was pending is sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire import FrameLimits, check_draft
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
    """

    id: SessionId
    limits: SessionLimits
    prompt: tuple[int, ...]
    restored: Sequence[int] | None = None
    state: State = State.WORKING
    tree: DraftTree = field(default_factory=DraftTree)
    habits: Habits = field(default_factory=Habits)
    usage: pb.Usage = field(default_factory=pb.Usage)
    finish_reason: pb.Finished.Reason = pb.Finished.REASON_UNSPECIFIED
    _acknowledged: int = 0
    _verdicts: int = 0
    _resumes: int = 0
    _arrived: float = 0.0
    _waiting_since: float | None = None

    def __post_init__(self) -> None:
        self.usage.prompt_tokens = len(self.prompt)
        if self.restored is not None:
            for token in self.restored:
                self.tree.settle(token)
            self.usage.settled_tokens = self._acknowledged = len(self.restored)
            self._resumes = 1
        self._end_if_over()

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and settled tokens: what an engine must read to go on with this session."""
        return (*self.prompt, *self.tree.settled)

    # ------------------------------------------------------------ the device comes back

    def resume(self, tokens: Sequence[int]) -> None:
        """The device begins a new stream.

        Args:
            tokens: What it holds settled.

        Raises:
            InvalidInput: That is not how this session began.
        """
        held = len(tokens)
        if list(tokens) != self.tree.settled[:held]:
            raise InvalidInput("open.resume_tokens", "are not what was settled", "open a new session")
        self.tree.drop_pending()
        self._waiting_since = None
        self._resumes += 1
        self._acknowledged = max(self._acknowledged, held)

    def verdict_since(self, position: int, window: int) -> pb.Verdict | None:
        """What is settled from a position on, as one verdict; None where that is nothing."""
        tokens = self.tree.settled[position:]
        if not tokens:
            return None
        return pb.Verdict(
            epoch=self.tree.epoch, block=self.tree.last_block, position=position, tokens=tokens, window=window
        )

    # ------------------------------------------------------------ frames in

    def receive(self, frame: pb.ClientFrame, now: float) -> None:
        """Take a frame of the device that is not its `Open`.

        Args:
            frame: Decoded, not checked yet.
            now: When it arrived, in seconds of any clock.

        Raises:
            InvalidInput: It breaks the protocol; the session must end.
        """
        if self.state is State.FINISHED:
            return
        self._acknowledge(frame.settled)
        match frame.WhichOneof("frame"):
            case "draft":
                self._draft(frame.draft, now)
            case "close":
                self._move(State.FINISHED, pb.Finished.REASON_CLOSED)
            case "open":
                raise InvalidInput("frame.open", "came a second time", "open a stream for each session")
            case _:
                pass  # an acknowledgement, or padding that keeps the pace

    def _acknowledge(self, settled: int) -> None:
        if settled > len(self.tree.settled):
            raise InvalidInput(
                "frame.settled", f"is {settled}, only {len(self.tree.settled)} are", "acknowledge what verdicts settled"
            )
        self._acknowledged = max(self._acknowledged, settled)

    def _draft(self, draft: pb.Draft, now: float) -> None:
        check_draft(draft, self.limits.frames)
        if draft.given and not self.limits.may_give:
            raise InvalidInput("draft.given", "is set in a mode where the target decides all", "open a sealed session")
        if draft.epoch > self._verdicts + self._resumes:
            raise InvalidInput(
                "draft.epoch",
                f"is {draft.epoch} after {self._verdicts} verdicts and {self._resumes} resumes",
                "begin one epoch a rollback",
            )
        if draft.block <= self.tree.last_block:
            return  # a duplicate
        total = self.usage.drafted_tokens + len(draft.tokens)
        # A device has at most a window in flight; each settled token frees at most a window, and so does a resume.
        most = self.limits.window * (len(self.tree.settled) + self._resumes + 1)
        if total > most:
            raise InvalidInput("draft.tokens", f"make {total} in this session, the limit is {most}", "keep the window")
        received = self.tree.receive(draft, self.limits.window)
        self._arrived = now
        if received.fresh:
            self.habits.returned(now)
            if self._waiting_since is None:
                self._waiting_since = now
        self.usage.drafted_tokens = total
        self.usage.late_tokens += received.late

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

    def next_work(self, rows: int) -> Work:
        """The session's part of the next step, where `has_drafts` or `may_decode`.

        Args:
            rows: What it may take of the step: a row a draft token, and one more.
        """
        # The step puts one token after the chain, so a chain that fills the room would be one too many.
        chain = self.tree.chain(min(self.limits.frames.max_block, self._left - 1, rows - 1))
        self._move(State.WORKING)
        given = tuple(node.given for node in chain)
        return Work(self.id, tuple(node.token for node in chain), given if any(given) else ())

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
        for token in outcome.tokens:
            self.tree.settle(token)
            if self._end_if_over():
                break
        self.habits.judged(outcome.accepted, outcome.judged)
        if self.tree.pending:
            self._waiting_since = now
        else:
            self._waiting_since = None
            self.habits.parted(now)
        tokens = self.tree.settled[position:]
        accepted = min(outcome.accepted, len(tokens))
        self.usage.steps += 1
        self.usage.settled_tokens = len(self.tree.settled)
        self.usage.accepted_tokens += accepted
        self._verdicts += 1
        return pb.Verdict(
            epoch=self.tree.epoch,
            block=self.tree.last_block,
            position=position,
            tokens=tokens,
            accepted=accepted,
            block_used=outcome.judged > 0,
            queue_us=_microseconds(queue_seconds),
            verify_us=_microseconds(verify_seconds),
            held_us=_microseconds(now - self._arrived) if self.tree.last_block else 0,
        )

    def lose_work(self) -> None:
        """The engine is gone, and with it what was under way: the session must be opened in another."""
        self._move(State.WORKING)

    @property
    def _left(self) -> int:
        return min(self.limits.max_tokens, self.limits.context_room) - len(self.tree.settled)

    def _end_if_over(self) -> bool:
        settled = self.tree.settled
        if settled and settled[-1] in self.limits.stop_tokens:
            self._move(State.FINISHED, pb.Finished.REASON_STOP)
        elif self._left <= 0:
            self._move(State.FINISHED, pb.Finished.REASON_LENGTH)
        return self.state is State.FINISHED

    def _move(self, state: State, reason: pb.Finished.Reason = pb.Finished.REASON_UNSPECIFIED) -> None:
        """The one place where the state changes; nothing leaves FINISHED."""
        if self.state is not State.FINISHED:
            self.state = state
            self.finish_reason = reason


def _microseconds(seconds: float) -> int:
    """As a frame has it, which holds 71 minutes; a session may go without drafts for longer."""
    return min(round(seconds * 1e6), _MOST_US)


def merge_verdicts(first: pb.Verdict, second: pb.Verdict) -> pb.Verdict:
    """One verdict that says what two consecutive ones do: for a device that reads slowly."""
    merged = pb.Verdict()
    merged.CopyFrom(second)
    merged.position = first.position
    merged.accepted += first.accepted
    merged.block_used |= first.block_used
    del merged.tokens[:]
    merged.tokens.extend([*first.tokens, *second.tokens])
    return merged
