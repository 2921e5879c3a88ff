"""A device that lost its stream, or its verifier the engine: it goes on where it was, and nothing is verified twice."""

import asyncio
import time

import pytest
from devices import (
    CLOSE,
    PROMPT,
    Device,
    drafts,
    endless,
    opening,
    resuming,
    turns,
)
from toy import toy_target

import edgedraft_cloud.orchestrator as orchestrator_module
from edgedraft.errors import InvalidInput, Overloaded, VerifierUnavailable
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.tenants import Tenant, Tenants

RIGHT: list[int] = []
while len(RIGHT) < 200:
    RIGHT.append(toy_target((*PROMPT, *RIGHT)))


async def first_frames(handle, count: int) -> list[pb.ServerFrame]:
    """The first frames of a stream; the generator is left as a device leaves that vanishes."""
    frames = handle.frames()
    found = [await anext(frames) for _ in range(count)]
    await frames.aclose()
    return found


async def away(orchestrator, message: pb.Open | None = None, held: int = 3):
    """A session with `held` settled tokens whose device has vanished, and its token."""
    handle = await orchestrator.open(message or endless(), "acme", "phone")
    await turns()
    if held > 1:
        handle.receive(drafts(RIGHT[1:held], position=1))
        await turns()
    handle.close()
    # The step adds a token behind the drafts.
    settled = handle.live.session.tree.settled
    assert settled == RIGHT[: len(settled)]
    return handle.live, handle.live.resume_token


# ---------------------------------------------------------------- a session that was kept


async def test_a_device_that_comes_back_goes_on_in_the_same_engine_session(make, engine):
    orchestrator = await make()
    live, token = await away(orchestrator)
    held = RIGHT[:2]
    handle = await orchestrator.open(resuming(endless(), token, held), "acme", "phone")
    assert handle.live is live
    opened, verdict = await first_frames(handle, 2)
    assert (opened.opened.settled, opened.opened.epoch, opened.opened.last_block) == (4, 0, 1)
    assert (verdict.verdict.position, list(verdict.verdict.tokens)) == (2, RIGHT[2:4])
    assert verdict.verdict.window > 0
    assert len(engine.opened) == 1
    handle.receive(drafts(RIGHT[4:6], position=4, block=2, epoch=1))
    await turns()
    assert live.session.tree.settled == RIGHT[:7]
    assert engine.found[live.session.id] == RIGHT[:7]


async def test_one_who_holds_all_gets_no_verdict_but_opened(make):
    orchestrator = await make()
    _, token = await away(orchestrator)
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    frames = handle.frames()
    assert (await anext(frames)).opened.settled == 4
    waiting = asyncio.ensure_future(anext(frames))
    await turns()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_what_was_pending_is_dropped_and_taken_anew(make, engine):
    """The old numbering is gone: what the device sends again counts, and only that."""
    orchestrator = await make()
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    handle.receive(drafts([*RIGHT[1:3], 99], position=1))
    handle.close()
    before = len(engine.steps)
    again = await orchestrator.open(resuming(endless(), handle.live.resume_token, RIGHT[:1]), "acme", "phone")
    opened = (await first_frames(again, 1))[0].opened
    await turns()
    assert len(engine.steps) == before, "nothing is left to verify"
    again.receive(drafts(RIGHT[1:3], position=1, block=opened.last_block + 1, epoch=opened.epoch + 1))
    await turns()
    assert again.live.session.tree.settled == RIGHT[:4]


async def test_the_time_away_is_no_queueing(make, engine, monkeypatch):
    """Drafts that came before the cut are gone, and so is the time that they waited."""
    clock = [100.0]
    monkeypatch.setattr(orchestrator_module.time, "monotonic", lambda: clock[0])
    orchestrator = await make()
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    handle.receive(drafts(RIGHT[1:3], position=1))
    handle.close()
    clock[0] += 30.0
    again = await orchestrator.open(resuming(endless(), handle.live.resume_token, RIGHT[:1]), "acme", "phone")
    again.receive(drafts(RIGHT[1:3], position=1, block=2, epoch=1))
    await turns()
    _, verdict = await first_frames(again, 2)
    assert (list(verdict.verdict.tokens), verdict.verdict.queue_us) == (RIGHT[1:4], 0)


