"""What is learnt of a session: how many of its drafts are right, and how soon new ones come."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft_cloud.habits import Habits


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_the_acceptance_is_that_of_the_draws(alpha):
    draws, habits, seen = random.Random(1), Habits(), []
    for _ in range(2000):
        right = next((n for n in range(4) if draws.random() >= alpha), 4)
        habits.judged(right, 4)
        seen.append(habits.acceptance)
    assert sum(seen[200:]) / len(seen[200:]) == pytest.approx(alpha, abs=0.05)


def test_it_follows_a_session_that_changes():
    habits = Habits()
    for _ in range(100):
        habits.judged(4, 4)
    assert habits.acceptance > 0.95
    for _ in range(100):
        habits.judged(0, 4)
    assert habits.acceptance < 0.1


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=200))
def test_the_acceptance_is_a_probability_whatever_is_judged(steps):
    habits = Habits()
    for accepted, judged in steps:
        habits.judged(min(accepted, judged), judged)
        assert 0 < habits.acceptance < 1


def test_steps_without_drafts_say_nothing():
    habits = Habits()
    before = habits.acceptance
    for _ in range(10):
        habits.judged(0, 0)
    assert habits.acceptance == before


def test_a_session_is_expected_as_soon_as_it_used_to_return():
    habits = Habits()
    for start in range(20):
        habits.parted(float(start))
        habits.returned(start + 0.25)
    habits.parted(100.0)
    assert habits.returns_within(0.3, 100.0)
    assert not habits.returns_within(0.2, 100.0)


def test_a_session_that_is_late_is_expected_no_more():
    habits = Habits()
    habits.parted(0.0)
    assert habits.returns_within(0.3, 0.1)  # nothing is known of it yet
    assert not habits.returns_within(0.3, 0.4)
    habits.parted(0.5)  # the cloud went on by itself: it is the first verdict that the device answers
    assert not habits.returns_within(0.3, 0.5)


def test_a_session_whose_drafts_are_there_is_not_expected():
    habits = Habits()
    assert not habits.returns_within(1.0, 0.0)
    habits.parted(0.0)
    habits.returned(0.1)
    assert not habits.returns_within(1.0, 0.2)
