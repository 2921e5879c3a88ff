"""Many sessions over one engine: sharing, merging for slow readers, refusals, draining, and an engine that dies."""

import asyncio
import time
from functools import partial

import pytest
from devices import CLOSE, PROMPT, Device, drafts, endless, engine_info, opening, read_all, turns
from toy import toy_greedy

import edgedraft_cloud.orchestrator as orchestrator_module
from edgedraft.errors import InvalidInput, Overloaded, Unauthenticated, VerifierUnavailable
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Sampling
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.session import State
from edgedraft_cloud.tenants import Tenant, Tenants

INFO = engine_info()


@pytest.fixture
def make(make):
    """The cloud runs ahead here."""
    return partial(make, run_ahead=64)


def tenants(*named: Tenant) -> Tenants:
    return Tenants({tenant.name: tenant for tenant in named}, None)


# ---------------------------------------------------------------- the way of a session


async def test_the_cloud_decodes_by_itself_to_the_end(make):
    orchestrator = await make()
    handle = await orchestrator.open(opening(), "acme", "phone")
    tokens, kinds = await read_all(handle)
    assert tokens == toy_greedy(PROMPT, 20)
    assert kinds[0] == "opened"
    assert kinds[-1] == "finished"
    assert set(kinds[1:-1]) == {"verdict"}
    handle.close()
    handle.close()
    assert orchestrator.live_sessions == 0


async def test_opened_grants_what_was_set_and_a_token_to_come_back_with(make):
    orchestrator = await make(window=5)
    handles = [await orchestrator.open(opening(), "acme", "phone") for _ in range(2)]
    first, second = [(await anext(handle.frames())).opened for handle in handles]
    assert (first.window, first.max_block) == (5, INFO.max_block)
    assert (first.settled, first.epoch, first.last_block) == (0, 0, 0)
    assert len(first.resume_token) >= 16
    assert first.resume_token != second.resume_token


async def test_without_run_ahead_the_first_token_comes_by_itself_and_the_next_with_a_draft(make, engine):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    assert handle.live.session.state is State.WORKING
    await turns()
    assert [[work.tokens for work in step] for step in engine.steps] == [[()]]
    right = toy_greedy(PROMPT, 20)
    handle.receive(drafts(right[:4]))
    await turns()
    assert [work.tokens for (work,) in engine.steps] == [(), tuple(right[1:4])]
    frames = handle.frames()
    await anext(frames)
    verdict = (await anext(frames)).verdict
    assert (list(verdict.tokens), verdict.accepted, verdict.block_used) == (right[:5], 3, True)
    await frames.aclose()


async def test_drafts_that_come_while_the_prompt_is_read_go_with_the_next_step(make, engine):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    right = toy_greedy(PROMPT, 20)
    handle.receive(drafts(right[:4]))
    await turns()
    assert [work.tokens for (work,) in engine.steps] == [(), tuple(right[1:4])]


async def test_works_of_one_moment_go_in_one_step(make, engine):
    orchestrator = await make(run_ahead=0)
    prompts = [[token] for token in range(3, 6)]
    handles = [await orchestrator.open(opening(prompt=prompt), "acme", "phone") for prompt in prompts]
    await turns()
    before = len(engine.steps)
    for handle, prompt in zip(handles, prompts, strict=True):
        handle.receive(drafts(toy_greedy(prompt, 2)))
    await turns()
    assert {work.session for work in engine.steps[before]} == {handle.live.session.id for handle in handles}
    assert all(len(work.tokens) == 1 for work in engine.steps[before])


async def test_one_step_is_under_way_at_a_time(make, engine, monkeypatch):
    """What comes during a step waits for it to end, however much that is."""
    orchestrator = await make(run_ahead=0)
    handles = [await orchestrator.open(endless(prompt=[token]), "acme", "phone") for token in range(3, 6)]
    await turns()
    submitted = []
    monkeypatch.setattr(engine, "submit", lambda works: submitted.append([*works]) or 10**6)
    for handle in handles:
        handle.receive(drafts([*handle.live.session.tree.settled, 5]))
        await turns()
    assert len(submitted) == 1


async def test_a_slow_reader_gets_what_it_missed_in_one_verdict(make):
    orchestrator = await make()
    handle = await orchestrator.open(opening(), "acme", "phone")
    frames = handle.frames()
    await anext(frames)
    await turns(200)
    tokens, kinds = [], []
    async for frame in frames:
        kinds.append(frame.WhichOneof("frame"))
        tokens += frame.verdict.tokens
    assert kinds == ["verdict", "finished"]
    assert tokens == toy_greedy(PROMPT, 20)


