"""Verdicts merged for a device that reads slowly say what they said one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import begun, draft, step

from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.session import merge_verdicts


def test_merged_verdicts_say_what_both_say():
    session = begun()
    session.receive(draft(7, 8), 0.0)
    first = step(session, 7, 8, 9)
    session.receive(draft(1, block=2, position=4, parent=0, settled=4), 0.0)
    second = step(session, 1, 3)
    merged = merge_verdicts(first, second)
    assert (merged.position, list(merged.tokens)) == (1, [7, 8, 9, 1, 3])
    assert (merged.accepted, merged.block, merged.block_used) == (3, 2, True)
    assert list(first.tokens) == [7, 8, 9], "the parts stay as they were"


@pytest.mark.parametrize(("position", "tokens"), [(4, [7, 8, 9, 1, 2]), (3, [7, 8, 1, 2]), (2, [7, 1, 2])])
def test_where_the_device_has_decided_anew_the_second_holds(position, tokens):
    first = pb.Verdict(position=1, tokens=[7, 8, 9], epoch=1)
    second = pb.Verdict(position=position, tokens=[1, 2], epoch=2)
    merged = merge_verdicts(first, second)
    assert (merged.position, list(merged.tokens), merged.epoch) == (1, tokens, 2)


def test_one_that_begins_before_the_first_takes_its_place():
    merged = merge_verdicts(pb.Verdict(position=5, tokens=[7, 8]), pb.Verdict(position=3, tokens=[1]))
    assert (merged.position, list(merged.tokens)) == (3, [1])


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=3, max_size=3), st.integers(0, 5))
def test_merging_is_associative(runs, start):
    verdicts, position = [], start
    for block, tokens in enumerate(runs, 1):
        verdicts.append(
            pb.Verdict(position=position, tokens=tokens, accepted=len(tokens) - 1, block=block, block_used=block == 1)
        )
        position += len(tokens)
    a, b, c = verdicts
    left, right = merge_verdicts(merge_verdicts(a, b), c), merge_verdicts(a, merge_verdicts(b, c))
    assert left == right
    assert list(left.tokens) == [token for tokens in runs for token in tokens]
    assert left.block_used
