"""An engine that dies: who learns of it, how often it is started again, and when it is given up."""

import asyncio

import pytest
from devices import PROMPT, drafts, endless, opening, read_all, turns
from toy import toy_greedy

import edgedraft_cloud.orchestrator as orchestrator_module
from edgedraft.errors import InvalidInput, ModelNotFound, VerifierUnavailable
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.supervisor import MOST_RESTARTS


async def followed(orchestrator) -> list[bool]:
    return [ready async for ready in orchestrator.readiness()]


async def test_a_dead_engine_sends_its_sessions_away_with_a_token_and_is_started_again(make, engine):
    orchestrator = await make(run_ahead=0)
    handles = [await orchestrator.open(endless(), "acme", "phone") for _ in range(2)]
    await turns()
    engine.die()
    await turns()
    for handle in handles:
        frames = handle.frames()
        await anext(frames)
        assert (await anext(frames)).HasField("verdict")
        going = (await anext(frames)).go_away
        assert going.resume_token == handle.live.resume_token
        assert going.retry_after_ms > 0
        with pytest.raises(VerifierUnavailable, match="told to die"):
            await anext(frames)
        handle.close()
    assert engine.starts == 2
    one = opening(limits=pb.Limits(max_tokens=1))
    tokens, kinds = await read_all(await orchestrator.open(one, "acme", "phone"))
    assert (tokens, kinds[-1]) == (toy_greedy(PROMPT, 1), "finished")


async def test_while_the_engine_is_started_again_sessions_are_refused_with_a_time(make, engine, monkeypatch):
    gate = asyncio.Event()
    orchestrator = await make()
    start = engine.start

    async def slow():
        await gate.wait()
        await start()

    monkeypatch.setattr(engine, "start", slow)
    readiness = orchestrator.readiness()
    assert await anext(readiness)
    engine.die()
    assert not await anext(readiness)
    with pytest.raises(VerifierUnavailable, match="is loading its model") as error:
        await orchestrator.open(opening(), "acme", "phone")
    assert error.value.retry_after > 0
    gate.set()
    assert await anext(readiness)
    await orchestrator.open(opening(), "acme", "phone")
    await readiness.aclose()


async def test_an_engine_that_dies_again_and_again_is_given_up(make, engine):
    orchestrator = await make()
    following = asyncio.create_task(followed(orchestrator))
    for _ in range(MOST_RESTARTS + 1):
        await turns()
        engine.die()
    await turns()
    assert (await following)[-1] is False
    assert engine.starts == MOST_RESTARTS + 1
    with pytest.raises(VerifierUnavailable, match="again and again"):
        await orchestrator.open(opening(), "acme", "phone")


async def test_deaths_long_ago_do_not_count(make, engine, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(orchestrator_module.time, "monotonic", lambda: clock[0])
    orchestrator = await make()
    for _ in range(3 * MOST_RESTARTS):
        engine.die()
        await turns()
        clock[0] += 300.0
    assert engine.starts == 3 * MOST_RESTARTS + 1
    await orchestrator.open(opening(), "acme", "phone")


@pytest.mark.parametrize("error", [ModelNotFound("gone"), InvalidInput("kv_tokens", "is 1", "use more"), OSError()])
async def test_an_engine_that_cannot_be_started_again_is_given_up(make, engine, monkeypatch, error):
    async def broken():
        raise error

    orchestrator = await make()
    monkeypatch.setattr(engine, "start", broken)
    engine.die()
    assert (await followed(orchestrator))[-1] is False
    with pytest.raises(VerifierUnavailable, match="could not be started again") as raised:
        await orchestrator.open(opening(), "acme", "phone")
    assert raised.value.__cause__ is error


async def test_a_fault_between_engine_and_sessions_leaves_nobody_waiting(make, engine, monkeypatch):
    orchestrator = await make(run_ahead=0)
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    monkeypatch.setattr(engine, "_judge", lambda work: 1 / 0)
    handle.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    with pytest.raises(VerifierUnavailable) as error:
        await read_all(handle)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    monkeypatch.undo()
    assert engine.starts == 2