async def test_run_ahead_stops_for_a_device_that_does_not_acknowledge(make, engine):
    orchestrator = await make(run_ahead=3)
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns(200)
    assert len(engine.steps) == 3
    handle.receive(pb.ClientFrame(settled=2))
    await turns(200)
    assert len(engine.steps) == 5


async def test_a_step_has_no_more_rows_than_its_room_and_sessions_take_turns(make, engine):
    orchestrator = await make(step_tokens=8, run_ahead=0)
    devices = [Device(orchestrator, endless(prompt=[token])) for token in range(3, 6)]
    for device in devices:
        await device.connect()
    await turns()
    before = len(engine.steps)
    for _ in range(10):
        for device in devices:
            device.draft(6)
        for device in devices:
            await device.read()
    steps = engine.steps[before:]
    assert max(sum(len(work.tokens) + 1 for work in step) for step in steps) == 8
    served = [work.session for step in steps for work in step]
    assert all(served.count(device.handle.live.session.id) > 5 for device in devices)


async def test_the_engine_is_given_back_when_a_session_finishes_though_nobody_reads(make, engine, monkeypatch):
    released: list[str] = []
    monkeypatch.setattr(engine, "release", released.append)
    orchestrator = await make()
    done = await orchestrator.open(opening(limits=pb.Limits(max_tokens=2)), "acme", "phone")
    closed = await orchestrator.open(opening(), "acme", "phone")
    closed.receive(CLOSE)
    await turns()
    assert {done.live.session.id, closed.live.session.id} <= set(released)
    assert (await read_all(closed))[1][-1] == "finished"


async def test_sampling_reaches_the_engine_with_off_values_filled_in_and_the_tenant_as_salt(make, engine, monkeypatch):
    seen: list[tuple[Sampling, str]] = []
    original = engine.open

    async def spy(session, prompt, sampling, salt):
        seen.append((sampling, salt))
        await original(session, prompt, sampling, salt)

    monkeypatch.setattr(engine, "open", spy)
    orchestrator = await make()
    await orchestrator.open(opening(), "acme", "phone")
    await orchestrator.open(opening(sampling=pb.Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=0)), "umbra", "p")
    assert seen == [
        (Sampling(), "acme"),
        (Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=0), "umbra"),
    ]


async def test_a_silent_device_and_an_old_session_are_ended(make):
    orchestrator = await make(run_ahead=0, idle_seconds=5.0, session_seconds=50.0)
    handle = await orchestrator.open(endless(), "acme", "phone")
    now = time.monotonic()
    orchestrator.tidy(now + 4)
    orchestrator.tidy(now + 6)
    with pytest.raises(InvalidInput, match="has sent nothing for 5 s"):
        await read_all(handle)
    handle.close()
    handle = await orchestrator.open(endless(), "acme", "phone")
    handle.live.heard_at = now + 51
    orchestrator.tidy(now + 52)
    with pytest.raises(InvalidInput, match="has lived for 50 s"):
        await read_all(handle)
    handle.close()


# ---------------------------------------------------------------- refusals


REFUSED = {
    "open.model": {"model": "another"},
    "open.mode": {"mode": pb.MODE_UNSPECIFIED},
    "open.resume_token": {"resume_token": b"x" * 65},
    "open.resume_tokens": {"resume_tokens": [5], "resume_position": 1},
    "open.resume_position": {"resume_token": b"x", "resume_tokens": [5]},
    "open.prompt": {"prompt": []},
    "open.tokenizer_fingerprint": {"tokenizer_fingerprint": "cd" * 32},
    "open.protocol": {"protocol": 0},
    "open.limits.max_tokens": {"limits": pb.Limits()},
    "open.sampling.temperature": {"sampling": pb.Sampling(temperature=-1)},
}


@pytest.mark.parametrize("field", REFUSED)
async def test_a_bad_open_names_its_field_and_takes_no_place(make, engine, field):
    orchestrator = await make()
    with pytest.raises(InvalidInput) as error:
        await orchestrator.open(opening(**REFUSED[field]), "acme", "phone")
    assert error.value.field == field
    assert orchestrator.live_sessions == 0
    assert engine.opened == []


