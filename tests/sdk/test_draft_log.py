"""The draft log: numbering, windows, rollbacks, branches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.core.draft import Block, Settlement
from edgedraft.core.log import DraftLog
from edgedraft.errors import InvalidInput, ProtocolError


def make(**settings) -> DraftLog:
    return DraftLog(**{"max_tokens": 100, "window": 8, "max_block": 4, **settings})


def chain(log: DraftLog, *tokens: int) -> None:
    for token in tokens:
        log.add(token, 0.9)


def test_a_block_continues_the_one_before_without_naming_its_parent():
    log = make()
    chain(log, 1, 2, 3, 4, 5, 6)
    assert log.take_block() == Block(0, 0, 1, (1, 2, 3, 4), None)
    assert log.take_block() == Block(0, 4, 2, (5, 6), None)
    assert log.take_block() is None
    assert log.in_flight == 6


def test_agreeing_verdicts_keep_epoch_and_draft():
    log = make()
    chain(log, 1, 2, 3)
    log.take_block()
    stamp = log.stamp
    assert log.settle(0, [1, 2]) == Settlement(0, (1, 2), matched=2)
    assert (log.epoch, log.tokens, log.in_flight, log.stamp) == (0, [1, 2, 3], 1, stamp)


def test_a_wrong_draft_cuts_back_and_begins_an_epoch():
    log = make()
    chain(log, 1, 2, 3)
    log.take_block()
    stamp = log.stamp
    settlement = log.settle(0, [1, 9])
    assert settlement == Settlement(0, (1, 9), matched=1, missed=1, cut=1, dropped=2, rolled_back=True)
    assert (log.epoch, log.tokens, log.in_flight, log.unsent) == (1, [1, 9], 0, 0)
    assert log.stamp != stamp
    chain(log, 10)
    assert log.take_block() == Block(1, 2, 2, (10,), None)


def test_the_cloud_ahead_of_the_draft_moves_it_without_an_epoch():
    log = make()
    chain(log, 1)
    log.take_block()
    log.settle(0, [1, 2, 3])
    assert (log.epoch, log.tokens) == (0, [1, 2, 3])
    chain(log, 4)
    # The last node sent is no longer its parent: it hangs on the settled tokens.
    assert log.take_block() == Block(0, 3, 2, (4,), 0)


def test_unsent_tokens_that_were_settled_meanwhile_are_not_sent():
    log = make()
    chain(log, 1, 2, 3)
    log.settle(0, [1, 2])
    assert log.take_block() == Block(0, 2, 1, (3,), None)


def test_a_guess_that_the_device_may_not_confirm_is_overruled():
    log = DraftLog(max_tokens=10, window=8, max_block=4, placeholder=9, last_word=True)
    log.add(1, 0.5, takes=lambda token: False)
    log.add(2, 0.5)
    settlement = log.settle(0, [1, 2])
    assert settlement.vetoed
    assert settlement.tokens == ()
    assert [(node.token, node.wire, node.given) for node in log.path] == [(1, 9, True)]
    block = log.take_block()
    assert block is not None
    assert (block.tokens, block.given, block.epoch) == ((9,), (True,), 1)


def test_a_token_that_has_left_is_settled_where_the_cloud_says_it_too():
    log = DraftLog(max_tokens=10, window=8, max_block=4, placeholder=9, last_word=True)
    log.add(1, 0.5, takes=lambda token: False)
    log.take_block()
    assert log.settle(0, [1]).tokens == (1,)


def test_a_branch_waits_and_takes_over():
    log = make()
    first = log.add(1, 0.6)
    log.add(2, 0.5)
    branch = log.add(7, 0.3, parent=first)
    log.add(8, 0.2, parent=branch)
    assert log.tokens == [1, 2]
    assert [log.take_block(), log.take_block()] == [Block(0, 0, 1, (1, 2), None), Block(0, 1, 2, (7, 8), 1)]
    settlement = log.settle(0, [1, 7])
    assert settlement == Settlement(0, (1, 7), matched=1, missed=1, cut=1, dropped=1, revived=(8,))
    assert (log.epoch, log.tokens, log.in_flight) == (0, [1, 7, 8], 1)


def test_the_window_bounds_what_is_unverified():
    log = make(window=2)
    assert log.room == 2
    chain(log, 1, 2)
    assert log.room == 0
    with pytest.raises(InvalidInput, match="window of 2"):
        log.add(3, 0.9)
    log.settle(0, [1])
    assert log.room == 1


def test_nothing_is_drafted_beyond_the_end():
    log = make(max_tokens=3, stop_tokens={0})
    chain(log, 1, 2, 3)
    assert log.room == 0
    log = make(stop_tokens={0})
    chain(log, 5, 0)
    assert log.room == 0


def test_bad_verdicts_are_named():
    log = make(max_tokens=4)
    log.settle(0, [1, 2])
    with pytest.raises(ProtocolError, match="position is 3"):
        log.settle(3, [4])
    with pytest.raises(ProtocolError, match="contradicts"):
        log.settle(0, [1, 3])
    with pytest.raises(ProtocolError, match="5 of 4"):
        log.settle(2, [1, 2, 3])
    assert log.settled == [1, 2]
    assert log.settle(0, [1, 2]).tokens == ()


def test_bad_nodes_are_refused():
    log = make()
    node = log.add(1, 0.9)
    log.add(2, 0.9, parent=node)
    with pytest.raises(InvalidInput, match="already a child"):
        log.add(2, 0.9, parent=node)
    log.settle(0, [1])
    with pytest.raises(InvalidInput, match="dropped or settled"):
        log.add(3, 0.9, parent=node)
    with pytest.raises(InvalidInput, match="window"):
        make(window=0)


@given(st.data())
def test_counts_and_numbers_hold_under_any_history(data):
    """Alive = sent + unsent; block numbers rise; the verifier can rebuild the tree from the blocks alone."""
    log = make(max_tokens=40, window=6, max_block=3)
    blocks = 0
    epoch = 0
    mirror: list[tuple[int, int]] = []  # (position, token) of each node by number - 1, within the epoch
    for _ in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(["draft", "branch", "send", "verdict"]))
        if action == "draft" and log.room:
            log.add(data.draw(st.integers(0, 3)), 0.5)
        elif action == "branch" and log.room and log.path:
            parent = data.draw(st.sampled_from(list(log.path)))
            token = data.draw(st.integers(0, 3))
            if all(child.token != token for child in parent.children):
                log.add(token, 0.5, parent=parent)
        elif action == "send" and (block := log.take_block()) is not None:
            assert block.number == blocks + 1
            assert 1 <= len(block.tokens) <= 3
            blocks += 1
            if block.epoch != epoch:
                epoch, mirror = block.epoch, []
            parent_number = len(mirror) if block.parent is None else block.parent
            if parent_number:
                assert mirror[parent_number - 1][0] == block.position - 1
            else:
                assert block.position <= len(log.settled)
            mirror += [(block.position + i, token) for i, token in enumerate(block.tokens)]
        elif action == "verdict" and len(log.settled) < 40:
            count = data.draw(st.integers(1, min(3, 40 - len(log.settled))))
            before = log.tokens
            settlement = log.settle(
                len(log.settled), data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
            )
            if settlement.cut is None:
                assert log.tokens[: len(before)] == before
        assert log.in_flight >= 0
        assert log.in_flight + log.unsent <= 6
        assert log.tokens == log.settled + [node.token for node in log.path]
