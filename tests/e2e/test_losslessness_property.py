"""The law that the product stands on: whatever link and engine do, the device ends up with the target's greedy output.

Device core and verifier core are the real ones; drafter, target, link and the order of events are drawn at random.
"""

import zlib
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft.core.log import DraftLog
from edgedraft.pipeline import encode_block
from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Work
from edgedraft_cloud.session import Session, SessionLimits, State, merge_verdicts

VOCAB = 6
STOP = 5
PROMPT = (1, 2)


def target(tokens: tuple[int, ...], seed: int) -> int:
    return zlib.crc32(bytes([seed, *tokens])) % VOCAB


def greedy(seed: int, max_tokens: int) -> list[int]:
    out: list[int] = []
    while len(out) < max_tokens:
        out.append(target((*PROMPT, *out), seed))
        if out[-1] == STOP:
            break
    return out


class World:
    """One device, one verifier, and a link between them that delivers when it is told to."""

    def __init__(self, seed: int, max_tokens: int, window: int, block: int, run_ahead: int) -> None:
        self.seed = seed
        self.log = DraftLog(max_tokens=max_tokens, window=window, max_block=block, stop_tokens={STOP})
        self.limits = SessionLimits(
            frames=FrameLimits(VOCAB, 1000, block),
            max_tokens=max_tokens,
            context_room=1000,
            stop_tokens={STOP},
            window=window,
            run_ahead=run_ahead,
        )
        self.session = Session("s", self.limits, PROMPT)
        self.work: Work | None = Work("s")  # opening
        self.up: deque[pb.ClientFrame] = deque()
        self.delivered: list[pb.ClientFrame] = []
        self.down: deque[pb.Verdict] = deque()

    def draft(self, right: bool, branch: int | None) -> None:
        if self.log.room < 1:
            return
        parent = None
        context = [*PROMPT, *self.log.tokens]
        if branch is not None and len(self.log.path) > 1:
            index = branch % (len(self.log.path) - 1)
            parent = self.log.path[index]
            context = [*PROMPT, *self.log.settled, *(node.token for node in self.log.path[: index + 1])]
        token = target(tuple(context), self.seed)
        if not right:
            token = (token + 1) % VOCAB
        if parent is not None and any(child.token == token for child in parent.children):
            return
        self.log.add(token, 0.5, parent=parent)

    def send(self) -> None:
        block = self.log.take_block()
        frame = pb.ClientFrame(settled=len(self.log.settled))
        if block is not None:
            frame.draft.CopyFrom(encode_block(block))
        self.up.append(frame)

    def deliver_up(self, overtake: bool) -> None:
        if not self.up:
            return
        index = 0
        if overtake and self.up[0].HasField("draft"):
            # A frame may only be overtaken by frames of a newer epoch.
            newer = [i for i, f in enumerate(self.up) if f.HasField("draft") and f.draft.epoch > self.up[0].draft.epoch]
            index = newer[0] if newer else 0
        frame = self.up[index]
        del self.up[index]
        self.delivered.append(frame)
        self.session.receive(frame, 0.0)

    def duplicate(self, which: int) -> None:
        if self.delivered:
            self.session.receive(self.delivered[which % len(self.delivered)], 0.0)

    def start_step(self, rows: int = 1000) -> None:
        if self.session.has_drafts or self.session.may_decode:
            self.work = self.session.next_work(rows)

    def cut(self, arrives: int, kept: bool, engine_dies: bool) -> None:
        """The link breaks and the device comes back, perhaps to a verifier that knows nothing of it."""
        self.up.clear()
        self.delivered.clear()
        for _ in range(arrives):
            self.deliver_down(False)
        self.down.clear()
        held = len(self.log.settled)
        if kept:
            self.session.resume(self.log.settled)
        elif self.session.state is not State.FINISHED:
            self.session = Session("s", self.limits, PROMPT, tuple(self.log.settled))
        if self.session.state is not State.FINISHED and (engine_dies or not kept):
            self.session.lose_work()
            self.work = Work("s")  # opened again
        self.log.reopen(self.session.tree.epoch, self.session.tree.last_block)
        if (verdict := self.session.verdict_since(held, self.limits.window)) is not None:
            self.down.append(verdict)

    def end_step(self) -> None:
        if self.work is None:
            return
        log = [*PROMPT, *self.session.tree.settled]
        tokens: list[int] = []
        for token in self.work.tokens:
            if target(tuple(log), self.seed) != token:
                break
            tokens.append(token)
            log.append(token)
        accepted = len(tokens)
        tokens.append(target(tuple(log), self.seed))
        outcome = Outcome("s", tuple(tokens), accepted, len(self.work.tokens))
        self.work = None
        if self.session.state is not State.FINISHED:
            self.down.append(self.session.apply(outcome, now=0.0, queue_seconds=0.0, verify_seconds=0.0))

    def merge_down(self) -> None:
        if len(self.down) > 1:
            second, first = self.down.pop(), self.down.pop()
            self.down.append(merge_verdicts(first, second))

    def deliver_down(self, twice: bool) -> None:
        if self.down:
            verdict = self.down.popleft()
            for _ in range(1 + twice):
                self.log.settle(verdict.position, verdict.tokens)

    def run_out(self) -> None:
        """No more surprises: let everything arrive until the session ends."""
        for _ in range(400):
            self.draft(True, None)
            self.send()
            while self.up:
                self.deliver_up(False)
            self.start_step()
            self.end_step()
            while self.down:
                self.deliver_down(False)
            if self.session.state is State.FINISHED:
                return
        raise AssertionError("the session does not end")


actions = st.one_of(
    st.tuples(st.just("draft"), st.booleans(), st.none() | st.integers(0, 5)),
    st.tuples(st.just("send")),
    st.tuples(st.just("deliver_up"), st.booleans()),
    st.tuples(st.just("duplicate"), st.integers(0, 50)),
    st.tuples(st.just("start_step"), st.integers(2, 6)),
    st.tuples(st.just("cut"), st.integers(0, 3), st.booleans(), st.booleans()),
    st.tuples(st.just("end_step")),
    st.tuples(st.just("merge_down")),
    st.tuples(st.just("deliver_down"), st.booleans()),
)


@settings(max_examples=600, deadline=None)
@given(
    seed=st.integers(0, 255),
    max_tokens=st.integers(1, 24),
    window=st.integers(1, 8),
    block=st.integers(1, 4),
    run_ahead=st.sampled_from([0, 1, 4, 64]),
    history=st.lists(actions, max_size=120),
)
def test_the_output_is_the_targets_under_any_schedule(seed, max_tokens, window, block, run_ahead, history):
    world = World(seed, max_tokens, window, block, run_ahead)
    for name, *arguments in history:
        getattr(world, name)(*arguments)
        assert world.log.settled == greedy(seed, max_tokens)[: len(world.log.settled)]
    world.run_out()
    assert world.log.settled == greedy(seed, max_tokens)
    assert world.session.tree.settled == world.log.settled
    usage = world.session.usage
    assert usage.accepted_tokens <= usage.drafted_tokens
