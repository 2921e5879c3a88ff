"""When a step begins: at once, or when those drafts are there that are worth a moment's wait."""

import pytest

from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome
from edgedraft_cloud.gather import MOMENT, PATIENCE, Gathering
from edgedraft_cloud.session import Session, SessionLimits
from edgedraft_cloud.step_times import StepTimes

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
def gathering() -> Gathering:
    times = StepTimes(64)
    for rows in (1, 2, 4, 8):
        times.observe(rows, STEP)
    return Gathering(times)


def session(name: str, returns_after: float) -> Session:
    """One that has settled a token just now and has brought drafts so long after a verdict before."""
    made = Session(name, LIMITS, (1,))
    now = 0.0
    settle(made, now)
    for _ in range(3):
        now += returns_after
        draft(made, now)
        settle(made, now)
    return made


def settle(made: Session, now: float) -> None:
    made.apply(Outcome(made.id, (5,), 0), now=now, queue_seconds=0.0, verify_seconds=0.0)


def draft(made: Session, now: float) -> None:
    # A new epoch, since the target put another token there than was drafted.
    new = pb.Draft(
        epoch=made.tree.epoch + 1, block=made.tree.last_block + 1, tokens=[7], position=len(made.tree.settled)
    )
    made.receive(pb.ClientFrame(draft=new), now)


def test_a_step_waits_for_drafts_that_are_nearly_there(gathering):
    near, far = session("near", 0.5 * PATIENCE * STEP), session("far", 2 * PATIENCE * STEP)
    now = 1.5 * PATIENCE * STEP
    assert gathering.ended([near, far], now) == pytest.approx(PATIENCE * STEP)
    draft(near, now + 0.01)
    assert gathering.changed(near) == MOMENT


def test_nobody_waits_for_those_who_take_long(gathering):
    assert gathering.ended([session("far", 2 * PATIENCE * STEP)], 6 * PATIENCE * STEP) == 0.0


def test_the_last_one_that_is_awaited_begins_the_step(gathering):
    first, second = session("first", 0.01), session("second", 0.01)
    assert gathering.ended([first, second], 0.03) > 0
    draft(first, 0.04)
    assert gathering.changed(first) is None
    draft(second, 0.05)
    assert gathering.changed(second) == MOMENT


def test_a_session_that_ends_is_awaited_no_more(gathering):
    gone = session("gone", 0.01)
    assert gathering.ended([gone], 0.03) > 0
    gone.receive(pb.ClientFrame(close=pb.Close()), 0.04)
    assert gathering.changed(gone) == MOMENT


def test_on_an_idle_engine_frames_of_one_moment_go_together(gathering):
    assert gathering.changed(session("any", 1.0)) == MOMENT


def test_what_began_has_nobody_left_to_wait_for(gathering):
    awaited = session("awaited", 0.01)
    assert gathering.ended([awaited], 0.03) > 0
    gathering.begun()
    assert gathering.changed(session("other", 1.0)) == MOMENT


def test_without_a_measured_step_there_is_no_patience():
    assert Gathering(StepTimes(64)).ended([session("near", 0.001)], 0.003) == 0.0
