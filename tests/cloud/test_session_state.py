"""One session as a state machine: every row of its table, its ends, its bounds under a hostile device."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput
from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Work
from edgedraft_cloud.session import Session, SessionLimits, State, merge_verdicts

VOCAB = 50
STOP = 2


def make(**changes) -> Session:
    limits = {
        "frames": FrameLimits(vocab_size=VOCAB, context_length=100, max_block=4),
        "max_tokens": 20,
        "context_room": 100,
        "stop_tokens": {STOP},
        "window": 6,
        "run_ahead": 0,
    }
    return Session("s", SessionLimits(**{**limits, **changes}), prompt_tokens=5)


def draft(*tokens: int, block: int = 1, settled: int = 0, **fields) -> pb.ClientFrame:
    return pb.ClientFrame(draft=pb.Draft(block=block, tokens=tokens, **fields), settled=settled)


def step(session: Session, *tokens: int) -> pb.Verdict:
    """A step in which the target puts these tokens; the beginning that was drafted is accepted."""
    work = session.next_work()
    assert work is not None
    accepted = 0
    while accepted < min(len(work.tokens), len(tokens) - 1) and work.tokens[accepted] == tokens[accepted]:
        accepted += 1
    assert accepted == len(tokens) - 1, "the target goes on only behind accepted drafts"
    return session.apply(Outcome("s", tokens, accepted), 0.0)


# ---------------------------------------------------------------- the way of a draft


def test_a_draft_becomes_a_work_and_its_outcome_a_verdict():
    session = make()
    assert session.next_work() is None
    session.receive(draft(7, 8, 9), 0.0)
    assert session.next_work() == Work("s", (7, 8, 9))
    assert session.state is State.WORKING
    assert session.next_work() is None, "one work at a time"
    verdict = session.apply(Outcome("s", (7, 8, 5), 2, queue_seconds=0.001, verify_seconds=0.25), 0.0)
    assert verdict == pb.Verdict(
        block=1,
        tokens=[7, 8, 5],
        accepted=2,
        block_used=True,
        window=6,
        queue_us=1000,
        verify_us=250_000,
    )
    assert session.state is State.PARKED
    assert session.usage == pb.Usage(
        prompt_tokens=5, settled_tokens=3, drafted_tokens=3, accepted_tokens=2, steps=1, late_tokens=0
    )


def test_a_draft_that_comes_during_a_step_waits_for_the_next():
    session = make()
    session.receive(draft(7), 0.0)
    assert session.next_work() == Work("s", (7,))
    session.receive(draft(8, 9, block=2, position=1), 0.0)
    assert session.next_work() is None
    verdict = session.apply(Outcome("s", (7, 8), 1), 0.0)
    assert (verdict.block, list(verdict.tokens)) == (2, [7, 8])
    assert session.next_work() == Work("s", (9,))


def test_a_work_is_no_longer_than_a_block():
    session = make()
    session.receive(draft(1, 3, 4, 5), 0.0)
    session.receive(draft(6, 7, block=2, position=4), 0.0)
    assert session.next_work() == Work("s", (1, 3, 4, 5))


def test_given_flags_reach_the_work_and_are_left_out_where_none_is_set():
    session = make(may_give=True)
    session.receive(draft(7, 8, given=b"\x02"), 0.0)
    assert session.next_work() == Work("s", (7, 8), (False, True))
    session = make(may_give=True)
    session.receive(draft(7, 8), 0.0)
    assert session.next_work() == Work("s", (7, 8), ())


# ---------------------------------------------------------------- the table


def test_a_block_that_came_before_is_dropped():
    session = make()
    session.receive(draft(7, 8), 0.0)
    session.receive(draft(7, 8), 0.0)
    session.receive(draft(9, block=2, position=2), 0.0)
    session.receive(draft(9, block=1, position=2), 0.0)
    assert session.usage.drafted_tokens == 3
    assert session.tree.pending == 3


def test_a_block_of_an_older_epoch_is_dropped():
    session = make()
    session.receive(draft(7), 0.0)
    step(session, 9)
    session.receive(draft(5, block=3, epoch=1, position=1), 0.0)
    session.receive(draft(8, block=4, epoch=0, position=1), 0.0)
    assert session.next_work() == Work("s", (5,))


def test_a_block_behind_a_node_that_the_target_has_left_is_dropped():
    session = make()
    session.receive(draft(7, 8), 0.0)
    step(session, 9)
    session.receive(draft(5, block=2, position=2), 0.0)
    assert session.tree.pending == 0
    assert session.next_work() is None


def test_a_block_at_settled_positions_is_compared_and_its_tail_is_a_draft():
    session = make(run_ahead=2)
    step(session, 7)
    step(session, 8)
    session.receive(draft(7, 8, 9), 0.0)
    assert session.usage.late_tokens == 2
    assert session.next_work() == Work("s", (9,))
    session = make(run_ahead=2)
    step(session, 7)
    step(session, 8)
    session.receive(draft(7, 1, 9), 0.0)
    assert session.usage.late_tokens == 1
    assert session.tree.pending == 0


def test_a_lower_acknowledgement_is_ignored():
    session = make(run_ahead=2)
    step(session, 7)
    step(session, 8)
    session.receive(pb.ClientFrame(settled=2), 0.0)
    session.receive(pb.ClientFrame(settled=0), 0.0)
    assert session.next_work() == Work("s"), "the device has acknowledged all"


REFUSED = {
    "frame.settled": (pb.ClientFrame(settled=1), "only 0 are"),
    "frame.open": (pb.ClientFrame(open=pb.Open()), "a second time"),
    "draft.given": (draft(1, given=b"\x01"), "the target decides all"),
    "draft.epoch": (draft(1, epoch=1), "after 0 verdicts"),
    "draft.block": (draft(1, block=0), "is 0"),
    "draft.tokens": (draft(*[1] * 5), "holds 1 to 4"),
    "draft.tokens ": (draft(), "has 0 tokens"),
    "draft.tokens[1]": (draft(1, VOCAB), "vocabulary has 50"),
    "draft.position": (draft(1, position=1), "only 0 positions"),
    "draft.parent": (draft(1, parent=1), "has 0 nodes"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_breaks_the_protocol_names_its_field(field):
    frame, words = REFUSED[field]
    session = make()
    with pytest.raises(InvalidInput, match=words) as caught:
        session.receive(frame, 0.0)
    assert caught.value.field == field.strip()
    assert (session.tree.pending, session.usage.drafted_tokens) == (0, 0)


def test_a_repeated_child_and_more_than_the_window_are_refused():
    session = make()
    session.receive(draft(7), 0.0)
    step(session, 7, 1)
    session.receive(draft(3, 4, 5, 6, block=2, position=2, parent=0), 0.0)
    for block, words in (
        (draft(3, block=3, position=2, parent=0), "repeat"),
        (draft(7, 8, 9, block=3, position=6), "make 7 unverified tokens, the window is 6"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            session.receive(block, 0.0)
        assert caught.value.field == "draft.tokens"


def test_an_epoch_needs_a_verdict_each():
    session = make()
    session.receive(draft(7), 0.0)
    step(session, 9)
    with pytest.raises(InvalidInput, match="is 2 after 1 verdicts"):
        session.receive(draft(1, block=2, epoch=2, position=1), 0.0)
    session.receive(draft(1, block=2, epoch=1, position=1), 0.0)


def test_drafts_are_bounded_over_the_whole_session():
    """Dead blocks never fill the window, so only this bound stops a device that sends them without end."""
    session = make()
    session.receive(draft(7, 8), 0.0)
    step(session, 9)
    for block in range(2, 5):
        session.receive(draft(5, 5, 5, block=block, position=2, parent=1), 0.0)
    with pytest.raises(InvalidInput, match="make 14 in this session, the limit is 12") as caught:
        session.receive(draft(5, 5, 5, block=5, position=2, parent=1), 0.0)
    assert caught.value.field == "draft.tokens"


# ---------------------------------------------------------------- branches, run-ahead


def test_a_waiting_branch_is_followed_after_a_rejection():
    session = make()
    session.receive(draft(7, 8), 0.0)
    session.receive(draft(9, 10, block=2, parent=0), 0.0)
    assert session.next_work() == Work("s", (7, 8))
    session.apply(Outcome("s", (9,), 0), 0.0)
    assert session.next_work() == Work("s", (10,))


@pytest.mark.parametrize("run_ahead", [0, 1, 3])
def test_the_cloud_runs_ahead_of_the_acknowledgements_as_far_as_it_may_and_then_parks(run_ahead):
    session = make(run_ahead=run_ahead)
    for token in range(10, 10 + run_ahead):
        work = session.next_work()
        assert work == Work("s")
        verdict = session.apply(Outcome("s", (token,), 0), 0.0)
        assert not verdict.block_used
    assert session.next_work() is None
    assert session.state is State.PARKED
    if run_ahead:
        session.receive(pb.ClientFrame(settled=1), 0.0)
        assert session.next_work() == Work("s"), "an acknowledgement makes room"


def test_a_draft_goes_on_where_run_ahead_has_parked():
    session = make(run_ahead=1)
    step(session, 7)
    assert session.next_work() is None
    session.receive(draft(8, position=1), 0.0)
    assert session.next_work() == Work("s", (8,))


# ---------------------------------------------------------------- ends


def test_a_stop_token_ends_it_and_cuts_what_the_step_found_behind_it():
    session = make()
    session.receive(draft(7, STOP, 9), 0.0)
    session.next_work()
    verdict = session.apply(Outcome("s", (7, STOP, 9, 10), 3), 0.0)
    assert (list(verdict.tokens), verdict.accepted) == ([7, STOP], 2)
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_STOP)
    assert session.usage.settled_tokens == 2
    assert session.next_work() is None


@pytest.mark.parametrize("limit", ["max_tokens", "context_room"])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_length_and_context_cut_exactly(limit, most):
    session = make(**{limit: most})
    session.receive(draft(7, 8, 9), 0.0)
    work = session.next_work()
    assert work == Work("s", (7, 8, 9)[: most - 1]), "the step adds one token behind the chain"
    verdict = session.apply(Outcome("s", (*work.tokens, 10), len(work.tokens)), 0.0)
    assert len(verdict.tokens) == most
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_LENGTH)


def test_a_stop_token_at_the_last_position_is_a_stop():
    session = make(max_tokens=1, run_ahead=1)
    step(session, STOP)
    assert session.finish_reason == pb.Finished.REASON_STOP


def test_close_ends_it_and_what_comes_later_changes_nothing():
    session = make(run_ahead=4)
    session.receive(pb.ClientFrame(close=pb.Close()), 0.0)
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_CLOSED)
    session.receive(draft(1, block=0), 0.0)
    session.receive(pb.ClientFrame(open=pb.Open()), 0.0)
    assert session.next_work() is None
    assert session.usage.drafted_tokens == 0


# ---------------------------------------------------------------- merging


def test_merged_verdicts_say_what_both_say():
    session = make()
    session.receive(draft(7, 8), 0.0)
    first = step(session, 7, 8, 9)
    session.receive(draft(1, block=2, position=3, parent=0, settled=3), 0.0)
    second = step(session, 1, 3)
    merged = merge_verdicts(first, second)
    assert (merged.position, list(merged.tokens)) == (0, [7, 8, 9, 1, 3])
    assert (merged.accepted, merged.block, merged.block_used) == (3, 2, True)
    assert list(first.tokens) == [7, 8, 9], "the parts stay as they were"


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


# ---------------------------------------------------------------- a hostile device

small = st.integers(0, 9)
hostile_frames = st.one_of(
    st.builds(
        pb.ClientFrame,
        draft=st.builds(
            pb.Draft,
            epoch=st.integers(0, 4),
            position=small,
            block=st.integers(0, 40),
            tokens=st.lists(st.integers(0, 3) | st.just(VOCAB), max_size=6),
            given=st.sampled_from([b"", b"\x01", b"\xff\xff"]),
            parent=st.none() | small,
        ),
        settled=st.integers(0, 3),
    ),
    st.builds(pb.ClientFrame, settled=small, padding=st.binary(max_size=3)),
    st.builds(pb.ClientFrame, open=st.builds(pb.Open)),
)


@settings(max_examples=400, deadline=None)
@given(
    history=st.lists(hostile_frames | st.integers(0, 3), max_size=80),
    window=st.integers(1, 6),
    run_ahead=st.integers(0, 3),
)
def test_no_frame_raises_anything_but_invalid_input_and_memory_stays_bounded(history, window, run_ahead):
    session = make(window=window, run_ahead=run_ahead, max_tokens=12)
    work = None
    for event in history:
        if isinstance(event, int):
            work = work or session.next_work()
            if work is not None:
                accepted = min(event, len(work.tokens))
                session.apply(Outcome("s", (*work.tokens[:accepted], event), accepted), 0.0)
                work = None
        else:
            with contextlib.suppress(InvalidInput):
                session.receive(event, 0.0)
        tree = session.tree
        assert 0 <= tree.pending <= window
        assert len(tree.settled) <= 12
        # Nodes at settled positions stay for their numbers; they too have a bound.
        assert len(tree._nodes) <= session.usage.drafted_tokens <= window * (len(tree.settled) + 1)
        assert len(tree.chain(99)) <= tree.pending


def test_a_verdict_says_how_long_the_newest_block_was_held():
    session = make()
    session.receive(draft(7), 10.0)
    session.next_work()
    assert session.apply(Outcome("s", (7, 8), 1), 10.25).held_us == 250_000
