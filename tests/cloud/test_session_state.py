"""One session as a state machine: every row of its table, its ends, its bounds under a hostile device."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import FIRST, PROMPT, ROOM, STOP, VOCAB, begun, draft, make, step, take, work_of

from edgedraft.errors import InvalidInput
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Work
from edgedraft_cloud.session import State

# ---------------------------------------------------------------- the way of a draft


def test_opening_is_its_first_work():
    session = make()
    assert session.state is State.WORKING
    assert work_of(session) is None, "one work at a time"
    assert session.text == PROMPT
    verdict = take(session, FIRST)
    assert (verdict.position, list(verdict.tokens), verdict.accepted, verdict.block_used) == (0, [FIRST], 0, False)
    assert session.state is State.PARKED
    assert session.text == (*PROMPT, FIRST)


def test_a_draft_becomes_a_work_and_its_outcome_a_verdict():
    session = begun()
    assert work_of(session) is None
    session.receive(draft(8, 9, 10), 0.0)
    assert session.has_drafts
    assert session.next_work(ROOM) == Work("s", (8, 9, 10))
    assert session.state is State.WORKING
    assert work_of(session) is None, "one work at a time"
    verdict = session.apply(Outcome("s", (8, 9, 5), 2, 3), now=0.0, queue_seconds=0.001, verify_seconds=0.25)
    assert verdict == pb.Verdict(
        block=1, position=1, tokens=[8, 9, 5], accepted=2, block_used=True, queue_us=1000, verify_us=250_000
    )
    assert session.state is State.PARKED
    assert session.usage == pb.Usage(
        prompt_tokens=5, settled_tokens=4, drafted_tokens=3, accepted_tokens=2, steps=2, late_tokens=0
    )


def test_a_draft_that_comes_during_a_step_waits_for_the_next():
    session = begun()
    session.receive(draft(8), 0.0)
    assert session.next_work(ROOM) == Work("s", (8,))
    session.receive(draft(9, 10, block=2, position=2), 0.0)
    assert work_of(session) is None
    verdict = take(session, 8, 9, accepted=1, judged=1)
    assert (verdict.block, list(verdict.tokens)) == (2, [8, 9])
    assert work_of(session) == Work("s", (10,))


def test_a_draft_that_comes_while_the_prompt_is_read_is_compared_with_the_first_token():
    session = make()
    session.receive(draft(FIRST, 8, position=0), 0.0)
    take(session, FIRST)
    assert work_of(session) == Work("s", (8,))
    session = make()
    session.receive(draft(9, 8, position=0), 0.0)
    take(session, FIRST)
    assert work_of(session) is None


def test_a_work_is_no_longer_than_a_block():
    session = begun()
    session.receive(draft(1, 3, 4, 5), 0.0)
    session.receive(draft(6, 7, block=2, position=5), 0.0)
    assert work_of(session) == Work("s", (1, 3, 4, 5))


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_a_work_is_no_longer_than_its_share_of_the_step(rows):
    session = begun()
    session.receive(draft(1, 3, 4), 0.0)
    assert work_of(session, rows) == Work("s", (1, 3, 4)[: rows - 1])


def test_drafts_that_the_engine_had_no_room_for_wait_for_the_next_step():
    session = begun()
    session.receive(draft(8, 9, 10), 0.0)
    session.next_work(ROOM)
    verdict = take(session, 8, judged=0)
    assert (list(verdict.tokens), verdict.accepted, verdict.block_used) == ([8], 0, False)
    assert work_of(session) == Work("s", (9, 10))


def test_given_flags_reach_the_work_and_are_left_out_where_none_is_set():
    session = begun(may_give=True)
    session.receive(draft(8, 9, given=b"\x02"), 0.0)
    assert work_of(session) == Work("s", (8, 9), (False, True))
    session = begun(may_give=True)
    session.receive(draft(8, 9), 0.0)
    assert work_of(session) == Work("s", (8, 9), ())


# ---------------------------------------------------------------- time


def test_a_verdict_says_how_long_the_newest_block_was_held():
    session = begun()
    session.receive(draft(8), 10.0)
    session.next_work(ROOM)
    assert take(session, 8, 9, accepted=1, judged=1, now=10.25).held_us == 250_000


def test_one_without_a_block_has_held_none():
    assert take(make(), FIRST, now=10.25).held_us == 0


def test_drafts_wait_from_their_coming_or_from_the_step_before():
    session = begun()
    assert session.waited(5.0) == 0.0
    session.receive(draft(8, 9), 5.0)
    session.receive(draft(10, block=2, position=3), 6.0)
    assert session.waited(7.0) == 2.0
    session.next_work(2)
    take(session, 8, 9, accepted=1, judged=1, now=8.0)
    assert session.waited(8.5) == 0.5, "one is left over"
    session.next_work(ROOM)
    take(session, 10, 11, accepted=1, judged=1, now=9.0)
    assert session.waited(20.0) == 0.0


# ---------------------------------------------------------------- the table


def test_a_block_that_came_before_is_dropped():
    session = begun()
    session.receive(draft(8, 9), 0.0)
    session.receive(draft(8, 9), 0.0)
    session.receive(draft(10, block=2, position=3), 0.0)
    session.receive(draft(10, block=1, position=3), 0.0)
    assert session.usage.drafted_tokens == 3
    assert session.tree.pending == 3


def test_a_block_of_an_older_epoch_is_dropped():
    session = begun()
    session.receive(draft(8), 0.0)
    step(session, 9)
    session.receive(draft(5, block=3, epoch=1, position=2), 0.0)
    session.receive(draft(8, block=4, epoch=0, position=2), 0.0)
    assert work_of(session) == Work("s", (5,))


def test_a_block_behind_a_node_that_the_target_has_left_is_dropped():
    session = begun()
    session.receive(draft(8, 9), 0.0)
    step(session, 10)
    session.receive(draft(5, block=2, position=3), 0.0)
    assert session.tree.pending == 0
    assert work_of(session) is None


def test_a_block_at_settled_positions_is_compared_and_its_tail_is_a_draft():
    session = begun(run_ahead=3)
    step(session, 8)
    step(session, 9)
    session.receive(draft(8, 9, 10), 0.0)
    assert session.usage.late_tokens == 2
    assert work_of(session) == Work("s", (10,))
    session = begun(run_ahead=3)
    step(session, 8)
    step(session, 9)
    session.receive(draft(8, 1, 10), 0.0)
    assert session.usage.late_tokens == 1
    assert session.tree.pending == 0


def test_a_lower_acknowledgement_is_ignored():
    session = begun(run_ahead=2)
    step(session, 8)
    assert not session.may_decode
    session.receive(pb.ClientFrame(settled=2), 0.0)
    session.receive(pb.ClientFrame(settled=0), 0.0)
    assert session.may_decode, "the device has acknowledged all"


REFUSED = {
    "frame.settled": (pb.ClientFrame(settled=2), "only 1 are"),
    "frame.open": (pb.ClientFrame(open=pb.Open()), "a second time"),
    "draft.given": (draft(1, given=b"\x01"), "the target decides all"),
    "draft.epoch": (draft(1, epoch=2), "after 1 settled tokens and 0 resumes"),
    "draft.block": (draft(1, block=0), "is 0"),
    "draft.tokens": (draft(*[1] * 5), "holds 1 to 4"),
    "draft.tokens ": (draft(), "has 0 tokens"),
    "draft.tokens[1]": (draft(1, VOCAB), "vocabulary has 50"),
    "draft.position": (draft(1, position=2), "only 1 positions"),
    "draft.parent": (draft(1, parent=1), "has 0 nodes"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_breaks_the_protocol_names_its_field(field):
    frame, words = REFUSED[field]
    session = begun()
    with pytest.raises(InvalidInput, match=words) as caught:
        session.receive(frame, 0.0)
    assert caught.value.field == field.strip()
    assert (session.tree.pending, session.usage.drafted_tokens) == (0, 0)


def test_a_repeated_child_and_more_than_the_window_are_refused():
    session = begun()
    session.receive(draft(8), 0.0)
    step(session, 8, 1)
    session.receive(draft(3, 4, 5, 6, block=2, position=3, parent=0), 0.0)
    for block, words in (
        (draft(3, block=3, position=3, parent=0), "repeat"),
        (draft(7, 8, 9, block=3, position=7), "make 7 unverified tokens, the window is 6"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            session.receive(block, 0.0)
        assert caught.value.field == "draft.tokens"


def test_an_epoch_needs_a_settled_token_each():
    session = begun()
    session.receive(draft(8), 0.0)
    step(session, 9)
    with pytest.raises(InvalidInput, match="is 3 after 2 settled tokens"):
        session.receive(draft(1, block=2, epoch=3, position=2), 0.0)
    session.receive(draft(1, block=2, epoch=2, position=2), 0.0)


def test_drafts_are_bounded_over_the_whole_session():
    """Dead blocks never fill the window, so only this bound stops a device that sends them without end."""
    session = begun()
    session.receive(draft(8, 9), 0.0)
    step(session, 10)
    for block in range(2, 7):
        session.receive(draft(5, 5, 5, block=block, position=3, parent=1), 0.0)
    with pytest.raises(InvalidInput, match="make 20 in this session, the limit is 18") as caught:
        session.receive(draft(5, 5, 5, block=7, position=3, parent=1), 0.0)
    assert caught.value.field == "draft.tokens"


# ---------------------------------------------------------------- branches, run-ahead


def test_a_waiting_branch_is_followed_after_a_rejection():
    session = begun()
    session.receive(draft(8, 9), 0.0)
    session.receive(draft(10, 11, block=2, parent=0), 0.0)
    assert session.next_work(ROOM) == Work("s", (8, 9))
    take(session, 10, judged=2)
    assert work_of(session) == Work("s", (11,))


@pytest.mark.parametrize("run_ahead", [0, 1, 3])
def test_the_cloud_runs_ahead_of_the_acknowledgements_as_far_as_it_may_and_then_parks(run_ahead):
    session = begun(run_ahead=run_ahead)
    for token in range(10, 10 + max(0, run_ahead - 1)):
        assert session.may_decode
        assert not session.has_drafts
        assert session.next_work(1) == Work("s")
        assert not take(session, token).block_used
    assert work_of(session) is None
    assert session.state is State.PARKED
    session.receive(pb.ClientFrame(settled=1), 0.0)
    assert session.may_decode == (run_ahead > 0), "an acknowledgement makes room"


def test_a_draft_goes_on_where_run_ahead_has_parked():
    session = begun(run_ahead=1)
    assert work_of(session) is None
    session.receive(draft(8), 0.0)
    assert not session.may_decode
    assert work_of(session) == Work("s", (8,))


# ---------------------------------------------------------------- ends


def test_a_stop_token_ends_it_and_cuts_what_the_step_found_behind_it():
    session = begun()
    session.receive(draft(8, STOP, 9), 0.0)
    session.next_work(ROOM)
    verdict = take(session, 8, STOP, 9, 10, accepted=3, judged=3)
    assert (list(verdict.tokens), verdict.accepted) == ([8, STOP], 2)
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_STOP)
    assert session.usage.settled_tokens == 3
    assert work_of(session) is None


@pytest.mark.parametrize("limit", ["max_tokens", "context_room"])
@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_length_and_context_cut_exactly(limit, most):
    session = begun(**{limit: most})
    session.receive(draft(7, 8, 9), 0.0)
    work = session.next_work(ROOM)
    assert work == Work("s", (7, 8, 9)[: most - 2]), "the step adds one token behind the chain"
    verdict = take(session, *work.tokens, 10, accepted=len(work.tokens), judged=len(work.tokens))
    assert len(session.tree.settled) == most
    assert len(verdict.tokens) == most - 1
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_LENGTH)


@pytest.mark.parametrize("limit", ["max_tokens", "context_room"])
def test_one_token_is_the_one_behind_the_prompt(limit):
    session = begun(**{limit: 1})
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_LENGTH)


def test_a_stop_token_at_the_last_position_is_a_stop():
    session = make(max_tokens=1)
    take(session, STOP)
    assert session.finish_reason == pb.Finished.REASON_STOP


def test_close_ends_it_and_what_comes_later_changes_nothing():
    session = begun(run_ahead=4)
    session.receive(pb.ClientFrame(close=pb.Close()), 0.0)
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_CLOSED)
    session.receive(draft(1, block=0), 0.0)
    session.receive(pb.ClientFrame(open=pb.Open()), 0.0)
    session.lose_work()
    assert work_of(session) is None
    assert session.usage.drafted_tokens == 0
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_CLOSED)


# ---------------------------------------------------------------- coming back


def test_one_that_comes_back_keeps_what_is_settled_and_drops_what_was_pending():
    session = begun()
    session.receive(draft(8, 9), 0.0)
    step(session, 8, 9, 10)
    session.receive(draft(11, 12, block=2, position=4, parent=0), 0.0)
    session.resume([FIRST, 8])
    assert not session.has_drafts
    assert session.verdict_since(2, 5) == pb.Verdict(block=2, position=2, tokens=[9, 10], window=5)
    assert session.verdict_since(4, 5) is None
    session.receive(draft(11, block=3, epoch=1, position=4), 0.0)
    assert work_of(session) == Work("s", (11,))


def test_one_that_comes_back_while_a_work_of_it_is_under_way_takes_the_outcome():
    session = begun()
    session.receive(draft(8, 9), 0.0)
    session.next_work(ROOM)
    session.resume([FIRST])
    session.receive(draft(8, 9, 10, block=2, epoch=1, position=1), 0.0)
    assert work_of(session) is None
    take(session, 8, 9, 10, accepted=2, judged=2)
    assert session.tree.settled == [FIRST, 8, 9, 10]
    assert session.tree.pending == 0


@pytest.mark.parametrize("tokens", [[9], [FIRST, 8, 9], [FIRST, 8, 7, 6]])
def test_one_that_holds_something_else_cannot_come_back(tokens):
    session = begun()
    session.receive(draft(8), 0.0)
    step(session, 8, 7)
    session.receive(draft(1, block=2, position=3, parent=0), 0.0)
    with pytest.raises(InvalidInput, match="are not what was settled") as caught:
        session.resume(tokens)
    assert caught.value.field == "open.resume_tokens"
    assert session.tree.pending == 1, "nothing was changed"


def test_coming_back_acknowledges():
    session = begun(run_ahead=2)
    step(session, 8)
    assert not session.may_decode
    session.resume([FIRST, 8])
    assert session.may_decode


def test_each_coming_back_frees_an_epoch_and_a_window():
    session = begun(window=2)
    for block in range(1, 7):
        session.receive(draft(8, 9, block=block, epoch=block - 1), 0.0)
        session.resume([FIRST])
    with pytest.raises(InvalidInput, match="is 8 after 1 settled tokens and 6 resumes"):
        session.receive(draft(8, 9, block=7, epoch=8), 0.0)
    session.receive(draft(8, 9, block=7, epoch=7), 0.0)


def test_one_that_is_rebuilt_reads_its_tokens_after_the_prompt_and_may_begin_its_epoch_at_once():
    session = make(restored=(8, 9))
    assert session.state is State.WORKING
    assert session.text == (*PROMPT, 8, 9)
    session.receive(draft(10, 11, epoch=1, position=2), 0.0)
    verdict = take(session, 10)
    assert (verdict.position, list(verdict.tokens)) == (2, [10])
    assert work_of(session) == Work("s", (11,))
    assert session.usage.settled_tokens == 3


def test_one_that_is_rebuilt_without_tokens_may_begin_its_epoch_too():
    make(restored=()).receive(draft(8, epoch=1, position=0), 0.0)
    with pytest.raises(InvalidInput, match="after 0 settled tokens and 0 resumes"):
        make().receive(draft(8, epoch=1, position=0), 0.0)


@pytest.mark.parametrize(
    ("tokens", "reason"), [((8, STOP), pb.Finished.REASON_STOP), ((8,) * 20, pb.Finished.REASON_LENGTH)]
)
def test_one_that_is_rebuilt_complete_is_over(tokens, reason):
    session = make(restored=tokens)
    assert (session.state, session.finish_reason) == (State.FINISHED, reason)
    assert session.usage.settled_tokens == len(tokens)


def test_one_whose_engine_is_gone_is_under_way_again():
    session = begun(run_ahead=4)
    session.receive(draft(8), 0.0)
    session.lose_work()
    assert session.state is State.WORKING
    assert work_of(session) is None
    take(session, 8)
    assert session.tree.settled == [FIRST, 8]


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
steps = st.integers(0, 3)
returns = st.tuples(st.just("resume"), st.integers(0, 12))


@settings(max_examples=400)
@given(
    history=st.lists(hostile_frames | steps | returns, max_size=80),
    window=st.integers(1, 6),
    run_ahead=st.integers(0, 3),
)
def test_no_frame_raises_anything_but_invalid_input_and_memory_stays_bounded(history, window, run_ahead):
    session = make(window=window, run_ahead=run_ahead, max_tokens=12)
    work = Work("s")
    resumes = 0
    for event in history:
        match event:
            case int():
                work = work or work_of(session)
                if work is not None and session.state is not State.FINISHED:
                    accepted = min(event, len(work.tokens))
                    take(session, *work.tokens[:accepted], event, accepted=accepted, judged=len(work.tokens))
                work = None
            case ("resume", held):
                session.resume(session.tree.settled[:held])
                resumes += 1
            case frame:
                with contextlib.suppress(InvalidInput):
                    session.receive(frame, 0.0)
        tree = session.tree
        assert 0 <= tree.pending <= window
        assert len(tree.settled) <= 12
        # Nodes at settled positions stay for their numbers; they too have a bound.
        assert len(tree._nodes) <= session.usage.drafted_tokens <= window * (len(tree.settled) + resumes + 1)
        assert len(tree.chain(99)) <= tree.pending
