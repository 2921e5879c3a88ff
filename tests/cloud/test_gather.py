"""When a step begins: at once, or when those drafts are there that are worth a moment's wait."""

import pytest

from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome
from edgedraft_cloud.gather import COURTESY, MOMENT, PATIENCE, Gathering
from edgedraft_cloud.habits import LATE
from edgedraft_cloud.planner import Planner
from edgedraft_cloud.session import Session, SessionLimits
from edgedraft_cloud.step_times import StepTimes
from edgedraft_cloud.tenants import Tenant

LIMITS = SessionLimits(
    frames=FrameLimits(vocab_size=1000, context_length=10**6, max_block=8),
    max_tokens=10**6,
    context_room=10**6,
    stop_tokens=frozenset(),
    window=32,
    run_ahead=0,
)
STEP = 1.0


@pytest.fixture
def times() -> StepTimes:
    made = StepTimes(64)
    for rows in (1, 2, 4, 8):
        made.observe(rows, STEP)
    return made


@pytest.fixture
def planner(times) -> Planner:
    return Planner(times, 32)


@pytest.fixture
def gathering(times, planner) -> Gathering:
    return Gathering(times, planner)


def session(name: str, returns_after: float, alpha: float = 0.8) -> Session:
    """One that has settled a token just now and has brought drafts so long after each verdict before."""
    made = Session(name, LIMITS, (1,))
    now = 0.0
    settle(made, now)
    for _ in range(3):
        now += returns_after
        draft(made, now)
        made.next_work(8)
        settle(made, now)
    for _ in range(200):
        made.habits.judged(round(10 * alpha), round(10 * alpha) + (alpha < 1))
    return made


def settle(made: Session, now: float) -> None:
    made.apply(Outcome(made.id, (5,), 0), now=now, queue_seconds=0.0, verify_seconds=0.0)


def draft(made: Session, now: float) -> None:
    # A new epoch, since the target put another token there than was drafted.
    send(made, now, made.tree.epoch + 1, len(made.tree.settled))


def send(made: Session, now: float, epoch: int, position: int) -> None:
    new = pb.Draft(epoch=epoch, block=made.tree.last_block + 1, tokens=[7], position=position)
    made.receive(pb.ClientFrame(draft=new), now)


def test_a_step_waits_for_drafts_that_are_nearly_there(gathering):
    near = session("near", 0.1)
    assert gathering.ended([near], 0.3) == pytest.approx(LATE * 0.1)
    draft(near, 0.38)
    assert gathering.changed(near, 0.38) == MOMENT


def test_nobody_waits_for_those_who_take_long(gathering):
    assert gathering.ended([session("far", 1.1 * PATIENCE * STEP)], 3.3 * PATIENCE * STEP) == 0.0


@pytest.mark.parametrize(("rate", "waits"), [(5.0, True), (6.0, False)])
def test_it_waits_while_that_settles_more_than_the_engine_would(gathering, times, rate, waits):
    times.rate = rate
    # One that is right with 0.8 and takes 0.15 s: worth it at less than 5.33 tokens a second.
    assert bool(gathering.ended([session("one", 0.15)], 0.45)) is waits


def test_several_are_worth_a_wait_that_none_of_them_is_by_itself(gathering, times):
    times.rate = 6.0
    assert gathering.ended([session(name, 0.15) for name in "ab"], 0.45) == pytest.approx(LATE * 0.15)


def test_whose_drafts_are_hardly_ever_right_is_not_waited_for(gathering, times):
    times.rate = 5.0
    assert gathering.ended([session("one", 0.15, alpha=0.2)], 0.45) == 0.0


def test_rows_that_cost_more_than_they_settle_are_not_waited_for(gathering, times):
    for rows in (1, 2, 4, 8, 16):
        for _ in range(50):
            times.observe(rows, STEP * rows)
    times.earned(16, 16, 16 * STEP)  # a row takes the time for a token
    assert times.row_price >= 0.8
    assert gathering.ended([session("one", 0.01)], 0.03) == 0.0


def test_the_last_one_that_is_awaited_begins_the_step(gathering):
    first, second = session("first", 0.01), session("second", 0.01)
    assert gathering.ended([first, second], 0.03) > 0
    draft(first, 0.035)
    assert gathering.changed(first, 0.035) is None
    draft(second, 0.04)
    assert gathering.changed(second, 0.04) == MOMENT


def test_more_frames_are_waited_for_where_they_follow_fast(gathering):
    fast = Session("fast", LIMITS, (1,))
    now = 0.0
    for _ in range(5):
        settle(fast, now)
        now += 0.01
        draft(fast, now)
        for _ in range(2):
            now += 0.01
            send(fast, now, fast.tree.epoch, len(fast.tree.settled) + fast.tree.pending)
        fast.next_work(8)
    settle(fast, now)
    assert gathering.ended([fast], now) > 0
    draft(fast, now + 0.01)
    assert MOMENT < gathering.changed(fast, now + 0.01) < 0.02


def test_patience_has_its_end_whatever_comes(gathering, times):
    fast, other = session("fast", 0.01), session("other", 0.01)
    gathering.ended([fast], 0.03)
    late = 0.03 + PATIENCE * STEP
    other.habits.parted(late)
    assert gathering.changed(other, late) in (None, MOMENT)
    assert gathering.ended([other], late) == 0.0, "a step that only read a prompt does not begin it anew"


def test_a_session_that_ends_is_awaited_no_more(gathering):
    gone = session("gone", 0.01)
    assert gathering.ended([gone], 0.03) > 0
    gone.receive(pb.ClientFrame(close=pb.Close()), 0.035)
    assert gathering.changed(gone, 0.035) == MOMENT


def test_on_an_idle_engine_frames_of_one_moment_go_together(gathering):
    assert gathering.changed(session("any", 1.0), 9.0) == MOMENT


def test_what_began_has_nobody_left_to_wait_for(gathering):
    awaited = session("awaited", 0.01)
    assert gathering.ended([awaited], 0.03) > 0
    gathering.begun()
    assert gathering.changed(session("other", 1.0), 9.0) == MOMENT


def test_without_a_measured_step_there_is_no_patience():
    times = StepTimes(64)
    assert Gathering(times, Planner(times, 32)).ended([session("near", 0.001)], 0.003) == 0.0


def test_a_full_step_waits_for_nobody_and_one_with_drafts_not_for_long(gathering, planner):
    near, other = session("near", 0.01), session("other", 1.0)
    later = session("later", 1.2 * COURTESY * STEP)
    assert gathering.ended([later], 3.6 * COURTESY * STEP) > 0
    gathering.begun()
    crowd = [other, *(session(f"{number}", 1.0) for number in range(31))]
    for count, each in enumerate(crowd, 1):
        draft(each, 9.0)
        planner.join(each, Tenant("t"), background=False)
        planner.update(each.id)
        assert gathering.ended([later], 3.6 * COURTESY * STEP) == 0.0
        assert (gathering.ended([near], 0.03) > 0) == (2 * count < 64)
        gathering.begun()