async def test_a_session_whose_device_is_away_takes_no_step(make, engine):
    orchestrator = await make(run_ahead=64)
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns(10)
    handle.close()
    await turns()
    before = len(engine.steps)
    await turns(200)
    assert len(engine.steps) == before
    assert 0 < len(handle.live.session.tree.settled) < 64


async def test_a_token_is_spent_once_its_device_is_heard_with_the_next(make):
    orchestrator = await make()
    live, token = await away(orchestrator)
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    assert handle.live.resume_token != token
    handle.receive(pb.ClientFrame(settled=4))
    handle.close()
    other = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    assert other.live is not live
    again = await orchestrator.open(resuming(endless(), handle.live.resume_token, RIGHT[:4]), "acme", "phone")
    assert again.live is live


async def test_links_that_break_before_the_next_token_arrives_lose_no_session(make, engine):
    orchestrator = await make()
    live, token = await away(orchestrator)
    lost = []
    for _ in range(3):
        handle = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
        assert handle.live is live
        lost.append(live.resume_token)
    assert len(orchestrator._sessions._tokens) == 2, "the one that it came with, and the newest"
    assert (await orchestrator.open(resuming(endless(), lost[-1], RIGHT[:4]), "acme", "phone")).live is live
    assert len(engine.opened) == 1
    orchestrator._forget(live, "expired")
    assert orchestrator._sessions._tokens == {}


@pytest.mark.parametrize("who", [("acme", "tablet"), ("umbra", "phone")], ids="-".join)
async def test_the_token_of_another_device_or_tenant_opens_nothing_and_harms_nobody(make, who):
    orchestrator = await make()
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    token = handle.live.resume_token
    with pytest.raises(InvalidInput, match="is of another device") as error:
        await orchestrator.open(resuming(endless(), token, RIGHT[:1]), *who)
    assert error.value.field == "open.resume_token"
    handle.receive(drafts(RIGHT[1:3], position=1))
    await turns()
    assert handle.live.session.tree.settled == RIGHT[:4]
    handle.close()
    with pytest.raises(InvalidInput, match="is of another device"):
        await orchestrator.open(resuming(endless(), token, RIGHT[:1]), *who)
    again = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    assert again.live is handle.live


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"resume_tokens": [*RIGHT[:2], 99], "resume_position": 3}, "open.resume_tokens"),
        ({"resume_tokens": RIGHT[:9], "resume_position": 9}, "open.resume_tokens"),
        ({"resume_tokens": [99] * 151, "resume_position": 151}, "open.resume_tokens"),
        ({"resume_tokens": [], "resume_position": 2}, "open.resume_position"),
        ({"prompt": [5]}, "open.prompt"),
    ],
)
async def test_one_who_holds_something_else_is_refused_and_may_come_back_rightly(make, changes, field):
    orchestrator = await make()
    live, token = await away(orchestrator)
    with pytest.raises(InvalidInput) as error:
        await orchestrator.open(endless(**{"resume_token": token, **changes}), "acme", "phone")
    assert error.value.field == field
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:2]), "acme", "phone")
    assert handle.live is live


async def test_of_two_streams_for_a_session_the_older_one_is_told_and_its_frames_count_no_more(make):
    orchestrator = await make()
    old = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    new = await orchestrator.open(resuming(endless(), old.live.resume_token, RIGHT[:1]), "acme", "phone")
    assert new.live is old.live
    opened = (await first_frames(new, 1))[0].opened
    # Still in the buffers of the old stream: it would take the number of the new stream's first block.
    old.receive(drafts(RIGHT[1:2], position=1, block=opened.last_block + 1))
    old.receive(pb.ClientFrame(settled=150))
    old.receive(CLOSE)
    with pytest.raises(VerifierUnavailable, match="another stream"):
        async for _ in old.frames():
            pass
    old.close()
    new.receive(drafts(RIGHT[1:4], position=1, block=opened.last_block + 1, epoch=opened.epoch + 1))
    await turns()
    assert new.live.session.tree.settled == RIGHT[:5]
    assert orchestrator.live_sessions == 1


