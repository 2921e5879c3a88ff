"""Two views of one text: how far they are apart, and who decides by that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.drafters.base import Candidates, Contrast, Feed
from edgedraft.drafters.contrast import compare, compare_listed
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.errors import InvalidInput
from edgedraft.privacy.gate import DecisionRule

logits = st.lists(st.floats(-20, 20), min_size=8, max_size=8).map(lambda row: np.array(row, np.float32))


@given(private=logits, public=logits, k=st.integers(1, 8))
def test_a_contrast_is_the_total_variation_of_two_softmaxes(private, public, k):
    p, q = (np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum() for row in (private, public))
    contrast = compare(private, public, k)
    assert contrast.distance == pytest.approx(0.5 * np.abs(p - q).sum(), abs=1e-6)
    ids = list(contrast.candidates.ids)
    assert len(set(ids)) == k
    assert contrast.candidates.probs == pytest.approx(p[ids], rel=1e-5)
    assert contrast.public == pytest.approx(q[ids], rel=1e-5)
    assert list(contrast.candidates.probs) == sorted(contrast.candidates.probs, reverse=True)
    assert contrast.candidates.probs[-1] == pytest.approx(np.sort(p)[-k], rel=1e-5)


@given(row=logits)
def test_a_view_is_at_no_distance_from_itself(row):
    assert compare(row, row, 3).distance == 0.0


def test_views_with_nothing_in_common_are_at_distance_one():
    assert compare(np.float32([50, 0, 0, 0]), np.float32([0, 50, 0, 0]), 1).distance == pytest.approx(1.0)


def test_a_large_vocabulary_is_summed_exactly_enough():
    draws = np.random.default_rng(1)
    row = draws.normal(size=150_000).astype(np.float32)
    other = row + np.float32(0.01) * draws.normal(size=150_000).astype(np.float32)
    p, q = (np.exp(each.astype(np.float64)) / np.exp(each.astype(np.float64)).sum() for each in (row, other))
    assert compare(row, other, 1).distance == pytest.approx(0.5 * np.abs(p - q).sum(), rel=1e-4)


def test_listed_choices_are_compared_with_what_they_leave_over():
    private, public = Candidates((1, 2), (0.5, 0.25)), Candidates((2, 3), (0.5, 0.5))
    contrast = compare_listed(private, public, 1)
    assert contrast.distance == pytest.approx((0.5 + 0.25 + 0.5 + 0.25) / 2)
    assert (contrast.candidates, contrast.public) == (Candidates((1,), (0.5,)), (0.0,))


def test_a_scripted_drafter_compares_its_two_sequences():
    drafter = ScriptedDrafter(lambda tokens: (tokens[-1], 9), vocab_size=10)
    private, public = drafter.new_sequence(), drafter.new_sequence()
    same = drafter.contrast(Feed(private, [1, 2]), Feed(public, [2]), 1)
    assert (same.distance, same.candidates.ids) == (0.0, (2,))
    apart = drafter.contrast(Feed(private, [3]), Feed(public, [4]), 2)
    assert (apart.distance, apart.candidates.ids) == (0.5, (3, 9))
    assert drafter.contrast(Feed(private, [5]), Feed(public, [5]), 2).distance == 0.0


def contrast(distance: float, *probabilities: float) -> Contrast:
    return Contrast(Candidates(tuple(range(len(probabilities))), probabilities), probabilities, distance)


def test_the_device_decides_where_the_views_are_further_apart_than_theta():
    rule = DecisionRule(theta=0.4)
    assert rule.device_decides(contrast(0.41, 1.0))
    assert not rule.device_decides(contrast(0.4, 1.0))
    assert not DecisionRule(theta=1.0).device_decides(contrast(1.0, 1.0))


def test_a_token_of_the_target_is_taken_if_it_is_plausible_enough():
    rule = DecisionRule(cut=0.1)
    seen = contrast(0.0, 0.5, 0.05, 0.049)
    assert [rule.takes(seen, token) for token in (0, 1, 2, 7)] == [True, True, False, False]
    assert all(DecisionRule(cut=0.0).takes(seen, token) for token in (0, 2, 7))
    assert [DecisionRule(cut=1.0).takes(seen, token) for token in (0, 1)] == [True, False]


@pytest.mark.parametrize("setting", [{"theta": -0.1}, {"theta": 1.1}, {"cut": float("nan")}, {"cut": 2}])
def test_a_rule_out_of_range_names_its_field(setting):
    with pytest.raises(InvalidInput) as caught:
        DecisionRule(**setting)
    assert caught.value.field == f"rule.{next(iter(setting))}"
