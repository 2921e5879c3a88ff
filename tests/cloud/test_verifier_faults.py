"""Faults that once stopped the verifier, or one tenant for another's sake, each with the shortest way to it."""

import asyncio
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from devices import PROMPT, drafts, endless, engine_info, opening, read_all, resuming, turns
from toy import toy_greedy

import edgedraft_cloud.orchestrator as orchestrator_module
import edgedraft_cloud.server as server_module
from edgedraft.errors import InvalidInput, VerifierUnavailable
from edgedraft.identity import Identity
from edgedraft.wire import VERIFY_METHOD, FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Work
from edgedraft_cloud.engines.trace import ANY_FINGERPRINT, StepTime, TraceEngine
from edgedraft_cloud.engines.vllm import engine as vllm_engine
from edgedraft_cloud.engines.vllm.engine import VllmEngine
from edgedraft_cloud.fair_queue import FairQueue
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import start_server
from edgedraft_cloud.session import Session, SessionLimits, State
from edgedraft_cloud.tenants import Tenant, Tenants

INFO = engine_info()


# ---------------------------------------------------------------- nobody waits for ever


@pytest.mark.parametrize("error", [VerifierUnavailable("the engine is gone"), ValueError("anything")], ids=repr)
async def test_an_engine_that_takes_no_works_is_started_again_though_its_step_says_nothing(
    make, engine, monkeypatch, error
):
    orchestrator = await make()
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()

    def refuse(works):
        raise error

    monkeypatch.setattr(engine, "submit", refuse)
    handle.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    with pytest.raises(VerifierUnavailable):
        async with asyncio.timeout(5):
            await read_all(handle)
    monkeypatch.undo()
    await turns()
    assert engine.starts == 2
    message = resuming(endless(max_tokens=5), handle.live.resume_token, toy_greedy(PROMPT, 1))
    again = await orchestrator.open(message, "acme", "phone")
    again.receive(drafts([5], position=1, epoch=1))
    await turns()
    assert len(again.live.session.tree.settled) > 1


async def test_closing_while_works_cannot_be_handed_over_ends(make, engine, monkeypatch):
    orchestrator = await make()
    handle = await orchestrator.open(endless(), "acme", "phone")
    await turns()
    monkeypatch.setattr(engine, "submit", lambda works: 1 / 0)
    handle.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    async with asyncio.timeout(5):
        await orchestrator.close()
    assert orchestrator.live_sessions == 0


class SilentCore:
    """vLLM's client as it is when the engine core refuses an order and has no output to give."""

    async def get_output_async(self):
        await asyncio.Event().wait()

    async def call_utility_async(self, *order):
        raise RuntimeError("call to scheduler method failed")


@pytest.fixture
async def silent(monkeypatch) -> VllmEngine:
    target = SimpleNamespace(
        context_length=64, name="toy", model_fingerprint="f", tokenizer_fingerprint="f", vocab_size=9, eos_token_ids=()
    )
    monkeypatch.setattr(vllm_engine.Target, "find", lambda model: target)
    engine = VllmEngine("toy")
    engine._client = SilentCore()
    return engine


async def test_an_order_that_fails_ends_the_step_that_vllm_would_never_report(silent):
    step = asyncio.create_task(silent.step())
    await turns()
    silent.submit([])
    with pytest.raises(VerifierUnavailable, match="died"):
        async with asyncio.timeout(5):
            await step


async def test_a_step_that_is_cancelled_is_no_death(silent):
    step = asyncio.create_task(silent.step())
    await turns()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    silent.submit([])  # it still takes works


async def test_an_order_to_a_closed_engine_does_not_end_the_one_that_was_started_in_its_place(silent):
    silent.submit([])
    silent._client = SilentCore()
    await turns()
    silent.submit([])  # the new one is alive


# ---------------------------------------------------------------- one session's fault is its own


async def test_an_outcome_that_one_session_cannot_take_ends_its_stream_alone(make, engine, monkeypatch):
    orchestrator = await make()
    bad, good = [await orchestrator.open(endless(), "acme", "phone") for _ in range(2)]
    await turns()
    apply = Session.apply

    def broken(self, outcome, **times):
        return 1 / 0 if self.id == bad.live.session.id else apply(self, outcome, **times)

    monkeypatch.setattr(Session, "apply", broken)
    for handle in (bad, good):
        handle.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    await turns()
    with pytest.raises(ZeroDivisionError):
        await read_all(bad)
    assert engine.starts == 1
    assert len(good.live.session.tree.settled) > 1
    monkeypatch.undo()
    bad.close()
    token, settled = bad.live.resume_token, list(bad.live.session.tree.settled)
    again = await orchestrator.open(resuming(endless(), token, settled), "acme", "phone")
    await turns()
    assert again.live is bad.live
    assert again.live.session.tree.settled == toy_greedy(PROMPT, len(settled) + 1)


@pytest.mark.parametrize("hours", [1, 2, 7 * 24])
def test_a_session_may_go_without_drafts_for_longer_than_a_frame_can_tell(hours):
    limits = SessionLimits(FrameLimits(100, 200, 8), 100, 100, (), 8, 8)
    session = Session("s", limits, (1,))
    session.receive(drafts([5]), now=0.0)
    later = hours * 3600.0
    verdict = session.apply(Outcome("s", (6,), 0), now=later, queue_seconds=later, verify_seconds=later)
    assert verdict.held_us == verdict.queue_us == verdict.verify_us == min(round(later * 1e6), 2**32 - 1)
    assert session.state is State.PARKED


