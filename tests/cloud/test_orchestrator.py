"""Many sessions over one engine: sharing, merging for slow readers, refusals, draining, and an engine that dies."""

import asyncio

import pytest
from toy import toy_greedy, toy_target

from edgedraft.errors import InvalidInput, Overloaded, VerifierUnavailable
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import EngineInfo, Outcome, Sampling
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator

FINGERPRINT = "ab" * 32
PROMPT = [11, 12, 13]
INFO = EngineInfo("scripted", "toy", "f", FINGERPRINT, 100, 200, 8, 4, (2, 0))


def opening(**changes) -> pb.Open:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "tokenizer_fingerprint": FINGERPRINT,
        "mode": pb.MODE_OPEN,
        "prompt": PROMPT,
        "limits": pb.Limits(max_tokens=20),
    }
    return pb.Open(**{**fields, **changes})


def drafts(tokens, position=0, block=1, epoch=0) -> pb.ClientFrame:
    return pb.ClientFrame(draft=pb.Draft(epoch=epoch, position=position, block=block, tokens=tokens))


async def turns(count: int = 50) -> None:
    """Let everything that can happen by itself happen."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(toy_target, INFO)


@pytest.fixture
async def make(engine):
    made: list[Orchestrator] = []

    async def start(**settings) -> Orchestrator:
        orchestrator = Orchestrator(engine, **{"window": 8, "run_ahead": 64, **settings})
        made.append(orchestrator)
        await orchestrator.start()
        return orchestrator

    yield start
    for orchestrator in made:
        await orchestrator.close()


async def read_all(handle, acknowledge: bool = True) -> tuple[list[int], list[str]]:
    """Settled tokens and the kinds of frames, acknowledging as a device does."""
    tokens: list[int] = []
    kinds: list[str] = []
    async for frame in handle.frames():
        kinds.append(frame.WhichOneof("frame"))
        if frame.HasField("verdict"):
            assert frame.verdict.position == len(tokens)
            tokens += frame.verdict.tokens
            if acknowledge:
                handle.receive(pb.ClientFrame(settled=len(tokens)))
    return tokens, kinds


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


async def test_opened_grants_what_was_set(make):
    orchestrator = await make(window=5)
    handle = await orchestrator.open(opening(), "acme", "phone")
    opened = (await anext(handle.frames())).opened
    assert (opened.window, opened.max_block, opened.resume_token) == (5, INFO.max_block, b"")


async def test_without_run_ahead_nothing_happens_until_a_draft_comes(make, engine):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    await turns()
    assert engine.steps == []
    right = toy_greedy(PROMPT, 20)
    handle.receive(drafts(right[:4]))
    await turns()
    assert [work.tokens for (work,) in engine.steps] == [tuple(right[:4])]
    frames = handle.frames()
    await anext(frames)
    verdict = (await anext(frames)).verdict
    assert (list(verdict.tokens), verdict.accepted, verdict.block_used) == (right[:5], 4, True)
    await frames.aclose()


async def test_works_of_one_moment_go_in_one_step(make, engine):
    orchestrator = await make(run_ahead=0)
    handles = [await orchestrator.open(opening(prompt=[i]), "acme", "phone") for i in range(3, 6)]
    for handle in handles:
        handle.receive(drafts([5]))
    await turns()
    assert {work.session for work in engine.steps[0]} == {handle.session.id for handle in handles}


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
    handle = await orchestrator.open(opening(limits=pb.Limits(max_tokens=20, ignore_eos=True)), "acme", "phone")
    await turns(200)
    assert len(engine.steps) == 3
    handle.receive(pb.ClientFrame(settled=2))
    await turns(200)
    assert len(engine.steps) == 5


async def test_the_engine_is_given_back_when_a_session_finishes_though_nobody_reads(make, engine, monkeypatch):
    released: list[str] = []
    monkeypatch.setattr(engine, "release", released.append)
    orchestrator = await make()
    done = await orchestrator.open(opening(limits=pb.Limits(max_tokens=2)), "acme", "phone")
    closed = await orchestrator.open(opening(), "acme", "phone")
    closed.receive(pb.ClientFrame(close=pb.Close(reason=pb.Close.REASON_CANCELLED)))
    await turns()
    assert {done.session.id, closed.session.id} <= set(released)
    assert (await read_all(closed))[1] == ["opened", "finished"]


REFUSED = {
    "open.model": {"model": "another"},
    "open.mode": {"mode": pb.MODE_SEALED},
    "open.resume_token": {"resume_token": b"x"},
    "open.prompt": {"prompt": []},
    "open.tokenizer_fingerprint": {"tokenizer_fingerprint": "cd" * 32},
    "open.protocol": {"protocol": 0},
    "open.limits.max_tokens": {"limits": pb.Limits()},
    "open.sampling.temperature": {"sampling": pb.Sampling(temperature=-1)},
}


@pytest.mark.parametrize("field", REFUSED)
async def test_a_bad_open_names_its_field_and_takes_no_place(make, field):
    orchestrator = await make()
    with pytest.raises(InvalidInput) as error:
        await orchestrator.open(opening(**REFUSED[field]), "acme", "phone")
    assert error.value.field == field
    assert orchestrator.live_sessions == 0


async def test_the_refusal_of_a_mode_lists_those_that_are_served(make):
    orchestrator = await make(modes=(pb.MODE_OPEN, pb.MODE_CLOAKED))
    with pytest.raises(InvalidInput, match="MODE_OPEN, MODE_CLOAKED"):
        await orchestrator.open(opening(mode=pb.MODE_SEALED), "acme", "phone")
    await orchestrator.open(opening(mode=pb.MODE_CLOAKED), "acme", "phone")


async def test_sampling_reaches_the_engine_with_off_values_filled_in(make, engine, monkeypatch):
    seen: list[Sampling] = []
    original = engine.open

    async def spy(session, prompt, sampling):
        seen.append(sampling)
        await original(session, prompt, sampling)

    monkeypatch.setattr(engine, "open", spy)
    orchestrator = await make()
    await orchestrator.open(opening(), "acme", "phone")
    await orchestrator.open(opening(sampling=pb.Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=0)), "acme", "p")
    assert seen == [Sampling(), Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=0)]


async def test_a_full_house_refuses_with_a_time_and_takes_again_after_a_close(make):
    orchestrator = await make()
    handles = [await orchestrator.open(opening(), "acme", "phone") for _ in range(INFO.max_sessions)]
    with pytest.raises(Overloaded) as error:
        await orchestrator.open(opening(), "acme", "phone")
    assert error.value.retry_after > 0
    handles[0].close()
    await orchestrator.open(opening(), "acme", "phone")


async def test_a_bad_frame_touches_no_other_session(make):
    orchestrator = await make(run_ahead=0)
    bad = await orchestrator.open(opening(), "acme", "phone")
    good = await orchestrator.open(opening(), "acme", "phone")
    with pytest.raises(InvalidInput) as error:
        bad.receive(drafts([5], position=3))
    assert error.value.field == "draft.position"
    bad.close()
    good.receive(drafts(toy_greedy(PROMPT, 3)))
    frames = good.frames()
    await anext(frames)
    assert (await anext(frames)).verdict.accepted == 3
    await frames.aclose()


async def test_an_open_that_is_given_up_leaves_nothing_in_the_engine(make, engine, monkeypatch):
    entered = asyncio.Event()
    released: list[str] = []

    async def slow(session, prompt, sampling):
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


@pytest.mark.parametrize("error", [Overloaded("the cache is full", 1.0), ValueError("anything")], ids=repr)
async def test_an_outcome_with_an_error_ends_its_session_after_what_was_settled(make, engine, monkeypatch, error):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    other = await orchestrator.open(opening(), "acme", "phone")
    handle.receive(drafts(toy_greedy(PROMPT, 2)))
    await turns()
    judge = engine._judge
    monkeypatch.setattr(
        engine,
        "_judge",
        lambda work: Outcome(work.session, (), 0, error=error) if work.session == handle.session.id else judge(work),
    )
    handle.receive(drafts([5], position=3, block=2, epoch=1))
    other.receive(drafts([5]))
    await turns()
    frames = handle.frames()
    await anext(frames)
    assert (await anext(frames)).verdict.tokens == toy_greedy(PROMPT, 3)
    with pytest.raises(type(error)):
        await anext(frames)
    frames = other.frames()
    await anext(frames)
    assert (await anext(frames)).HasField("verdict")
    await frames.aclose()


async def test_a_dead_engine_fails_all_sessions_and_new_ones(make, engine):
    orchestrator = await make(run_ahead=0)
    handles = [await orchestrator.open(opening(), "acme", "phone") for _ in range(2)]
    engine.die()
    await orchestrator.engine_died()
    for handle in handles:
        with pytest.raises(VerifierUnavailable):
            await read_all(handle)
        handle.close()
    with pytest.raises(VerifierUnavailable):
        await orchestrator.open(opening(), "acme", "phone")


async def test_a_fault_between_engine_and_sessions_leaves_nobody_waiting(make, engine, monkeypatch):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    monkeypatch.setattr(engine, "_judge", lambda work: 1 / 0)
    handle.receive(drafts([5]))
    with pytest.raises(VerifierUnavailable) as error:
        await read_all(handle)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(VerifierUnavailable):
        await orchestrator.open(opening(), "acme", "phone")


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


async def test_draining_sends_away_who_does_not_finish(make):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    await orchestrator.drain(0)
    assert (await read_all(handle))[1] == ["opened", "go_away"]


async def test_close_fails_what_is_live(make):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(opening(), "acme", "phone")
    await orchestrator.close()
    with pytest.raises(VerifierUnavailable, match="shut down"):
        await read_all(handle)


@pytest.mark.parametrize("settings", [{"window": 0}, {"run_ahead": -1}], ids=str)
def test_settings_are_checked(engine, settings):
    (name,) = settings
    with pytest.raises(InvalidInput, match=name):
        Orchestrator(engine, **settings)
