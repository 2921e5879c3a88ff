"""A session begins again in the engine where its device has overruled the target: from an orchestrator's side."""

import asyncio

import pytest
from devices import CLOSE, PROMPT, endless, opening, resuming, turns
from sealed_device import SealedDevice, sealed_text
from toy import toy_greedy, toy_target

import edgedraft_cloud.orchestrator as orchestrator_module
from edgedraft.errors import Overloaded, VerifierUnavailable
from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.planner import REREAD_ROWS, ROWS_A_TOKEN
from edgedraft_cloud.session import State
from edgedraft_cloud.tenants import Tenant, Tenants

RIGHT = toy_greedy(PROMPT, 20)
DECIDED = 77
"""What the device puts in the place of the target's word."""


def sealed(max_tokens: int = 150, **changes) -> pb.Open:
    return endless(max_tokens, mode=pb.MODE_SEALED, **changes)


def veto(position: int, *more: int, epoch: int = 1, block: int = 1) -> pb.ClientFrame:
    tokens = [DECIDED, *more]
    return pb.ClientFrame(
        draft=pb.Draft(epoch=epoch, position=position, block=block, tokens=tokens, given=given_bits((True,)))
    )


async def begun(orchestrator, message: pb.Open, tenant: str = "acme", device: str = "phone"):
    """A session that has settled what the cloud does by itself."""
    handle = await orchestrator.open(message, tenant, device)
    await turns()
    return handle


async def test_all_modes_are_served_and_described(make):
    orchestrator = await make()
    (model,) = orchestrator.describe().models
    assert list(model.modes) == [pb.MODE_SEALED, pb.MODE_CLOAKED, pb.MODE_OPEN]
    for mode in model.modes:
        await orchestrator.open(opening(mode=mode), "acme", "phone")


@pytest.mark.parametrize(
    ("mode", "settled"),
    [(pb.MODE_SEALED, 2), (pb.MODE_CLOAKED, 5), (pb.MODE_OPEN, 5)],
    ids=["sealed", "cloaked", "open"],
)
async def test_the_cloud_runs_ahead_as_far_as_the_mode_lets_it(make, mode, settled):
    orchestrator = await make(run_ahead=5, sealed_run_ahead=2)
    handle = await begun(orchestrator, endless(mode=mode))
    assert handle.live.session.tree.settled == RIGHT[:settled]


async def test_the_engine_reads_what_stands_now_and_goes_on_behind_it(make, engine):
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    text = (*PROMPT, RIGHT[0], DECIDED)
    handle.receive(veto(1, toy_target(text)))
    await turns()
    session = handle.live.session
    assert [read for _, read in engine.opened] == [tuple(PROMPT), text]
    assert session.tree.settled[:3] == [RIGHT[0], DECIDED, toy_target(text)]
    assert session.tree.settled[2:] == toy_greedy(list(text), len(session.tree.settled) - 2)
    assert engine.starts == 1


async def test_what_was_under_way_is_lost_with_the_veto(make, engine, monkeypatch):
    """Its outcome comes while the session waits to begin again."""
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    handle.receive(pb.ClientFrame(settled=1))
    assert handle.live.session.state is State.PARKED
    handle.receive(pb.ClientFrame(draft=pb.Draft(block=1, position=3, tokens=[5, 6])))
    orchestrator._flush()
    assert handle.live.session.state is State.WORKING
    handle.receive(veto(1, block=2))
    await turns()
    settled = handle.live.session.tree.settled
    assert settled == [RIGHT[0], DECIDED, *toy_greedy([*PROMPT, RIGHT[0], DECIDED], len(settled) - 2)]


async def test_the_end_waits_for_its_acknowledgement_without_the_engine(make, engine):
    orchestrator = await make(sealed_run_ahead=8)
    handle = await begun(orchestrator, sealed(3))
    assert handle.live.session.state is State.ENDING
    assert engine._logs == {}
    frames = handle.frames()
    kinds = [(await anext(frames)).WhichOneof("frame") for _ in range(2)]
    last = asyncio.ensure_future(anext(frames))
    await turns()
    assert (kinds, last.done()) == (["opened", "verdict"], False)
    handle.receive(veto(2))
    await turns()
    assert last.done(), "it has decided the last one itself"
    assert list(last.result().verdict.tokens) == [DECIDED]
    assert (await anext(frames)).finished.usage.given_tokens == 1


async def test_an_end_outlives_the_engine_and_is_vetoed_in_the_next(make, engine):
    orchestrator = await make(sealed_run_ahead=8)
    handle = await begun(orchestrator, sealed(4))
    engine.die()
    orchestrator._flush()
    other = await orchestrator.open(sealed(prompt=[5]), "acme", "other")
    await turns()
    assert (engine.starts, handle.is_open, other.is_open) == (2, True, False)
    handle.receive(veto(1))
    await turns()
    text = [*PROMPT, RIGHT[0], DECIDED]
    assert handle.live.session.tree.settled == [RIGHT[0], DECIDED, *toy_greedy(text, 2)]


async def test_a_veto_while_the_engine_is_away_asks_the_device_to_come_back(make, engine):
    orchestrator = await make(sealed_run_ahead=8)
    handle = await begun(orchestrator, sealed(4))
    orchestrator._supervisor.ready = False
    handle.receive(veto(1))
    with pytest.raises(VerifierUnavailable, match="try again"):
        async for _ in handle.frames():
            pass
    handle.close()
    orchestrator._supervisor.ready = True
    message = resuming(sealed(4), handle.live.resume_token, [RIGHT[0], DECIDED])
    again = await orchestrator.open(message, "acme", "phone")
    await turns()
    assert again.live is handle.live
    assert len(again.live.session.tree.settled) == 4