# ---------------------------------------------------------------- one that does not read


@pytest.fixture
async def talkative(certificates):
    """A verifier whose cloud runs ahead as far as it likes: more than the buffers of a stream hold."""
    engine = TraceEngine(None, StepTime.parse("0"))
    orchestrator = Orchestrator(engine, run_ahead=1 << 20)
    server = await start_server(orchestrator, certificates.server(), "localhost", 0)
    yield SimpleNamespace(server=server, orchestrator=orchestrator)
    await server.stop(0)


async def read_to_the_end(call) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_device_that_takes_no_frames_loses_its_stream(talkative, certificates, monkeypatch):
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 0.5)
    identity = Identity.load(certificates.device("acme", "phone-1"))
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    small = [("grpc.enable_http_proxy", 0), ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    message = endless(7000, tokenizer_fingerprint=ANY_FINGERPRINT)
    async with grpc.aio.secure_channel(f"localhost:{talkative.server.port}", credentials, small) as channel:
        call = channel.stream_stream(VERIFY_METHOD)()
        await call.write(pb.ClientFrame(open=message).SerializeToString())
        async with asyncio.timeout(60):
            await call.read()
            await talkative.orchestrator.idle()
            # What was on its way is still there to read, and then why the stream ended.
            with pytest.raises(grpc.aio.AioRpcError, match="has taken no frame") as error:
                await read_to_the_end(call)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_that_has_failed_takes_no_steps_and_tells_nothing_more(make):
    orchestrator = await make(run_ahead=64)
    handle = await orchestrator.open(endless(), "acme", "phone")
    handle.end("has lived for long enough")
    await turns(200)
    assert len(handle.live.session.tree.settled) <= 1
    with pytest.raises(InvalidInput, match="long enough"):
        await read_all(handle)


# ---------------------------------------------------------------- nobody pays for another


def test_who_was_served_in_one_lane_is_not_behind_a_newcomer_in_another():
    queue = FairQueue(lanes=2)
    queue.join("old", "acme", 1.0)
    for _ in range(1000):
        queue.put("old", 1)
        assert queue.take(1) == "old"
        queue.charge("old", 1)
    queue.join("new", "other", 1.0)
    queue.put("new", 0)
    queue.put("old", 0)
    served = {"old": 0, "new": 0}
    for _ in range(20):
        session = queue.take(0)
        served[session] += 1
        queue.charge(session, 10)
        queue.put(session, 0)
    assert served == {"old": 10, "new": 10}


def test_nor_is_a_session_behind_a_new_one_of_its_tenant():
    queue = FairQueue(lanes=2)
    queue.join("old", "acme", 1.0)
    for _ in range(1000):
        queue.put("old", 1)
        queue.take(1)
        queue.charge("old", 1)
    queue.join("new", "acme", 1.0)
    queue.put("new", 0)
    queue.put("old", 0)
    order = []
    for _ in range(4):
        order.append(queue.take(0))
        queue.charge(order[-1], 10)
        queue.put(order[-1], 0)
    assert sorted(order) == ["new", "new", "old", "old"]


async def test_a_text_that_comes_as_settled_tokens_is_metered_like_a_prompt(make):
    limited = Tenant("acme", tokens_per_minute=60, burst=10)
    orchestrator = await make(tenants=Tenants({"acme": limited}, None))
    message = resuming(endless(), b"of another machine", [5] * 100)
    handle = await orchestrator.open(message, "acme", "phone")
    handle.close()
    with pytest.raises(orchestrator_module.Overloaded) as refused:
        await orchestrator.open(opening(), "acme", "phone")
    assert refused.value.retry_after > 60


def test_drafts_of_what_is_settled_long_since_take_no_memory_and_new_ones_are_still_taken():
    session = Session("s", SessionLimits(FrameLimits(100, 9000, 8), 8000, 8000, (), 32, 64), (1,))
    for _ in range(2000):
        session.apply(Outcome("s", (7,), 0), now=0.0, queue_seconds=0.0, verify_seconds=0.0)
    for block in range(1, 2001):
        again = pb.Draft(position=0, parent=0, block=block, tokens=[7] * 8)
        session.receive(pb.ClientFrame(draft=again), now=0.0)
    assert session.usage.late_tokens == 16_000
    assert len(session.tree._nodes) < 5000
    for name in (1, 16_000):  # one that is forgotten, and one that is not
        position = 8 if name == 16_000 else 1
        block = pb.Draft(position=position, parent=name, block=2000 + name, tokens=[7] * 8)
        session.receive(pb.ClientFrame(draft=block), now=0.0)
    assert session.usage.late_tokens == 16_008
    end = pb.Draft(position=2000, parent=0, block=30_000, tokens=[7] * 8)
    session.receive(pb.ClientFrame(draft=end), now=0.0)
    assert session.tree.pending == 8
    session.apply(Outcome("s", (7, 7, 8), 2), now=0.0, queue_seconds=0.0, verify_seconds=0.0)
    assert session.tree.pending == 0


async def test_a_work_of_a_released_session_holds_up_no_other(make, engine):
    orchestrator = await make()
    leaving, staying = [await orchestrator.open(endless(), "acme", "phone") for _ in range(2)]
    await turns()
    leaving.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    orchestrator._flush()
    orchestrator._forget(leaving.live, "closed")
    staying.receive(drafts([*toy_greedy(PROMPT, 1), 5]))
    await turns()
    assert Work(staying.live.session.id, (5,)) in engine.steps[-1]
    assert len(staying.live.session.tree.settled) > 1