async def test_the_refusal_of_a_mode_lists_those_that_are_served(make):
    orchestrator = await make(modes=(pb.MODE_OPEN, pb.MODE_CLOAKED))
    with pytest.raises(InvalidInput, match="MODE_OPEN, MODE_CLOAKED"):
        await orchestrator.open(opening(mode=pb.MODE_SEALED), "acme", "phone")
    await orchestrator.open(opening(mode=pb.MODE_CLOAKED), "acme", "phone")


async def test_a_tenant_that_is_not_served_is_refused(make, engine):
    orchestrator = await make(tenants=tenants(Tenant("acme")))
    with pytest.raises(Unauthenticated, match="'umbra' is not served here"):
        await orchestrator.open(opening(), "umbra", "phone")
    assert engine.opened == []
    await orchestrator.open(opening(), "acme", "phone")


async def test_a_full_house_refuses_with_a_time_and_takes_again_after_a_session_is_over(make):
    orchestrator = await make(run_ahead=0)
    handles = [await orchestrator.open(endless(), "acme", "phone") for _ in range(INFO.max_sessions)]
    with pytest.raises(Overloaded, match="all 4 sessions are taken") as error:
        await orchestrator.open(opening(), "acme", "phone")
    assert error.value.retry_after > 0
    handles[0].receive(CLOSE)
    handles[0].close()
    await orchestrator.open(opening(), "acme", "phone")


async def test_a_tenant_that_has_all_its_sessions_is_refused_and_others_are_not(make):
    orchestrator = await make(run_ahead=0, tenants=tenants(Tenant("acme", max_sessions=1), Tenant("umbra")))
    await orchestrator.open(endless(), "acme", "phone")
    with pytest.raises(Overloaded, match="all 1 sessions of this tenant") as error:
        await orchestrator.open(opening(), "acme", "phone")
    assert error.value.retry_after > 0
    await orchestrator.open(opening(), "umbra", "phone")


async def test_a_tenant_over_its_rate_is_told_when_to_come_back_and_loses_nothing(make):
    limited = Tenant("acme", max_sessions=2, tokens_per_minute=60, burst=10)
    orchestrator = await make(run_ahead=0, tenants=tenants(limited, Tenant("umbra")))
    first = await orchestrator.open(endless(prompt=[5] * 30), "acme", "phone")
    await turns()
    token = first.live.resume_token
    first.close()
    with pytest.raises(Overloaded, match="has used its 60 tokens a minute") as error:
        await orchestrator.open(endless(), "acme", "phone")
    # 30 tokens of prompt and one that was settled, 10 of them free, at one a second.
    assert 15 < error.value.retry_after <= 21
    await orchestrator.open(opening(), "umbra", "phone")
    again = endless(prompt=[5] * 30, resume_token=token)
    assert (await orchestrator.open(again, "acme", "phone")).live is first.live


