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


def test_frames_are_expected_as_they_used_to_come():
    habits = Habits()
    for start in range(20):
        habits.parted(float(start))
        habits.came(1, start + 0.2)
        habits.came(4, start + 0.25)
        habits.came(4, start + 0.30)
        habits.taken()
    habits.parted(100.0)
    assert habits.back == pytest.approx(0.2)
    assert frames(habits, 100.0) == [(100.2, 1), (100.25, 4)]
    assert frames(habits, 100.22) == [(100.22, 1), (100.27, 4)], "any moment now"
    assert habits.expected(100.31) == [], "it is late"
    habits.came(1, 100.31)
    assert frames(habits, 100.31) == [(100.36, 4)]


def test_nothing_is_expected_of_whom_nothing_is_known():
    habits = Habits()
    assert habits.expected(0.0) == []
    habits.parted(0.0)
    assert habits.expected(0.0) == []
    habits.came(1, 0.1)
    assert habits.expected(0.1) == []
    assert Habits().back == 0.0


def test_what_comes_while_a_step_is_under_way_says_nothing():
    habits = Habits()
    habits.parted(0.0)
    habits.came(1, 0.1)
    habits.taken()
    habits.came(1, 0.5)
    assert habits.back == pytest.approx(0.1)
    assert habits.expected(0.5) == []


def test_a_device_answers_the_first_verdict_though_the_cloud_goes_on_by_itself():
    habits = Habits()
    for now in (0.0, 0.1, 0.2):
        habits.parted(now)
        habits.taken()
    habits.came(1, 0.3)
    assert habits.back == pytest.approx(0.3)


def test_a_verdict_that_leaves_no_drafts_of_those_that_came_meanwhile_begins_anew():
    habits = Habits()
    habits.parted(0.0)
    habits.taken()  # the cloud goes on by itself
    habits.came(1, 0.1)  # in vain: the target puts another token there
    habits.parted(0.5)
    assert frames(habits, 0.5) == [(0.6, 1)]


def frames(habits: Habits, now: float) -> list[tuple[float, float]]:
    return [(round(frame.seconds, 6), round(frame.tokens, 6)) for frame in habits.expected(now)]
