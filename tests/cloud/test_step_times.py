"""The roofline of steps: what is found from noisy times, what is forgotten, and how an engine is measured."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft.errors import Overloaded, VerifierUnavailable
from edgedraft_cloud.engines.base import Engine, EngineInfo, Outcome, Step, Work
from edgedraft_cloud.step_times import STRETCH, Roofline, StepTimes, fit, measure, most_rows


def spaced(most: int = 4096) -> list[int]:
    """Two numbers of rows to an octave."""
    found = [1]
    while found[-1] < most:
        found.append(max(found[-1] + 1, math.ceil(found[-1] * math.sqrt(2))))
    return found


rooflines = st.builds(
    lambda base, knee, steepness: Roofline(base, steepness * base / knee, knee),
    base=st.floats(0.001, 0.2),
    knee=st.floats(2.0, 300.0),
    steepness=st.floats(0.3, 2.0),
)


@settings(max_examples=300)
@given(line=rooflines, noise=st.sampled_from([0.0, 0.02, 0.05]), seed=st.integers(0, 10**6))
def test_the_fit_finds_the_roofline_that_the_times_come_from(line, noise, seed):
    draws = random.Random(seed)
    points = [(float(n), line.seconds(n) * (1 + draws.uniform(-noise, noise))) for n in spaced(2048)]
    points = [point for point in points if point[1] < 8 * line.base]
    found = fit(points)
    assert found.base == pytest.approx(line.base, rel=0.15)
    assert found.slope == pytest.approx(line.slope, rel=0.3)
    # Candidates are half an octave apart.
    assert abs(math.log2(found.knee / line.knee)) <= 1.0
    assert found.room == pytest.approx(line.room, rel=0.15)


def test_the_room_is_where_a_step_takes_a_set_multiple_of_the_shortest():
    line = Roofline(base=0.030, slope=0.001, knee=64)
    assert line.seconds(1) == line.seconds(64) == 0.030
    assert line.seconds(line.room) == pytest.approx(STRETCH * 0.030)
    assert Roofline(0.030, 0.0, 64).room == math.inf


@given(st.lists(st.floats(0.001, 10.0), min_size=2, max_size=12))
def test_times_without_any_law_still_make_a_roofline(times):
    line = fit([(float(rows), seconds) for rows, seconds in zip(spaced(), times, strict=False)])
    assert line.base > 0
    assert line.slope >= 0
    assert line.room >= 1


@given(
    st.lists(st.tuples(st.integers(1, 4096), st.just(0.0) | st.floats(1e-7, 10.0)), max_size=50), st.integers(1, 4096)
)
def test_the_room_is_two_rows_at_least_and_what_the_engine_takes_at_most(observed, most):
    times = StepTimes(most)
    assert times.room == most
    for rows, seconds in observed:
        times.observe(rows, seconds)
    assert min(2, most) <= times.room <= max(2, most)


@pytest.mark.parametrize(("fixed", "most", "room"), [(48, 100, 48), (48, 32, 32)])
def test_a_room_that_is_set_is_not_measured(fixed, most, room):
    times = StepTimes(most, fixed)
    for rows in range(1, 100):
        times.observe(rows, float(rows))
    assert times.room == room


def test_a_machine_that_gets_slower_is_followed():
    times = StepTimes(4096)
    fast, slow = Roofline(0.01, 0.0001, 100), Roofline(0.01, 0.0004, 100)
    for line in (fast, slow):
        for _ in range(30):
            for rows in spaced(1024):
                times.observe(rows, line.seconds(rows))
        assert times.room == pytest.approx(line.room, rel=0.1)


def test_a_slow_minute_is_got_over_though_full_steps_are_all_that_is_seen():
    line = Roofline(0.03, 0.0005, 64)
    times = StepTimes(4096)
    for rows in spaced(1024):
        times.observe(rows, line.seconds(rows))
    for factor, steps in ((3.0, 100), (1.0, 1000)):
        for _ in range(steps):
            times.observe(times.room, factor * line.seconds(times.room))
    assert times.room == pytest.approx(line.room, rel=0.1)


@pytest.mark.parametrize("most", [512, 2048])
def test_steps_that_stand_still_do_not_shrink_the_room(most):
    """One in three hundred, for any reason, and else full steps only: as on a server that is busy for days."""
    line = Roofline(0.03, 0.0002, 200)
    times = StepTimes(most)
    for rows in spaced(most):
        times.observe(rows, line.seconds(rows))
    before = times.room
    for number in range(6000):
        times.observe(times.room, 10.0 if number % 300 == 0 else line.seconds(times.room))
    assert times.room == pytest.approx(before, rel=0.05)


def test_a_room_that_a_row_of_them_has_shrunk_grows_back():
    """Also where it shrank so far that no step comes to measure what they changed."""
    line = Roofline(0.03, 0.0002, 200)
    times = StepTimes(512)
    for rows in spaced(512):
        times.observe(rows, line.seconds(rows))
    shrunk = []
    for _ in range(4):
        for _ in range(20):
            times.observe(times.room, 10.0)
        shrunk.append(times.room)
        for _ in range(2000):
            times.observe(times.room, line.seconds(times.room))
    assert min(shrunk) < 400
    assert times.room == 512


def test_a_clock_that_saw_no_time_pass_says_nothing():
    times = StepTimes(100)
    times.observe(1, 0.0)
    times.observe(50, 0.0)
    assert times.roofline is None
    assert times.room == 100


# ---------------------------------------------------------------- measuring


class Timed(Engine):
    """Takes no time but says that it did, by a roofline over the rows of a step; the first of each size is slow."""

    def __init__(self, line: Roofline, *, sessions: int = 64, die_at: int = 10**9, room: int = 64, **changes) -> None:
        facts = {"max_block": 16, "max_sessions": sessions, "context_length": 4096, **changes}
        self._info = EngineInfo("timed", "toy", "f", "t", 100, eos_token_ids=(), **facts)
        self._line = line
        self._die_at = die_at
        self._room = room
        self._submitted = 0
        self._taken = 0
        self._queue: list[tuple[bool, list[Work]]] = []
        self._seen: set[int] = set()
        self.lengths: dict[str, int] = {}
        self.rows: list[int] = []

    @property
    def info(self):
        return self._info

    async def start(self):
        raise AssertionError("it is running")

    async def open(self, session, prompt, sampling, salt):
        if len(self.lengths) >= self._room:
            raise Overloaded("no room", 1.0)
        assert session not in self.lengths
        self.lengths[session] = len(prompt)
        self._queue.append((True, [Work(session)]))

    def submit(self, works):
        self._submitted += 1
        self._queue.append((False, [*works]))
        return self._submitted

    async def step(self):
        opening, works = self._queue.pop(0)
        rows = sum(len(work.tokens) + 1 for work in works)
        if rows >= self._die_at:
            raise VerifierUnavailable("died")
        for work in works:
            assert len(work.tokens) <= self._info.max_block
            self.lengths[work.session] += len(work.tokens) + 1
            assert self.lengths[work.session] <= self._info.context_length
        if not opening:
            self._taken += 1
            self.rows.append(rows)
        seconds = self._line.seconds(rows) * (1 if rows in self._seen else 50)
        self._seen.add(rows)
        outcomes = tuple(Outcome(work.session, (1,), 0, len(work.tokens)) for work in works)
        return Step(self._taken, outcomes, tokens=rows, seconds=seconds)

    def release(self, session):
        self.lengths.pop(session, None)

    async def close(self):
        raise AssertionError("it goes on")


@pytest.mark.parametrize("line", [Roofline(0.03, 0.0005, 64), Roofline(0.05, 0.01, 4), Roofline(0.2, 0.05, 1)])
async def test_measuring_finds_an_engines_room_and_leaves_it_empty(line):
    engine = Timed(line)
    times = StepTimes(most_rows(engine.info))
    await measure(engine, times)
    assert times.room == pytest.approx(line.room, rel=0.1)
    assert engine.lengths == {}
    assert max(engine.rows) < 3 * line.room, "no longer than it takes"


async def test_an_engine_that_never_slows_down_is_used_to_the_full():
    engine = Timed(Roofline(0.03, 0.0, 1), sessions=4)
    times = StepTimes(most_rows(engine.info))
    await measure(engine, times)
    assert times.room == most_rows(engine.info) == 4 * 17
    assert len(set(engine.rows)) > 8


async def test_an_engine_without_room_for_more_sessions_is_measured_as_far_as_it_goes():
    engine = Timed(Roofline(0.03, 0.0005, 1000), room=2)
    times = StepTimes(most_rows(engine.info))
    await measure(engine, times)
    assert max(engine.rows) <= 2 * 17
    assert times.roofline is not None
    assert engine.lengths == {}


async def test_a_short_context_is_not_overrun():
    engine = Timed(Roofline(0.03, 0.001, 8), context_length=64)
    times = StepTimes(most_rows(engine.info))
    await measure(engine, times)
    assert times.room == pytest.approx(Roofline(0.03, 0.001, 8).room, rel=0.1)


async def test_an_engine_that_dies_while_it_is_measured_says_so():
    engine = Timed(Roofline(0.03, 0.001, 8), die_at=10)
    with pytest.raises(VerifierUnavailable):
        await measure(engine, StepTimes(100))
    assert engine.lengths == {}


@pytest.mark.parametrize(("rows", "most"), [(None, 4 * 9), (20, 20), (1000, 36)])
def test_a_step_has_what_the_sessions_make_or_what_the_engine_takes(rows, most):
    info = EngineInfo("e", "m", "f", "t", 100, 200, 8, 4, (), max_rows=rows)
    assert most_rows(info) == most


def test_a_row_costs_what_the_engine_would_settle_meanwhile():
    times = StepTimes(4096)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        times.observe(rows, 0.030 + 0.001 * max(0, rows - 8))
    assert times.row_price == 0.0  # nothing was earned yet
    for _ in range(50):
        times.earned(32, 30, 0.054)
    assert times.row_price == pytest.approx(0.001 * 30 / 0.054, rel=0.2)


def test_rows_below_the_knee_are_free():
    times = StepTimes(4096)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        times.observe(rows, 0.030 + 0.001 * max(0, rows - 32))
    for _ in range(50):
        times.earned(4, 4, 0.030)
    assert times.row_price == 0.0