async def test_where_the_house_is_full_by_then_the_device_comes_back_and_nothing_is_lost(make, engine):
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    engine.refuse = Overloaded("the cache is full", 3.0)
    handle.receive(veto(1))
    await turns()
    with pytest.raises(VerifierUnavailable, match="could not be taken up") as caught:
        async for _ in handle.frames():
            pass
    assert caught.value.retry_after > 0
    handle.close()
    assert engine._logs == {}
    message = resuming(sealed(), handle.live.resume_token, [RIGHT[0]])
    again = await orchestrator.open(message, "acme", "phone")
    assert again.live is handle.live
    await turns()
    assert again.live.session.tree.settled[:2] == [RIGHT[0], DECIDED]
    assert len(again.live.session.tree.settled) > 2


async def test_one_that_goes_away_begins_again_when_it_comes_back(make, engine):
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    handle.receive(veto(1))
    handle.close()
    await turns()
    assert len(engine.opened) == 1
    message = resuming(sealed(), handle.live.resume_token, [RIGHT[0], DECIDED])
    again = await orchestrator.open(message, "acme", "phone")
    await turns()
    assert [read for _, read in engine.opened[1:]] == [(*PROMPT, RIGHT[0], DECIDED)]
    assert len(again.live.session.tree.settled) > 2


async def test_one_that_comes_back_with_what_it_has_decided_begins_again_too(make, engine):
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    handle.close()
    message = resuming(sealed(), handle.live.resume_token, [RIGHT[0], DECIDED, 78])
    again = await orchestrator.open(message, "acme", "phone")
    await turns()
    assert [read for _, read in engine.opened[1:]] == [(*PROMPT, RIGHT[0], DECIDED, 78)]
    assert again.live.session.usage.given_tokens == 2


async def test_one_that_is_over_its_rate_begins_again_when_it_may(make, engine, monkeypatch):
    clock, slept = [1000.0], []
    monkeypatch.setattr(orchestrator_module.time, "monotonic", lambda: clock[0])
    original = asyncio.sleep

    async def sleep(seconds):
        if seconds > 2:
            slept.append(seconds)
            clock[0] += seconds
        await original(0)

    limited = Tenants({"acme": Tenant("acme", tokens_per_minute=60, burst=10)}, None)
    orchestrator = await make(sealed_run_ahead=2, tenants=limited)
    handle = await begun(orchestrator, sealed(prompt=[5] * 15))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    handle.receive(veto(0))
    await turns()
    # 15 tokens of prompt and one that was settled, 10 of them free, at one a second.
    assert slept == [pytest.approx(6.0, abs=1.1)]
    assert len(engine.opened) == 2


@pytest.mark.parametrize("gone", [True, False])
async def test_a_session_that_closes_while_it_waits_to_begin_again_leaves_nothing(make, engine, gone):
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    handle.receive(veto(1))
    handle.receive(CLOSE)
    if gone:
        handle.close()
    await turns()
    assert engine._logs == {}
    assert orchestrator._occupancy._beginning == {}
    handle.close()
    assert len(engine.opened) == 1
    assert len(orchestrator._sessions) == 0


async def test_beginning_again_costs_its_share(make, monkeypatch):
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed())
    charged = []
    queue = orchestrator._planner._queue
    charge = queue.charge
    monkeypatch.setattr(queue, "charge", lambda session, tokens: charged.append(tokens) or charge(session, tokens))
    handle.receive(veto(1))
    await turns(3)
    assert charged[0] == 1 + REREAD_ROWS / ROWS_A_TOKEN


async def test_a_seed_draws_nothing_twice(make, engine, monkeypatch):
    seeds = []
    original = engine.open

    async def spy(session, prompt, sampling, salt):
        seeds.append(sampling.seed)
        await original(session, prompt, sampling, salt)

    monkeypatch.setattr(engine, "open", spy)
    orchestrator = await make(sealed_run_ahead=3)
    handle = await begun(orchestrator, sealed(sampling=pb.Sampling(temperature=1.0, seed=7)))
    for index in range(1, 4):
        handle.receive(veto(index, epoch=index, block=index))
        await turns()
    assert seeds[0] == 7
    assert len(set(seeds)) == len(seeds) == 4
    assert all(0 <= seed < 1 << 64 for seed in seeds)


async def test_a_device_that_decides_much_gets_its_text_over_a_full_house(make, engine):
    """Many sealed sessions at once, in steps that hold a few rows."""
    orchestrator = await make(sealed_run_ahead=4, step_tokens=6)
    devices = [SealedDevice(orchestrator, endless(40, prompt=[token]), name=f"phone-{token}") for token in range(3, 7)]
    for device in devices:
        await device.connect()
    while any(device.finished is None for device in devices):
        for device in devices:
            if device.finished is None:
                device.draft(3)
                await device.read()
    for token, device in enumerate(devices, 3):
        assert device.settled == sealed_text([token], 40, ignore_eos=True)
        assert device.finished.usage.given_tokens > 8
    assert sum(device.vetoes for device in devices) > 4
    assert len(engine.opened) > 8
    assert max(sum(len(work.tokens) + 1 for work in works) for works in engine.steps) <= 6 + len(devices)
