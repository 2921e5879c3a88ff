"""The verifier's draft tree: what grows it, what empties it, and that a refused block leaves it alone."""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput
from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.draft_tree import DraftTree, Received

WINDOW = 8


class Sender:
    """Numbers the blocks."""

    def __init__(self) -> None:
        self.tree = DraftTree()
        self.blocks = 0

    def send(self, tokens, *, position=0, epoch=0, parent=None, window=WINDOW, given_flags=(), final=0) -> Received:
        self.blocks += 1
        draft = pb.Draft(epoch=epoch, position=position, block=self.blocks, tokens=tokens)
        draft.given = given_bits(given_flags)
        if parent is not None:
            draft.parent = parent
        return self.tree.receive(draft, window, final)

    def settle(self, *tokens: int) -> None:
        for token in tokens:
            self.tree.settle(token)

    def line(self, limit: int = 99) -> list[int]:
        return [node.token for node in self.tree.chain(limit)]


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_blocks_follow_each_other_and_the_chain_is_the_first_line(sender):
    assert sender.send([1, 2]) == Received(fresh=2)
    assert sender.send([3], position=2) == Received(fresh=1)
    assert (sender.line(), sender.line(2), sender.tree.pending) == ([1, 2, 3], [1, 2], 3)
    assert [node.position for node in sender.tree.chain(9)] == [0, 1, 2]


def test_branches_wait_behind_the_first_line_and_are_followed_after_a_rejection(sender):
    sender.send([1, 2, 3])
    sender.send([7, 8], position=0, parent=0)
    sender.send([9], position=2, parent=2)
    assert (sender.line(), sender.tree.pending) == ([1, 2, 3], 6)
    sender.settle(1, 2)
    assert (sender.line(), sender.tree.pending) == ([3], 2)
    sender.settle(9)
    assert (sender.line(), sender.tree.pending) == ([], 0)
    other = Sender()
    other.send([1, 2, 3])
    other.send([7, 8], position=0, parent=0)
    other.settle(7)
    assert (other.line(), other.tree.pending) == ([8], 1)


def test_a_token_that_was_not_drafted_empties_the_tree(sender):
    sender.send([1, 2])
    sender.settle(5)
    assert (sender.line(), sender.tree.pending, sender.tree.settled) == ([], 0, [5])


def test_what_hangs_on_a_dead_node_is_dropped_and_counts_in_the_numbering(sender):
    sender.send([1, 2])
    sender.settle(5)
    assert sender.send([3], position=2) == Received()
    assert sender.tree.pending == 0
    # Nodes 1 to 3 are taken by now, so this one is number 4.
    assert sender.send([6], position=1, parent=0) == Received(fresh=1)
    assert sender.send([7], position=2, parent=4) == Received(fresh=1)
    assert sender.line() == [6, 7]


def test_late_tokens_that_agree_count_and_the_rest_is_a_draft(sender):
    sender.settle(1, 2)
    assert sender.send([1, 2, 3, 4]) == Received(fresh=2, late=2)
    assert sender.line() == [3, 4]
    assert sender.tree.chain(1)[0].position == 2


def test_late_tokens_that_disagree_are_dropped_with_all_behind_them(sender):
    sender.settle(1, 2)
    assert sender.send([1, 9, 3, 4]) == Received(late=1)
    assert sender.line() == []
    # Node 1 is a settled one; what hangs on it continues where it stands.
    assert sender.send([2, 3], position=1, parent=1) == Received(fresh=1, late=1)
    assert sender.line() == [3]


def test_a_child_of_a_settled_node_hangs_where_the_settled_tokens_end(sender):
    sender.send([1, 2])
    sender.settle(1, 2)
    assert sender.send([3], position=2) == Received(fresh=1)
    assert sender.line() == [3]


def test_an_older_epoch_is_dropped_but_its_block_is_seen(sender):
    sender.settle(1)
    sender.send([2], position=1, epoch=1)
    assert sender.send([9, 9], position=0, epoch=0) == Received()
    assert (sender.line(), sender.tree.epoch, sender.tree.last_block) == ([2], 1, 2)


