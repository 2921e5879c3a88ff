"""The law of resuming: whatever is lost on the way, the output is the target's own."""

import asyncio

import pytest
from devices import (
    PROMPT,
    Device,
    RecordingEngine,
    endless,
    engine_info,
    opening,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import histories, live_through
from toy import toy_greedy, toy_target

import edgedraft_cloud.supervisor as supervisor_module
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud import gather
from edgedraft_cloud.orchestrator import Orchestrator


async def play(history: list[tuple[int, str, int]], run_ahead: int, window: int, room: int) -> None:
    """Two devices live through a history; then both go on to the end."""
    engine = RecordingEngine(engine_info())
    orchestrator = Orchestrator(engine, window=window, run_ahead=run_ahead, step_tokens=room, resume_seconds=60.0)
    await orchestrator.start()
    messages = [opening(limits=pb.Limits(max_tokens=30)), endless(30, prompt=[21, 22])]
    pair = [Device(orchestrator, message, name=f"phone-{index}") for index, message in enumerate(messages)]
    try:
        for index, name, amount in history:
            await live_through(engine, orchestrator, pair[index], name, amount)
        for device in pair:
            while device.finished is None:
                await live_through(engine, orchestrator, device, "draft", 5)
                await live_through(engine, orchestrator, device, "read", 3)
        assert pair[0].settled == toy_greedy(PROMPT, 30)
        assert len(pair[1].settled) == 30
        assert pair[1].settled == [toy_target((21, 22, *pair[1].settled[:n])) for n in range(30)]
        if "forget" not in (name for _, name, _ in history):
            for device in pair:
                found = engine.found[device.handle.live.session.id]
                # A step may go on behind the end of the text, nothing else goes beyond what is settled.
                end = len(device.settled)
                assert found[:end] == device.settled, "something was verified twice"
                assert len(found) == end or device.finished.reason == pb.Finished.REASON_STOP
    finally:
        await orchestrator.close()


@settings(max_examples=200)
@given(
    history=histories,
    run_ahead=st.sampled_from([0, 1, 64]),
    window=st.integers(1, 10),
    room=st.sampled_from([2, 5, 100]),
)
def test_whatever_is_lost_the_output_is_the_targets_own(history, run_ahead, window, room):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "MOMENT", 0.0)
        patch.setattr(supervisor_module, "MOST_RESTARTS", 1000)
        asyncio.run(play(history, run_ahead, window, room))
