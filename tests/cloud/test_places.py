"""A place for one more session: who gives way to it, and that a refusal changes nothing."""

import asyncio

import pytest
from devices import RecordingEngine, endless, engine_info, opening, resuming, turns

from edgedraft.errors import EdgedraftError, Overloaded, VerifierUnavailable
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.tenants import Tenant, Tenants

FULL = Overloaded("the cache is full", 1.0)


class Held(RecordingEngine):
    """Its `open` returns when it is let."""

    def __init__(self, **changes) -> None:
        super().__init__(engine_info(**changes))
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, session, prompt, sampling, salt) -> None:
        await self.gate.wait()
        await super().open(session, prompt, sampling, salt)


@pytest.fixture
def engine() -> Held:
    return Held(max_sessions=2)


def one_each(*names: str) -> Tenants:
    return Tenants({name: Tenant(name, max_sessions=1) for name in names}, None)


async def left(orchestrator, tenant: str = "acme"):
    """A session whose device is away."""
    handle = await orchestrator.open(endless(), tenant, "phone")
    await turns()
    handle.close()
    return handle.live


def refusals(metrics: Metrics, reason: str) -> float:
    return metrics.registry.get_sample_value("edgedraft_sessions_refused_total", {"tenant": "acme", "reason": reason})


@pytest.mark.parametrize("most", [2, 1], ids=["its tenant's limit", "a full engine"])
async def test_where_the_engine_refuses_nobody_has_given_way(make, engine, most):
    engine._info = engine_info(max_sessions=most)
    metrics = Metrics()
    orchestrator = await make(tenants=one_each("acme"), metrics=metrics)
    live = await left(orchestrator)
    settled = list(live.session.tree.settled)
    for _ in range(2):
        engine.refuse = FULL
        with pytest.raises(Overloaded, match="cache is full"):
            await orchestrator.open(opening(), "acme", "tablet")
    assert refusals(metrics, "engine_room") == 2
    assert [*orchestrator._sessions] == [live]
    again = await orchestrator.open(resuming(endless(), live.resume_token, settled), "acme", "phone")
    assert again.live is live
    await turns()
    assert live.in_engine


async def test_one_that_is_away_gives_way_to_one_only(make, engine):
    orchestrator = await make(tenants=one_each("acme"))
    live = await left(orchestrator)
    engine.gate.clear()
    first = asyncio.create_task(orchestrator.open(endless(), "acme", "tablet"))
    await turns()
    with pytest.raises(Overloaded, match="of this tenant"):
        await orchestrator.open(endless(), "acme", "laptop")
    engine.gate.set()
    await first
    assert live not in [*orchestrator._sessions]
    assert orchestrator._sessions.count("acme") == 1


async def test_one_that_comes_back_while_it_gives_way_is_told_to_come_again(make, engine):
    orchestrator = await make(tenants=one_each("acme"))
    live = await left(orchestrator)
    engine.gate.clear()
    other = asyncio.create_task(orchestrator.open(endless(), "acme", "tablet"))
    await turns()
    back = await orchestrator.open(resuming(endless(), live.resume_token), "acme", "phone")
    engine.gate.set()
    await other
    with pytest.raises(VerifierUnavailable, match="place of this session is taken"):
        async for _ in back.frames():
            pass
    back.close()
    assert orchestrator._sessions.count("acme") == 1


async def test_opens_that_come_at_once_are_within_the_rate_together(make, engine):
    engine._info = engine_info(max_sessions=64)
    limited = Tenant("acme", tokens_per_minute=60, burst=60)
    orchestrator = await make(tenants=Tenants({"acme": limited}, None))
    engine.gate.clear()
    opens = [asyncio.create_task(orchestrator.open(endless(prompt=[5] * 49), "acme", "phone")) for _ in range(20)]
    await turns()
    engine.gate.set()
    results = await asyncio.gather(*opens, return_exceptions=True)
    assert sum(not isinstance(result, EdgedraftError) for result in results) == 2


async def test_a_session_that_the_engine_refuses_costs_its_tenant_nothing(make, engine):
    limited = Tenant("acme", tokens_per_minute=60, burst=60)
    orchestrator = await make(tenants=Tenants({"acme": limited}, None))
    for _ in range(5):
        engine.refuse = FULL
        with pytest.raises(Overloaded, match="cache is full"):
            await orchestrator.open(endless(prompt=[5] * 49), "acme", "phone")
    await orchestrator.open(endless(prompt=[5] * 49), "acme", "phone")


async def test_a_seed_draws_anew_where_a_session_is_rebuilt_from_its_tokens(make, engine, monkeypatch):
    seeds = []
    original = engine.open

    async def spy(session, prompt, sampling, salt):
        seeds.append(sampling.seed)
        await original(session, prompt, sampling, salt)

    monkeypatch.setattr(engine, "open", spy)
    message = endless(sampling=pb.Sampling(temperature=1.0, seed=7))
    for held in ([], [21], [21, 22]):
        orchestrator = await make()
        await orchestrator.open(resuming(message, b"of another verifier", held), "acme", "phone")
        await orchestrator.close()
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
