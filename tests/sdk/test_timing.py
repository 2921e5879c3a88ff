"""The model of time: its formulas against counting, its limits, and an event simulation at a few points."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput
from edgedraft.timing import (
    Times,
    best_gamma,
    break_even_rtt,
    capacity_gain,
    clients,
    expected_tokens,
    pipelined,
    roofline,
    running_ahead,
    synchronous,
)

alphas = st.floats(0, 0.99)
seconds = st.floats(0.001, 1)
times = st.builds(Times, draft=seconds, verify=seconds, rtt=st.floats(0, 2), decode=seconds)


@given(alphas, st.integers(0, 40))
def test_a_round_settles_its_right_drafts_and_one_token_more(alpha, gamma):
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**right for right in range(gamma + 1)))


@given(alphas, times)
def test_the_best_gamma_is_the_best(alpha, at):
    gamma, best = best_gamma(alpha, at)
    assert best == synchronous(alpha, gamma, at) == min(synchronous(alpha, each, at) for each in range(1, 25))


@given(alphas, times)
def test_both_sides_running_ahead_is_never_slower_than_the_cloud(alpha, at):
    assert 0 < running_ahead(alpha, at) <= at.decode


@given(alphas, times, st.floats(0, 0.9), st.floats(0, 1))
def test_a_longer_way_never_helps_and_branches_never_hurt(alpha, at, covered, longer):
    farther = Times(at.draft, at.verify, at.rtt + longer, at.decode)
    for policy in (pipelined, running_ahead):
        assert policy(alpha, farther, covered=covered) >= policy(alpha, at, covered=covered) * (1 - 1e-9)
    assert pipelined(alpha, at, covered=covered) <= pipelined(alpha, at) * (1 + 1e-9)


@given(alphas, st.integers(0, 24), times)
def test_at_the_break_even_both_take_the_same_time(alpha, gamma, at):
    rtt = break_even_rtt(alpha, gamma, at)
    if rtt >= 0:
        there = Times(at.draft, at.verify, rtt, at.decode)
        assert synchronous(alpha, gamma, there) == pytest.approx(at.decode)


@pytest.mark.parametrize("streak", [1, 3, 6])
def test_tokens_until_a_streak_of_right_drafts(streak):
    """The device gets in front after so many in a row; with a draft that takes no time, the rest is the cloud's."""
    alpha, draws = 0.7, random.Random(streak)
    tried = 0
    for _ in range(4_000):
        run = 0
        while run < streak:
            tried += 1
            run = run + 1 if draws.random() < alpha else 0
    at = Times(draft=1e-12, verify=1e-12, rtt=streak - 0.5, decode=1.0)
    alone, ahead = tried / 4_000, 1 / (1 - alpha)
    assert running_ahead(alpha, at, block=1) == pytest.approx(alone / (alone + ahead), rel=0.05)


SIMULATED = {  # t_ar = T_verify, RTT: chain, and both with a tree, in ms a token; a trace of α = 0.84, T_draft 20 ms
    (30, 50): (33, 26),
    (30, 100): (43, 28),
    (30, 200): (61, 29),
    (60, 50): (41, 34),
    (60, 100): (48, 36),
    (60, 200): (66, 41),
    (100, 100): (58, 45),
    (100, 200): (76, 52),
}


@pytest.mark.parametrize(("step", "rtt"), SIMULATED)
def test_it_is_near_an_event_simulation(step, rtt):
    chain, both = SIMULATED[step, rtt]
    at = Times(0.020, step / 1000, rtt / 1000, step / 1000)
    tree = Times(0.022, step / 1000, rtt / 1000, step / 1000)
    assert pipelined(0.84, at) * 1000 == pytest.approx(chain, rel=0.1)
    assert running_ahead(0.84, tree, covered=0.4) * 1000 == pytest.approx(both, rel=0.1)


def test_where_drafting_is_slower_than_the_cloud_it_gains_nothing():
    assert running_ahead(0.9, Times(0.03, 0.03, 0.0, 0.03)) == 0.03
    assert running_ahead(0.0, Times(0.01, 0.03, 0.0, 0.03)) == 0.03
    assert running_ahead(0.5, Times(0.029, 0.03, 1000.0, 0.03)) == 0.03


def test_a_target_beside_its_drafter_serves_fewer():
    assert capacity_gain(4, 0.01, 0.02) == 3
    step = lambda rows: roofline(rows, base=0.02, knee=64)  # noqa: E731
    assert clients(0.02, 1.0, 1.0, step) == 64
    assert clients(0.04, 1.0, 1.0, step) == 128
    assert clients(0.0199, 1.0, 1.0, step) == 0
    assert clients(0.02, 3.0, 4.0, step, beside=0.02) == 32 < clients(0.02, 3.0, 4.0, step) == 48


@pytest.mark.parametrize(
    ("act", "field"),
    [
        (lambda: expected_tokens(1.0, 3), "acceptance"),
        (lambda: expected_tokens(-0.1, 3), "acceptance"),
        (lambda: expected_tokens(0.5, -1), "gamma"),
        (lambda: Times(0.0, 1, 1, 1), "times.draft"),
        (lambda: Times(1, 1, -1, 1), "times.rtt"),
        (lambda: Times(1, float("nan"), 1, 1), "times.verify"),
        (lambda: pipelined(0.5, Times(1, 1, 0, 1), covered=1.0), "covered"),
        (lambda: pipelined(0.5, Times(1, 1, 0, 1), block=0), "block"),
    ],
)
def test_what_cannot_be_is_refused(act, field):
    with pytest.raises(InvalidInput) as caught:
        act()
    assert caught.value.field == field
