"""The acceptance rule: greedy is exact; at a temperature the distribution is the target's, whatever is drafted."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edgedraft_cloud import verification
from edgedraft_cloud.engines.base import Sampling
from edgedraft_cloud.verification import choose, probabilities, verify

VOCAB = 8
GREEDY = Sampling()
LOGITS = np.random.default_rng(5).normal(0, 1.5, (4, VOCAB)).astype(np.float32)
SAMPLINGS = {
    "plain": Sampling(temperature=1.0),
    "hot": Sampling(temperature=1.7),
    "top_k": Sampling(temperature=1.0, top_k=4),
    "top_p": Sampling(temperature=1.0, top_p=0.8),
    "both": Sampling(temperature=0.8, top_k=5, top_p=0.9),
}
RUNS = 3_000
DOUBT = 1e-4
"""The draws are seeded, so a p-value below this is a wrong distribution and not bad luck."""


def fit(counts: Counter, expected: dict) -> float:
    """P-value of the observed counts under the expected probabilities; what cannot happen must not have happened."""
    assert {key for key in counts if expected[key] == 0} == set()
    total = sum(counts.values())
    seen, awaited = [0], [0.0]
    for key, probability in sorted(expected.items(), key=lambda item: item[1]):
        if 0 < awaited[-1] < 5:  # the test needs some weight in each cell, so rare ones are put together
            seen[-1] += counts[key]
            awaited[-1] += probability * total
        elif probability > 0:
            seen.append(counts[key])
            awaited.append(probability * total)
    return float(stats.chisquare(seen[1:], awaited[1:]).pvalue) if len(seen) > 2 else 1.0


def first_tokens(draft: int, sampling: Sampling, seed: int = 1) -> Counter:
    draws = np.random.default_rng(seed)
    return Counter(verify(LOGITS[:2], [draft], (), sampling, draws)[0][0] for _ in range(RUNS))


def distribution(row: np.ndarray, sampling: Sampling) -> dict[int, float]:
    return dict(enumerate(probabilities(row, sampling)))


# ---------------------------------------------------------------- greedy


@given(
    best=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    draft=st.lists(st.integers(0, VOCAB - 1), max_size=5),
)
def test_greedy_accepts_while_the_draft_is_the_targets_own_choice(best, draft):
    draft = draft[: len(best) - 1]
    logits = np.eye(VOCAB, dtype=np.float32)[best]
    right = next((index for index, token in enumerate(draft) if token != best[index]), len(draft))
    assert verify(logits, draft, (), GREEDY, np.random.default_rng(0)) == (best[: right + 1], right)


def test_greedy_takes_the_lowest_id_among_equals_as_argmax_does():
    assert verify(np.zeros((2, VOCAB), np.float32), [0], (), GREEDY, np.random.default_rng(0)) == ([0, 0], 1)


def test_an_empty_chain_decodes_one_token():
    assert verify(LOGITS[:1], [], (), GREEDY, np.random.default_rng(0)) == ([int(LOGITS[0].argmax())], 0)


# ---------------------------------------------------------------- given tokens


def test_given_tokens_are_taken_though_the_target_would_not():
    worst = [int(row.argmin()) for row in LOGITS]
    best = [int(row.argmax()) for row in LOGITS]
    draws = np.random.default_rng(0)
    assert verify(LOGITS, worst[:3], (True, True, True), GREEDY, draws) == ([*worst[:3], best[3]], 3)
    assert verify(LOGITS, worst[:3], (True, False, True), GREEDY, draws) == ([worst[0], best[1]], 1)


def test_given_tokens_use_no_draws():
    draws, untouched = np.random.default_rng(3), np.random.default_rng(3)
    sampling = Sampling(temperature=1.0)
    tokens, accepted = verify(LOGITS[:3], [7, 7], (True, True), sampling, draws)
    assert (tokens, accepted) == ([7, 7, choose(LOGITS[2], sampling, untouched)], 2)


# ---------------------------------------------------------------- sampling


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("rank", [0, 2, VOCAB - 1])
def test_the_next_token_is_distributed_as_the_targets_whatever_is_drafted(name, rank):
    draft = int(np.argsort(-LOGITS[0])[rank])
    assert fit(first_tokens(draft, SAMPLINGS[name]), distribution(LOGITS[0], SAMPLINGS[name])) > DOUBT


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_chain_of_drafts_leaves_the_joint_distribution_alone(name):
    """The rows do not depend on the tokens here, so the joint distribution is the product."""
    sampling = SAMPLINGS[name]
    draft = [int(row.argmax()) for row in LOGITS[:2]]
    draws = np.random.default_rng(2)
    counts: Counter = Counter()
    for _ in range(RUNS):
        tokens, _ = verify(LOGITS[:3], draft, (), sampling, draws)
        if len(tokens) < 2:  # rejected at once: the next step decodes from the second row
            tokens.append(choose(LOGITS[1], sampling, draws))
        counts[tuple(tokens[:2])] += 1
    first, second = distribution(LOGITS[0], sampling), distribution(LOGITS[1], sampling)
    assert fit(counts, {(a, b): first[a] * second[b] for a in first for b in second}) > DOUBT


def test_a_rejected_token_is_never_what_replaces_it():
    draws = np.random.default_rng(4)
    outcomes = [verify(LOGITS[:2], [3], (), SAMPLINGS["plain"], draws) for _ in range(2000)]
    rejected = Counter(tokens[0] for tokens, accepted in outcomes if accepted == 0)
    assert rejected[3] == 0
    p = probabilities(LOGITS[0], SAMPLINGS["plain"])
    without = {token: float(p[token] / (1 - p[3])) if token != 3 else 0.0 for token in range(VOCAB)}
    assert fit(rejected, without) > DOUBT
    assert all(tokens[0] == 3 and len(tokens) == 2 for tokens, accepted in outcomes if accepted == 1)


def test_a_certain_token_is_always_accepted_and_an_impossible_one_never():
    row = np.full((2, VOCAB), -np.inf, np.float32)
    row[:, 5] = 0.0
    draws = np.random.default_rng(0)
    for _ in range(100):
        assert verify(row, [5], (), SAMPLINGS["plain"], draws) == ([5, 5], 1)
        assert verify(row, [4], (), SAMPLINGS["plain"], draws) == ([5], 0)


def test_the_test_of_the_distribution_can_fail(monkeypatch):
    """Resampling from p instead of p without the rejected token, or accepting too readily, must show."""
    plain = SAMPLINGS["plain"]
    p = probabilities(LOGITS[0], plain)
    draft = int(np.argsort(-p)[1])
    assert fit(first_tokens(draft, plain), dict(enumerate(p))) > DOUBT

    real = verification._sample
    monkeypatch.setattr(verification, "_sample", lambda weights, draws: real(probabilities(LOGITS[0], plain), draws))
    assert fit(first_tokens(draft, plain), dict(enumerate(p))) < DOUBT
    monkeypatch.undo()
    assert fit(first_tokens(draft, Sampling(temperature=1.1)), dict(enumerate(p))) < DOUBT


def test_a_seed_fixes_the_draws():
    runs = [verify(LOGITS, [1, 2, 3], (), SAMPLINGS["plain"], np.random.default_rng(9)) for _ in range(2)]
    assert runs[0] == runs[1]


# ---------------------------------------------------------------- the distribution itself


def test_top_k_and_top_p_keep_what_they_say():
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert probabilities(row, Sampling(temperature=1.0)) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert probabilities(row, Sampling(temperature=1.0, top_k=2)) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert probabilities(row, Sampling(temperature=1.0, top_k=99)) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    # The smallest set that covers it: 0.4 covers 0.35, and 0.5 needs two.
    assert probabilities(row, Sampling(temperature=1.0, top_p=0.35)) == pytest.approx([1, 0, 0, 0])
    assert probabilities(row, Sampling(temperature=1.0, top_p=0.5)) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # top_k first, then top_p of what is left.
    assert probabilities(row, Sampling(temperature=1.0, top_k=2, top_p=0.55)) == pytest.approx([1, 0, 0, 0])


@settings(max_examples=200, deadline=None)
@given(
    row=st.lists(st.integers(-80, 80), min_size=1, max_size=30),
    temperature=st.floats(0.05, 10),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 40),
)
def test_probabilities_sum_to_one_and_keep_the_best(row, temperature, top_p, top_k):
    row = np.array(row, np.float32)
    p = probabilities(row, Sampling(temperature, top_p, top_k))
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    assert p.max() == p[row == row.max()].max() > 0
    if top_k:
        assert np.count_nonzero(p) <= top_k


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60),
    top_p=st.floats(0.01, 0.999),
    temperature=st.floats(0.1, 4),
)
def test_top_p_keeps_what_sorting_everything_would(logits, top_p, temperature):
    """The shortcut that sorts only part of the vocabulary changes nothing."""
    row = np.array(logits, np.float32)
    p = probabilities(row, Sampling(temperature=temperature))
    order = np.argsort(-p, kind="stable")
    kept = order[np.cumsum(p[order]) - p[order] < top_p]
    expected = np.zeros_like(p)
    expected[kept] = p[kept] / p[kept].sum()
    np.testing.assert_allclose(probabilities(row, Sampling(temperature=temperature, top_p=top_p)), expected, rtol=1e-12)