def test_a_new_epoch_forgets_the_old_tree_and_counts_anew(sender):
    sender.send([1, 2, 3])
    sender.settle(9)
    assert sender.send([4], position=1, epoch=1) == Received(fresh=1)
    assert sender.send([5], position=2, epoch=1, parent=1) == Received(fresh=1)
    assert (sender.line(), sender.tree.pending) == ([4, 5], 2)


def test_given_flags_stay_with_their_tokens(sender):
    sender.send([1, 2, 3], given_flags=(True, False, True))
    assert [node.given for node in sender.tree.chain(9)] == [True, False, True]
    sender.settle(1)
    assert [node.given for node in sender.tree.chain(9)] == [False, True]


REFUSED = {
    "an unknown parent": ({"tokens": [9], "position": 2, "parent": 3}, "draft.parent", "is 3, this epoch has 2"),
    "a gap behind a node": ({"tokens": [9], "position": 3}, "draft.position", "its parent is at 1"),
    "a gap behind the settled": ({"tokens": [9], "position": 1, "parent": 0}, "draft.position", "only 0 positions"),
    "a parent in a new epoch": ({"tokens": [9], "position": 0, "epoch": 1, "parent": 1}, "draft.parent", "first block"),
    "a gap in a new epoch": ({"tokens": [9], "position": 1, "epoch": 1}, "draft.position", "only 0 positions"),
    "a repeated root": ({"tokens": [1], "position": 0, "parent": 0}, "draft.tokens", "repeat"),
    "a repeated child": ({"tokens": [2], "position": 1, "parent": 1}, "draft.tokens", "follows position 0"),
    "more than the window": ({"tokens": [3, 4], "position": 2, "window": 3}, "draft.tokens", "window is 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_block_names_its_field_and_leaves_the_tree_alone(sender, name):
    block, field, words = REFUSED[name]
    sender.send([1, 2])
    before = copy.deepcopy({slot: getattr(sender.tree, slot) for slot in vars(sender.tree)})
    with pytest.raises(InvalidInput, match=words) as caught:
        sender.send(**block)
    assert caught.value.field == field
    assert {slot: getattr(sender.tree, slot) for slot in vars(sender.tree)} == before


def test_a_new_epoch_frees_the_window(sender):
    sender.send([1, 2, 3], window=3)
    sender.settle(9)
    assert sender.send([1, 2, 3], position=1, epoch=1, window=3) == Received(fresh=3)


def test_dropping_what_is_pending_keeps_what_is_settled_and_how_far_the_numbers_went(sender):
    sender.send([1, 2])
    sender.settle(1)
    sender.send([5], position=1, epoch=3)
    sender.tree.drop_pending()
    tree = sender.tree
    assert (sender.line(), tree.pending, tree.settled, tree.epoch, tree.last_block) == ([], 0, [1], 3, 2)
    # What still comes of the old numbering hangs on nothing.
    with pytest.raises(InvalidInput, match="is 1, this epoch has 0 nodes"):
        sender.send([6], position=2, epoch=3, parent=1)
    assert sender.send([5, 6], position=1, epoch=4) == Received(fresh=2)


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("drop")),
            st.tuples(st.just("settle"), st.integers(0, 3)),
            st.tuples(
                st.just("send"),
                st.lists(st.integers(0, 3), min_size=1, max_size=4),
                st.integers(0, 6),
                st.integers(0, 2),
                st.none() | st.integers(0, 9),
            ),
        ),
        max_size=40,
    )
)
def test_the_count_of_pending_nodes_is_the_size_of_the_tree(history):
    sender = Sender()
    for name, *arguments in history:
        if name == "settle":
            sender.settle(*arguments)
        elif name == "drop":
            sender.tree.drop_pending()
        else:
            tokens, position, epoch, parent = arguments
            with contextlib.suppress(InvalidInput):
                sender.send(tokens, position=position, epoch=epoch, parent=parent)
        nodes, stack = 0, [*sender.tree._roots.values()]
        while stack:
            node = stack.pop()
            assert node.position >= len(sender.tree.settled)
            nodes += 1
            stack.extend(node.children.values())
        assert sender.tree.pending == nodes <= WINDOW


