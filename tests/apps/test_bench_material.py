"""Trace drafters: they draft what was recorded, at the share of right ones that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.drafters.base import Feed
from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.trace_drafter import (
    AnyMaterial,
    RecordedMaterial,
    TraceCodec,
    TraceDrafter,
    at_acceptance_rate,
)
from edgedraft_cloud.engines.trace import any_token
from edgedraft_cloud.engines.trace_file import Trace, TraceFile, TraceHeader

HEADER = TraceHeader("big", "aa", "small", "bb", "cc", 100, 64, (2,), 4, "a machine")
TRACE = Trace((5, 6), (10, 11, 12, 13), ((10, 9), (8, 11), (12, 1), (3, 13)), ((0.9, 0.1),) * 4)
OTHER = Trace((5, 6, 7), (20, 2), ((20,), (9,)), ((0.5,), (0.5,)))
FILE = TraceFile(HEADER, {TRACE.prompt: TRACE, OTHER.prompt: OTHER})


def test_on_the_path_it_drafts_what_was_recorded_and_off_it_what_the_target_rejects():
    drafter = TraceDrafter(RecordedMaterial(FILE), 0.25, sleep=(slept := []).append)
    sequence = drafter.new_sequence()
    (found,) = drafter.step([Feed(sequence, TRACE.prompt)], 2)
    assert (found.ids, found.probs) == ((10, 9), (0.9, 0.1))
    (found,) = drafter.step([Feed(sequence, [10])], 1)
    assert found.ids == (8,)
    branch = drafter.fork(sequence, 3)
    (wrong, right) = drafter.step([Feed(sequence, [8]), Feed(branch, [11])], 1)
    assert wrong.ids[0] != TRACE.tokens[2]
    assert right.ids == (12,)
    drafter.truncate(sequence, 3)
    (found,) = drafter.step([Feed(sequence, [11, 12])], 8)
    assert found.ids == (3, 13)
    drafter.step([Feed(sequence, [13])], 8)  # beyond what was recorded it says something too
    assert slept == [0.25] * 5
    drafter.free(sequence)
    drafter.close()


def test_a_prompt_that_was_not_recorded_is_refused():
    drafter = TraceDrafter(RecordedMaterial(FILE))
    with pytest.raises(InvalidInput, match="not in the trace"):
        drafter.step([Feed(drafter.new_sequence(), [1, 2, 3])], 1)


def test_the_text_of_a_prompt_is_its_number():
    codec = TraceCodec(RecordedMaterial(FILE))
    assert codec.encode("0") == list(TRACE.prompt)
    assert codec.encode_chat([{"role": "user", "content": "3"}]) == list(OTHER.prompt)
    assert (codec.vocab_size, codec.fingerprint, codec.eos_token_ids) == (100, "cc", (2,))
    assert codec.token_bytes(7) == b"x"


def test_an_answer_is_no_longer_than_was_recorded():
    material = RecordedMaterial(FILE)
    assert [material.length(0, 100), material.length(1, 100), material.length(0, 3)] == [4, 2, 3]
    assert AnyMaterial(1.0).length(0, 10**6) < 10**4


@given(st.floats(0, 1), st.integers(0, 5))
def test_traces_can_be_made_right_as_often_as_wanted(alpha, seed):
    changed = at_acceptance_rate([TRACE, OTHER], alpha, seed)
    assert sum(trace.right for trace in changed) == round(alpha * 6)
    assert [(trace.prompt, trace.tokens) for trace in changed] == [(t.prompt, t.tokens) for t in (TRACE, OTHER)]
    for before, after in zip((TRACE, OTHER), changed, strict=True):
        assert [len(ids) for ids in after.choices] == [len(ids) for ids in before.choices]
        assert all(len(set(ids)) == len(ids) for ids in after.choices)


def test_only_as_many_choices_change_as_must():
    for alpha, flips in ((3 / 6, 0), (4 / 6, 1), (1 / 6, 2)):
        changed = at_acceptance_rate([TRACE, OTHER], alpha, 0)
        pairs = zip(TRACE.choices + OTHER.choices, changed[0].choices + changed[1].choices, strict=True)
        assert sum(before != after for before, after in pairs) == flips
    assert at_acceptance_rate([TRACE, OTHER], 2 / 6, 1) == at_acceptance_rate([TRACE, OTHER], 2 / 6, 1)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_acceptance_rate_out_of_range_is_refused(alpha):
    with pytest.raises(InvalidInput, match="alpha"):
        AnyMaterial(alpha)
    with pytest.raises(InvalidInput, match="alpha"):
        RecordedMaterial(FILE, alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.65, 0.8, 1.0])
def test_any_material_is_right_as_often_as_asked(alpha):
    material = AnyMaterial(alpha, seed=3)
    right = 0
    for number in range(20):
        tokens = material.prompt(number)
        for _ in range(100):
            right += material.draft(tokens).ids[0] == any_token(len(tokens))
            tokens.append(any_token(len(tokens)))
    assert right / 2000 == pytest.approx(alpha, abs=0.03)
