"""A session whose device has the last word: given tokens, vetoes, and when a text is over for good."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import FIRST, PROMPT, ROOM, STOP, begun, draft, make, step, take, work_of

from edgedraft.errors import InvalidInput
from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Work
from edgedraft_cloud.session import Session, State

GIVEN = b"\x01"


def sealed(**changes) -> Session:
    return begun(**{"may_give": True, "run_ahead": 3, **changes})


def entered(session: Session) -> None:
    """It was opened in the engine again."""
    assert session.unread
    assert work_of(session) is None, "the engine reads it"
    session.unread = 0


def veto(*tokens: int, position: int, flags=(True,), **fields) -> pb.ClientFrame:
    return draft(*tokens, position=position, given=given_bits(flags), **{"epoch": 1, **fields})


# ---------------------------------------------------------------- vetoes


def test_a_veto_settles_its_given_tokens_and_the_rest_of_the_block_is_drafts():
    session = sealed()
    step(session, 8)
    step(session, 9)
    told = session.receive(veto(30, 31, 10, position=1, flags=(True, True)), 0.0)
    assert (told.position, list(told.tokens), told.epoch, told.block) == (1, [30, 31], 1, 1)
    assert session.text == (*PROMPT, FIRST, 30, 31)
    assert (session.unread, session.state) == (2, State.WORKING)
    entered(session)
    verdict = take(session, 10)
    assert (verdict.position, list(verdict.tokens)) == (3, [10])
    assert session.usage == pb.Usage(prompt_tokens=5, settled_tokens=4, drafted_tokens=1, given_tokens=2, steps=4)


def test_a_veto_takes_the_work_under_way_along():
    session = sealed()
    session.receive(draft(8, 9), 0.0)
    session.next_work(ROOM)
    session.receive(veto(30, block=2, position=0), 0.0)
    assert (session.text, session.state) == ((*PROMPT, 30), State.WORKING)
    entered(session)
    assert not take(session, 8).block_used


def test_a_given_token_that_comes_after_the_cloud_has_decided_needs_no_new_epoch():
    session = sealed()
    session.receive(draft(8), 0.0)
    step(session, 8, 9)
    told = session.receive(veto(30, 31, position=2, block=2, epoch=0), 0.0)
    assert (told.position, list(told.tokens), told.block) == (2, [30], 2)
    assert session.tree.settled == [FIRST, 8, 30]
    assert session.tree.pending == 1


def test_a_given_token_that_comes_during_the_step_outdoes_the_targets_own():
    session = sealed()
    session.receive(draft(8), 0.0)
    assert session.next_work(ROOM) == Work("s", (8,))
    session.receive(veto(30, 31, 10, position=2, block=2, epoch=0, flags=(True, True)), 0.0)
    verdict = take(session, 8, 9, accepted=1, judged=1)
    assert (verdict.position, list(verdict.tokens), verdict.accepted) == (1, [8, 30, 31], 1)
    assert session.tree.pending == 1
    entered(session)
    assert (session.usage.accepted_tokens, session.usage.given_tokens) == (1, 2)


def test_it_falls_with_a_draft_that_the_target_refuses():
    session = sealed()
    session.receive(draft(8), 0.0)
    session.next_work(ROOM)
    session.receive(veto(30, position=2, block=2, epoch=0), 0.0)
    assert list(take(session, 7, judged=1).tokens) == [7]
    assert (session.unread, session.tree.pending, session.tree.settled) == (0, 0, [FIRST, 7])


def test_given_tokens_that_the_engine_takes_need_no_second_opening_and_are_no_drafts_that_were_right():
    session = sealed()
    session.receive(draft(30, 8, 31, given=given_bits((True, False, True))), 0.0)
    assert session.next_work(ROOM) == Work("s", (30, 8, 31), (True, False, True))
    verdict = take(session, 30, 8, 31, 9, accepted=3, judged=3)
    assert (verdict.accepted, verdict.block_used) == (1, True)
    usage = session.usage
    assert (usage.drafted_tokens, usage.accepted_tokens, usage.given_tokens) == (1, 1, 2)
    assert session.unread == 0


def test_a_step_of_given_tokens_alone_judges_no_draft():
    session = sealed()
    session.receive(draft(30, given=GIVEN), 0.0)
    session.next_work(ROOM)
    assert not take(session, 30, 9, accepted=1, judged=1).block_used
    assert session.habits.acceptance == begun().habits.acceptance


def test_a_given_token_that_the_engine_had_no_room_for_stands_all_the_same():
    session = sealed()
    session.receive(draft(30, 31, given=given_bits((True, False))), 0.0)
    session.next_work(ROOM)
    verdict = take(session, 9)
    assert (list(verdict.tokens), verdict.block_used, session.tree.pending) == ([30], False, 1)
    entered(session)


def test_a_veto_that_was_met_before_is_answered_all_the_same():
    """The device passes over what was said before it, so that it must be said again."""
    session = sealed()
    session.receive(draft(8), 0.0)
    step(session, 8, 9)
    session.receive(veto(30, position=2, block=2, epoch=0), 0.0)
    entered(session)
    take(session, 10)
    told = session.receive(veto(30, 10, position=2, block=3, epoch=1, flags=(True, False)), 0.0)
    assert (told.epoch, told.position, list(told.tokens)) == (1, 2, [30, 10])
    assert session.unread == 0


def test_only_what_is_not_acknowledged_can_be_vetoed():
    session = sealed()
    step(session, 8)
    session.receive(pb.ClientFrame(settled=2), 0.0)
    with pytest.raises(InvalidInput, match="decides position 1, 2 are acknowledged") as caught:
        session.receive(veto(30, position=1), 0.0)
    assert caught.value.field == "draft.given"
    assert session.tree.settled == [FIRST, 8]


def test_a_veto_is_final_and_may_come_with_its_acknowledgement():
    session = sealed()
    step(session, 8)
    session.receive(veto(30, position=1, settled=2), 0.0)
    entered(session)
    take(session, 9)
    with pytest.raises(InvalidInput, match="decides position 1, 2 are acknowledged"):
        session.receive(veto(31, position=1, block=2, epoch=2), 0.0)


def test_the_last_position_may_be_given():
    session = sealed(max_tokens=3)
    session.receive(draft(8, 30, given=given_bits((False, True))), 0.0)
    assert session.next_work(ROOM) == Work("s", (8,)), "the step adds one token behind the chain"
    verdict = take(session, 8, 9, accepted=1, judged=1)
    assert list(verdict.tokens) == [8, 30]
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_LENGTH)


# ---------------------------------------------------------------- the end


ENDS = pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [({}, (8, STOP), pb.Finished.REASON_STOP), ({"max_tokens": 3}, (8, 9), pb.Finished.REASON_LENGTH)],
    ids=["stop", "length"],
)


def ending(limits, tokens) -> Session:
    session = sealed(**limits)
    session.receive(draft(8), 0.0)
    step(session, *tokens)
    assert session.state is State.ENDING
    assert not session.needs_engine
    return session


@ENDS
def test_a_text_is_over_once_its_end_is_acknowledged(limits, tokens, reason):
    session = ending(limits, tokens)
    session.receive(pb.ClientFrame(settled=2), 0.0)
    assert session.state is State.ENDING
    session.lose_work()
    assert session.state is State.ENDING, "it does not need the engine"
    session.receive(pb.ClientFrame(settled=3), 0.0)
    assert (session.state, session.finish_reason) == (State.FINISHED, reason)


@ENDS
def test_an_end_may_be_vetoed_and_the_text_goes_on(limits, tokens, reason):
    session = ending(limits, tokens)
    session.receive(veto(30, 31, position=1, block=2, flags=(True, False)), 0.0)
    assert session.needs_engine
    assert session.finish_reason == pb.Finished.REASON_UNSPECIFIED
    entered(session)
    take(session, 31)
    assert session.tree.settled == [FIRST, 30, 31]


@ENDS
def test_a_veto_of_the_end_itself_may_be_the_end(limits, tokens, reason):
    session = ending(limits, tokens)
    given_last = 30 if reason == pb.Finished.REASON_LENGTH else STOP
    told = session.receive(veto(31, given_last, position=1, block=2, flags=(True, True)), 0.0)
    assert list(told.tokens) == [31, given_last]
    assert (session.state, session.finish_reason) == (State.FINISHED, reason)


@ENDS
def test_coming_back_to_an_end_acknowledges_it_or_not(limits, tokens, reason):
    session = ending(limits, tokens)
    session.resume([FIRST])
    assert session.state is State.ENDING
    assert list(session.verdict_since(1, 4).tokens) == list(tokens)
    session.resume([FIRST, *tokens])
    assert (session.state, session.finish_reason) == (State.FINISHED, reason)


def test_closing_at_the_end_is_closing():
    session = ending({}, (8, STOP))
    session.receive(pb.ClientFrame(close=pb.Close()), 0.0)
    assert (session.state, session.finish_reason) == (State.FINISHED, pb.Finished.REASON_CLOSED)


def test_where_the_target_decides_all_nobody_waits_for_an_acknowledgement():
    session = begun()
    session.receive(draft(8), 0.0)
    step(session, 8, STOP)
    assert session.state is State.FINISHED


# ---------------------------------------------------------------- coming back


def test_one_that_comes_back_may_have_decided_what_did_not_get_here():
    session = sealed()
    step(session, 8)
    session.resume([FIRST, 30, 31])
    assert session.text == (*PROMPT, FIRST, 30, 31)
    assert session.usage.given_tokens == 2
    entered(session)
    take(session, 9)
    assert session.tree.settled == [FIRST, 30, 31, 9]


def test_it_may_not_change_what_it_has_acknowledged_nor_a_text_that_is_over():
    session = sealed()
    step(session, 8)
    session.receive(pb.ClientFrame(settled=2), 0.0)
    over = ending({}, (8, STOP))
    over.receive(pb.ClientFrame(settled=3), 0.0)
    for each, tokens in ((session, [FIRST, 30]), (over, [FIRST, 8, STOP, 30]), (over, [FIRST, 30])):
        before = list(each.tree.settled)
        with pytest.raises(InvalidInput, match="are not what was settled"):
            each.resume(tokens)
        assert (each.tree.settled, each.unread) == (before, 0)


# ---------------------------------------------------------------- a hostile device

frames = st.builds(
    pb.ClientFrame,
    draft=st.builds(
        pb.Draft,
        epoch=st.integers(0, 9),
        position=st.integers(0, 9),
        block=st.integers(1, 60),
        tokens=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        given=st.sampled_from([b"", b"\x01", b"\x02", b"\x03"]),
        parent=st.none() | st.integers(0, 6),
    ),
    settled=st.integers(0, 3),
)


@settings(max_examples=400)
@given(history=st.lists(frames | st.integers(0, 3), max_size=100), window=st.integers(1, 6))
def test_no_position_is_decided_twice_so_that_the_engine_is_not_made_to_begin_again_without_end(history, window):
    session = make(window=window, run_ahead=3, max_tokens=10, may_give=True)
    work, final, openings = Work("s"), [], 0
    for event in history:
        if isinstance(event, int):
            work = work or work_of(session)
            if work is not None and session.needs_engine:
                accepted = min(event, len(work.tokens))
                take(session, *work.tokens[:accepted], event, accepted=accepted, judged=len(work.tokens))
            work = None
        else:
            with contextlib.suppress(InvalidInput):
                session.receive(event, 0.0)
        if session.unread:
            openings += 1
            session.unread = 0
            work = Work("s") if session.needs_engine else None
        settled = session.tree.settled
        assert settled[: len(final)] == final, "what is acknowledged stays"
        final = settled[: session._acknowledged]
        assert openings <= len(final) <= 10
        assert 0 <= session.tree.pending <= window
        assert len(session.tree._nodes) <= session._received <= window * (2 * session._settlements + 1)
        assert session.state is not State.FINISHED or len(final) == len(settled)