# ---------------------------------------------------------------- given tokens have the last word


def test_a_given_token_takes_the_place_of_a_settled_one_and_the_tail_goes_on(sender):
    sender.settle(1, 2, 3)
    assert sender.send([1, 9, 4], given_flags=(False, True), final=1) == Received(fresh=2, late=1, cut=1)
    assert (sender.tree.settled, sender.line(), sender.tree.given_next) == ([1], [9, 4], 9)
    sender.settle(9)
    assert (sender.line(), sender.tree.given_next) == ([4], None)


def test_it_does_so_in_a_new_epoch_and_behind_a_node_that_was_settled(sender):
    sender.send([1, 2])
    sender.settle(1, 2, 3, 4)
    assert sender.send([8], position=2, given_flags=(True,)).cut == 2
    assert sender.send([7], position=1, epoch=1, given_flags=(True,)).cut == 1
    assert (sender.tree.settled, sender.line(), sender.tree.pending) == ([1], [7], 1)


def test_what_hung_on_the_tokens_that_gave_way_is_gone(sender):
    sender.send([1, 2, 3, 4])
    sender.settle(1, 2)
    assert sender.send([8], position=1, parent=1, given_flags=(True,)) == Received(fresh=1, cut=1)
    assert (sender.line(), sender.tree.pending) == ([8], 1)
    assert sender.send([5], position=2, parent=2) == Received(), "node 2 was settled, and is no more"
    assert sender.send([5], position=4, parent=4) == Received()
    assert sender.send([6], position=2, parent=5) == Received(fresh=1)


def test_a_given_token_behind_a_draft_that_the_target_has_refused_falls_with_it(sender):
    sender.send([1, 2])
    sender.settle(7, 8)
    assert sender.send([5], position=2, given_flags=(True,)) == Received()
    assert sender.send([1, 5], position=0, epoch=1, given_flags=(False, True)) == Received()
    assert sender.tree.settled == [7, 8]


@pytest.mark.parametrize(
    ("flags", "limit", "drafts", "length"),
    [
        ("dddd", 3, None, 3),
        ("dddg", 3, None, 2),  # so that the target's own token comes in the place of a draft
        ("dggg", 3, None, 3),  # all of it would be lost
        ("dgdg", 3, None, 2),
        ("gddg", 9, 1, 2),
        ("gdgd", 9, 1, 3),
        ("ggdd", 9, 0, 2),
        ("ddgg", 9, 1, 1),
        ("gggg", 0, None, 0),
    ],
)
def test_a_chain_leaves_the_target_a_place_that_is_its_own_to_fill(sender, flags, limit, drafts, length):
    sender.send([1, 2, 3, 4], given_flags=[flag == "g" for flag in flags])
    assert [node.token for node in sender.tree.chain(limit, drafts)] == [1, 2, 3, 4][:length]


def test_one_that_agrees_changes_nothing(sender):
    sender.settle(1, 2)
    assert sender.send([1, 2, 3], given_flags=(True, True, True), final=2) == Received(fresh=1)
    assert sender.tree.settled == [1, 2]


@pytest.mark.parametrize(("final", "window"), [(2, 8), (0, 1)])
def test_a_refused_veto_leaves_all_as_it_was(sender, final, window):
    sender.send([1, 2, 3])
    sender.settle(1, 2)
    before = copy.deepcopy(sender.tree)
    with pytest.raises(InvalidInput) as caught:
        sender.send([9, 8], position=1, epoch=1, given_flags=(True,), final=final, window=window)
    assert caught.value.field == ("draft.given" if final else "draft.tokens")
    assert (sender.tree.settled, sender.line(), sender.tree.pending) == ([1, 2], [3], 1)
    assert (sender.tree.epoch, sender.tree._nodes.keys()) == (0, before._nodes.keys())
