"""The draft log over one stream after another: whatever is lost at a cut, the verifier's own tree takes every block."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft.core.draft import Block
from edgedraft.core.log import DraftLog
from edgedraft.errors import ProtocolError
from edgedraft.pipeline import encode_block
from edgedraft.wire import FrameLimits, check_draft
from edgedraft_cloud.draft_tree import DraftTree

MAX_TOKENS = 40
WINDOW = 6
LIMITS = FrameLimits(vocab_size=10, context_length=100, max_block=4)


def make() -> DraftLog:
    return DraftLog(max_tokens=MAX_TOKENS, window=WINDOW, max_block=4)


def test_every_draft_is_sent_again_parents_first_and_numbered_anew():
    log = make()
    first = log.add(1, 0.9)
    log.add(2, 0.9)
    branch = log.add(7, 0.4, parent=first)
    log.add(8, 0.4, parent=branch)
    log.add(3, 0.9)
    sent = [log.take_block() for _ in range(3)]
    assert sent == [Block(0, 0, 1, (1, 2), None), Block(0, 1, 2, (7, 8), 1), Block(0, 2, 3, (3,), 2)]
    log.settle(0, [1])
    stamp, tokens = log.stamp, log.tokens
    log.reopen(0, 2)
    assert (log.epoch, log.tokens, log.stamp, log.in_flight, log.unsent) == (1, tokens, stamp, 0, 4)
    assert [log.take_block() for _ in range(3)] == [Block(1, 1, 3, (2, 3), None), Block(1, 1, 4, (7, 8), 0), None]


def test_a_draft_that_was_not_sent_yet_is_sent_once():
    log = make()
    log.add(1, 0.9)
    log.take_block()
    log.add(2, 0.9)
    log.reopen(0, 0)
    assert log.take_block() == Block(1, 0, 1, (1, 2), None)
    assert log.take_block() is None


def test_a_window_that_shrank_below_what_is_there_holds_the_rest_back():
    log = make()
    for token in (1, 2, 3, 4):
        log.add(token, 0.9)
    log.take_block()
    log.reopen(0, 1)
    log.window = 3
    assert log.room == 0
    assert log.take_block() == Block(1, 0, 2, (1, 2, 3), None)
    assert (log.take_block(), log.unsent) == (None, 1)
    log.window = 1
    log.settle(0, [1])
    assert log.take_block() is None
    log.settle(1, [2, 3])
    assert log.take_block() == Block(1, 3, 3, (4,), None)


def test_a_verifier_cannot_have_seen_more_than_was_sent():
    log = make()
    log.add(1, 0.9)
    log.take_block()
    for seen in ((1, 1), (0, 2), (2**32 - 1, 0)):
        with pytest.raises(ProtocolError, match="the verifier has seen"):
            log.reopen(*seen)
    assert (log.epoch, log.in_flight) == (0, 1)
    log.reopen(0, 1)
    log.reopen(1, 1)
    assert log.epoch == 2


class Ends:
    """A draft log and the verifier's tree, with a link between them that delivers when it is told to, or breaks."""

    def __init__(self) -> None:
        self.log = make()
        self.tree = DraftTree()
        self.up: deque[Block] = deque()
        self.down: deque[tuple[int, list[int]]] = deque()

    def draft(self, tokens: list[int]) -> None:
        for token in tokens[: self.log.room]:
            self.log.add(token, 0.5)

    def branch(self, index: int, token: int) -> None:
        path = self.log.path
        if path and self.log.room:
            parent = path[index % len(path)]
            if all(child.token != token for child in parent.children):
                self.log.add(token, 0.5, parent=parent)

    def send(self, blocks: int = 1) -> None:
        for _ in range(blocks):
            self.send_block()

    def send_block(self) -> None:
        if (block := self.log.take_block()) is not None:
            assert len(block.tokens) <= self.log.max_block
            assert self.log.in_flight <= self.log.window
            self.up.append(block)

    def grant(self, window: int, max_block: int) -> None:
        self.log.window, self.log.max_block = window, max_block

    def deliver_up(self, blocks: int = 1) -> None:
        for _ in range(min(blocks, len(self.up))):
            draft = encode_block(self.up.popleft())
            check_draft(draft, LIMITS)
            assert draft.block > self.tree.last_block
            self.tree.receive(draft, WINDOW)

    def judge(self, agreed: int, tokens: list[int]) -> None:
        line = [node.token for node in self.tree.chain(agreed)]
        tokens = [*line, *tokens][: MAX_TOKENS - len(self.tree.settled)]
        if tokens:
            self.down.append((len(self.tree.settled), tokens))
        for token in tokens:
            self.tree.settle(token)

    def deliver_down(self) -> None:
        if self.down:
            self.log.settle(*self.down.popleft())

    def cut(self, kept: bool, arrives: int) -> None:
        """Blocks on their way up are lost, and verdicts but the first few; `kept`: the verifier still has its state."""
        self.up.clear()
        for _ in range(arrives):
            self.deliver_down()
        self.down.clear()
        held = len(self.log.settled)
        seen = (self.tree.epoch, self.tree.last_block) if kept else (0, 0)
        settled = self.tree.settled if kept else self.log.settled
        self.tree = DraftTree()
        self.tree.epoch, self.tree.last_block = seen
        for token in settled:
            self.tree.settle(token)
        before = self.log.tokens
        self.log.reopen(*seen)
        assert self.log.tokens == before
        assert (self.log.epoch, self.log.in_flight) == (seen[0] + 1, 0)
        if settled[held:]:
            self.down.append((held, settled[held:]))

    def come_to_rest(self) -> None:
        self.grant(WINDOW, 4)
        while self.down:
            self.deliver_down()
        while self.log.unsent:
            self.send()
        while self.up:
            self.deliver_up()


def some(name: str, *arguments: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | st.tuples(st.just(name), *arguments)


token = st.integers(0, 2)
rounds = st.tuples(
    st.tuples(st.just("draft"), st.lists(token, min_size=1, max_size=4)),
    some("branch", st.integers(0, 1), token),
    some("send", st.integers(1, 3)),
    some("deliver_up", st.integers(1, 3)),
    some("judge", st.integers(0, 3), st.lists(token, max_size=1)),
    some("deliver_down"),
    some("cut", st.booleans(), st.integers(0, 1)),
    some("grant", st.integers(1, WINDOW), st.integers(1, 4)),
    some("deliver_down"),
    some("send", st.integers(1, 3)),
    some("deliver_up", st.integers(1, 3)),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(rounds, min_size=1, max_size=8))
def test_the_verifier_takes_every_block_and_ends_up_with_every_live_draft(history):
    ends = Ends()
    for name, *arguments in (action for each in history for action in each if action):
        getattr(ends, name)(*arguments)
        assert ends.log.settled == ends.tree.settled[: len(ends.log.settled)]
    ends.come_to_rest()
    assert ends.log.settled == ends.tree.settled
    assert ends.tree.pending == ends.log.in_flight
    assert [node.token for node in ends.tree.chain(WINDOW)] == [node.token for node in ends.log.path]