async def test_one_that_finished_while_its_device_was_away_still_says_so(make):
    orchestrator = await make()
    message = opening(limits=pb.Limits(max_tokens=4, ignore_eos=True))
    handle = await orchestrator.open(message, "acme", "phone")
    await turns()
    handle.receive(drafts(RIGHT[1:4], position=1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    handle.close()
    await turns()
    again = await orchestrator.open(resuming(message, handle.live.resume_token, RIGHT[:1]), "acme", "phone")
    opened, verdict, finished = await first_frames(again, 3)
    assert opened.opened.settled == 4
    assert list(verdict.verdict.tokens) == RIGHT[1:4]
    assert finished.finished.reason == pb.Finished.REASON_LENGTH
    assert finished.finished.usage.settled_tokens == 4
    again.close()
    assert len(orchestrator._sessions) == 0


# ---------------------------------------------------------------- how long it is kept


async def test_who_does_not_come_back_in_time_is_forgotten(make, engine):
    orchestrator = await make(resume_seconds=20.0)
    live, token = await away(orchestrator)
    now = time.monotonic()
    orchestrator.tidy(now + 19)
    assert live.session.id in engine._logs
    orchestrator.tidy(now + 21)
    assert live.session.id not in engine._logs
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    assert handle.live is not live


async def test_one_who_came_back_is_not_forgotten(make):
    orchestrator = await make(resume_seconds=20.0)
    live, token = await away(orchestrator)
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    orchestrator.tidy(time.monotonic() + 500)
    handle.receive(drafts(RIGHT[4:6], position=4, block=2, epoch=1))
    await turns()
    assert live.session.tree.settled == RIGHT[:7]


async def test_where_nothing_is_kept_a_session_ends_with_its_stream(make, engine):
    orchestrator = await make(resume_seconds=0.0)
    live, token = await away(orchestrator)
    assert engine._logs == {}
    assert (await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")).live is not live


@pytest.mark.parametrize("limit", [150, 1], ids=["under way", "finished meanwhile"])
async def test_a_session_whose_device_needs_no_more_is_not_kept(make, engine, limit):
    orchestrator = await make()
    handle = await orchestrator.open(endless(limit), "acme", "phone")
    await turns()
    handle.receive(CLOSE)
    handle.fail(OSError("the stream broke right after"))
    handle.close()
    assert engine._logs == {}
    assert len(orchestrator._sessions) == 0


async def test_in_a_full_house_the_one_that_is_away_longest_gives_way_to_its_tenants_next(make, engine):
    orchestrator = await make()
    sessions = [await orchestrator.open(endless(), tenant, "phone") for tenant in ("umbra", "acme", "acme", "acme")]
    sessions[0].close()
    sessions[2].close()
    sessions[1].close()
    await orchestrator.open(endless(), "acme", "phone")
    assert sessions[2].live.session.id not in engine._logs
    assert {sessions[0].live.session.id, sessions[1].live.session.id} <= engine._logs.keys()
    await orchestrator.open(endless(), "acme", "phone")
    with pytest.raises(Overloaded, match="all 4 sessions"):
        await orchestrator.open(endless(), "acme", "phone")
    assert sessions[0].live.session.id in engine._logs, "another tenant's"


async def test_in_a_full_house_those_away_of_the_fullest_tenant_give_way_to_one_that_has_less(make, engine):
    orchestrator = await make()
    sessions = [await orchestrator.open(endless(), tenant, "phone") for tenant in ("umbra", "acme", "acme", "acme")]
    tokens = [session.live.resume_token for session in sessions]
    sessions[2].close()
    sessions[1].close()
    await orchestrator.open(endless(), "umbra", "phone")
    assert sessions[2].live.session.id not in engine._logs
    with pytest.raises(Overloaded, match="all 4 sessions"):
        await orchestrator.open(endless(), "umbra", "phone")  # it would have more than the other then
    again = await orchestrator.open(resuming(endless(), tokens[1], []), "acme", "phone")
    assert again.live is sessions[1].live


async def test_a_tenants_own_limit_counts_who_is_away_and_makes_them_give_way(make):
    tenants = Tenants({"acme": Tenant("acme", max_sessions=1)}, None)
    orchestrator = await make(tenants=tenants)
    live, token = await away(orchestrator)
    other = await orchestrator.open(endless(), "acme", "tablet")
    with pytest.raises(Overloaded, match="of this tenant"):
        await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    other.receive(CLOSE)
    other.close()
    again = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    assert again.live is not live


# ---------------------------------------------------------------- a session that is gone


async def test_an_unknown_token_rebuilds_the_session_from_what_the_device_holds(make, engine):
    orchestrator = await make()
    held = RIGHT[:6]
    handle = await orchestrator.open(resuming(endless(), b"from elsewhere", held), "acme", "phone")
    ((_, read),) = engine.opened
    assert read == (*PROMPT, *held)
    opened = (await first_frames(handle, 1))[0].opened
    assert (opened.settled, opened.epoch, opened.last_block) == (6, 0, 0)
    # As the contract has it, before any verdict.
    handle.receive(drafts(RIGHT[6:9], position=6, block=opened.last_block + 1, epoch=opened.epoch + 1))
    await turns()
    assert handle.live.session.tree.settled == RIGHT[:10]
    # The first token comes by itself; of the drafts two are left to verify.
    assert engine.found[handle.live.session.id] == RIGHT[6:10]


@pytest.mark.parametrize("held", [0, 3])
async def test_a_rebuilt_session_counts_from_what_it_was_given(make, held):
    orchestrator = await make(run_ahead=64)
    message = opening(limits=pb.Limits(max_tokens=8, ignore_eos=True))
    device = Device(orchestrator, message)
    device.token, device.settled = b"from elsewhere", RIGHT[:held]
    await device.connect()
    while device.finished is None:
        device.draft(3)
        await device.read()
    assert device.settled == RIGHT[:8]
    assert device.finished.reason == pb.Finished.REASON_LENGTH
    assert device.finished.usage.settled_tokens == 8


@pytest.mark.parametrize(
    ("held", "reason"), [(RIGHT[:8], pb.Finished.REASON_LENGTH), ([5, 2], pb.Finished.REASON_STOP)]
)
async def test_one_that_was_complete_is_finished_without_the_engine(make, engine, held, reason):
    orchestrator = await make()
    message = opening(limits=pb.Limits(max_tokens=8))
    handle = await orchestrator.open(resuming(message, b"from elsewhere", held), "acme", "phone")
    opened, finished = await first_frames(handle, 2)
    assert opened.opened.settled == len(held)
    assert finished.finished.reason == reason
    assert finished.finished.usage.settled_tokens == len(held)
    assert engine.opened == []
    handle.close()


# ---------------------------------------------------------------- an engine that died


async def test_after_the_engine_died_a_session_goes_on_in_the_next_with_the_same_output(make, engine):
    orchestrator = await make()
    device = Device(orchestrator, endless(40))
    await device.connect()
    while device.finished is None:
        device.draft(4)
        if len(device.settled) in range(10, 18) and engine.starts == 1:
            engine.die()
            await turns()
        try:
            await device.read()
        except VerifierUnavailable:
            await device.cut()
            await device.connect()
    assert device.settled == RIGHT[:40]
    assert engine.starts == 2
    (first, _), (second, read) = engine.opened
    assert first == second == device.handle.live.session.id
    assert list(read[len(PROMPT) :]) == RIGHT[: len(read) - len(PROMPT)]
    assert engine.found[first] == RIGHT[:40], "nothing twice"


async def test_one_whose_device_was_away_when_the_engine_died_goes_on_too(make, engine):
    orchestrator = await make()
    live, token = await away(orchestrator)
    engine.die()
    await turns()
    assert engine.starts == 2
    assert len(engine.opened) == 1
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:2]), "acme", "phone")
    assert handle.live is live
    handle.receive(drafts(RIGHT[4:7], position=4, block=2, epoch=1))
    await turns()
    assert live.session.tree.settled == RIGHT[:8]
    assert engine.found[live.session.id] == RIGHT[:8]