async def test_a_tenant_over_its_rate_pauses_and_goes_on(make, engine, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(orchestrator_module.time, "monotonic", lambda: clock[0])
    limited = Tenant("acme", tokens_per_minute=60, burst=10)
    orchestrator = await make(run_ahead=100, tenants=tenants(limited, Tenant("umbra")))
    held = await orchestrator.open(endless(prompt=[5]), "acme", "phone")
    free = await orchestrator.open(endless(40, prompt=[5]), "umbra", "phone")
    await turns(300)
    assert free.live.session.state is State.FINISHED
    # The prompt, ten tokens of the burst, and the one that overdraws it.
    assert len(held.live.session.tree.settled) == 10
    clock[0] += 5.0
    held.receive(pb.ClientFrame())
    await turns(300)
    assert len(held.live.session.tree.settled) == 15


async def test_the_house_takes_up_a_tenant_by_itself_once_its_rate_allows(make, engine, monkeypatch):
    """No frame need come; a timer is set for the time."""
    timers = []

    def call_later(seconds, callback, *arguments):
        timers.append(seconds)
        return original(0, callback, *arguments) if seconds < 1e-6 else original(3600, callback, *arguments)

    loop = asyncio.get_running_loop()
    original = loop.call_later
    clock = [1000.0]
    monkeypatch.setattr(orchestrator_module.time, "monotonic", lambda: clock[0])
    orchestrator = await make(tenants=tenants(Tenant("acme", tokens_per_minute=60, burst=10)))
    monkeypatch.setattr(loop, "call_later", call_later)
    await orchestrator.open(endless(prompt=[5]), "acme", "phone")
    await turns(300)
    assert timers[-1] == pytest.approx(1.0)


async def test_an_open_that_is_given_up_leaves_nothing_in_the_engine(make, engine, monkeypatch):
    entered = asyncio.Event()
    released: list[str] = []

    async def slow(session, prompt, sampling, salt):
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(engine, "open", slow)
    monkeypatch.setattr(engine, "release", released.append)
    orchestrator = await make()
    opened = asyncio.create_task(orchestrator.open(opening(), "acme", "phone"))
    await entered.wait()
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    assert len(released) == 1
    assert orchestrator.live_sessions == 0
    orchestrator.tidy(time.monotonic())


async def test_an_engine_that_has_no_room_refuses_and_the_place_is_free_again(make, engine):
    orchestrator = await make()
    for _ in range(2 * INFO.max_sessions):
        engine.refuse = Overloaded("the cache is full", 3.0)
        with pytest.raises(Overloaded, match="the cache is full"):
            await orchestrator.open(opening(), "acme", "phone")
    await orchestrator.open(opening(), "acme", "phone")


# ---------------------------------------------------------------- one harms no other


async def test_a_bad_frame_touches_no_other_session(make):
    orchestrator = await make(run_ahead=0)
    bad = await orchestrator.open(opening(), "acme", "phone")
    good = await orchestrator.open(opening(), "acme", "phone")
    await turns()
    with pytest.raises(InvalidInput) as error:
        bad.receive(drafts([5], position=3))
    assert error.value.field == "draft.position"
    bad.fail(error.value)
    bad.close()
    good.receive(drafts(toy_greedy(PROMPT, 4)))
    await turns()
    frames = good.frames()
    await anext(frames)
    assert (await anext(frames)).verdict.accepted == 3
    await frames.aclose()
    again = await orchestrator.open(opening(resume_token=bad.live.resume_token), "acme", "phone")
    assert again.live is not bad.live, "what broke the protocol cannot be taken up"


@pytest.mark.parametrize("error", [Overloaded("the cache is full", 1.0), ValueError("anything")], ids=repr)
async def test_an_outcome_with_an_error_ends_its_stream_after_what_was_settled(make, engine, monkeypatch, error):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(endless(), "acme", "phone")
    other = await orchestrator.open(endless(), "acme", "phone")
    handle.receive(drafts(toy_greedy(PROMPT, 3)))
    await turns()
    judge = engine._judge
    failing = handle.live.session.id
    monkeypatch.setattr(
        engine,
        "_judge",
        lambda work: Outcome(work.session, (), 0, error=error) if work.session == failing else judge(work),
    )
    handle.receive(drafts([5], position=4, block=2, epoch=1))
    other.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    await turns()
    frames = handle.frames()
    await anext(frames)
    assert (await anext(frames)).verdict.tokens == toy_greedy(PROMPT, 4)
    with pytest.raises(type(error)):
        await anext(frames)
    frames = other.frames()
    await anext(frames)
    assert len((await anext(frames)).verdict.tokens) == 2
    await frames.aclose()


# ---------------------------------------------------------------- the end


async def test_draining_lets_sessions_finish_and_takes_nobody_new(make):
    orchestrator = await make()
    handle = await orchestrator.open(opening(), "acme", "phone")
    draining = asyncio.create_task(orchestrator.drain(60))
    await turns(1)
    with pytest.raises(VerifierUnavailable, match="shutting down"):
        await orchestrator.open(opening(), "acme", "phone")
    tokens, kinds = await read_all(handle)
    assert tokens == toy_greedy(PROMPT, 20)
    assert kinds[-1] == "finished"
    handle.close()
    await draining


async def test_draining_sends_away_who_does_not_finish_with_a_token(make):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    await orchestrator.drain(0)
    frames = [frame async for frame in handle.frames()]
    assert [frame.WhichOneof("frame") for frame in frames] == ["opened", "verdict", "go_away"]
    assert frames[-1].go_away.resume_token == frames[0].opened.resume_token


async def test_close_fails_what_is_live(make):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(endless(), "acme", "phone")
    await orchestrator.close()
    with pytest.raises(VerifierUnavailable, match="shut down"):
        await read_all(handle)


@pytest.mark.parametrize("settings", [{"window": 0}, {"run_ahead": -1}], ids=str)
def test_settings_are_checked(engine, settings):
    (name,) = settings
    with pytest.raises(InvalidInput, match=name):
        Orchestrator(engine, **settings)