async def test_an_engine_without_room_for_it_leaves_it_to_be_asked_again(make, engine):
    orchestrator = await make(resume_seconds=20.0)
    live, token = await away(orchestrator)
    engine.die()
    await turns()
    engine.refuse = Overloaded("the cache is full", 1.0)
    with pytest.raises(Overloaded, match="cache is full"):
        await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    orchestrator.tidy(time.monotonic() + 19)
    handle = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    assert handle.live is live


class Slow:
    """Holds back what an engine's `open` returns, though the engine has taken the session."""

    def __init__(self, engine, monkeypatch) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        original = engine.open

        async def slow(session, prompt, sampling, salt):
            await original(session, prompt, sampling, salt)
            self.entered.set()
            await self.gate.wait()

        monkeypatch.setattr(engine, "open", slow)


async def test_outcomes_may_come_before_open_returns_and_while_the_old_stream_still_stands(make, engine, monkeypatch):
    orchestrator = await make(run_ahead=64)
    old = await orchestrator.open(endless(), "acme", "phone")
    await turns(10)
    engine.die()
    await turns()
    slow = Slow(engine, monkeypatch)
    held = RIGHT[:1]
    coming = asyncio.create_task(orchestrator.open(resuming(endless(40), old.live.resume_token, held), "acme", "phone"))
    await slow.entered.wait()
    old.receive(pb.ClientFrame(settled=1))
    await turns()
    assert engine.starts == 2, "a fault between engine and sessions"
    slow.gate.set()
    handle = await coming
    opened, verdict = await first_frames(handle, 2)
    assert list(verdict.verdict.tokens) == RIGHT[1 : opened.opened.settled]


async def test_a_stream_that_breaks_while_the_engine_reads_does_not_take_its_successor_along(make, engine, monkeypatch):
    orchestrator = await make(run_ahead=64)
    live, token = await away(orchestrator)
    engine.die()
    await turns()
    slow = Slow(engine, monkeypatch)
    first = asyncio.create_task(orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone"))
    await slow.entered.wait()
    second = await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")
    first.cancel()
    await asyncio.wait([first])
    await turns()
    # Either it goes on, or it is told; it must not wait for what nobody does.
    with pytest.raises(VerifierUnavailable):
        async for _ in second.frames():
            pass
    second.close()
    slow.gate.set()
    third = await orchestrator.open(resuming(endless(), second.live.resume_token, RIGHT[:4]), "acme", "phone")
    assert third.live is live
    await turns()
    assert len(live.session.tree.settled) > 4


async def test_an_engine_that_dies_while_it_reads_a_session_that_comes_back(make, engine, monkeypatch):
    orchestrator = await make()
    live, token = await away(orchestrator)
    engine.die()
    await turns()
    slow = Slow(engine, monkeypatch)
    coming = asyncio.create_task(orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone"))
    await slow.entered.wait()
    engine.die()
    await turns()
    slow.gate.set()
    with pytest.raises(VerifierUnavailable, match="engine died") as error:
        await coming
    assert error.value.retry_after > 0
    monkeypatch.undo()
    assert (await orchestrator.open(resuming(endless(), token, RIGHT[:4]), "acme", "phone")).live is live
