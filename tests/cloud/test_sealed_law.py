"""The law of sealed mode at the verifier: each position is as the device decides, or else as the target has it.

A real orchestrator over a scripted engine; link, engine and schedule are drawn at random.
"""

import asyncio

import pytest
from devices import PROMPT, RecordingEngine, endless, engine_info, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import histories, live_through
from sealed_device import SealedDevice, sealed_text

from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud import gather
from edgedraft_cloud import supervisor as supervisor_module
from edgedraft_cloud.orchestrator import Orchestrator

LENGTH = 30
OTHER = [21, 22]


async def play(history: list[tuple[int, str, int]], run_ahead: int, window: int, room: int) -> None:
    """Two devices live through a history; then both go on to the end."""
    engine = RecordingEngine(engine_info())
    orchestrator = Orchestrator(engine, window=window, sealed_run_ahead=run_ahead, step_tokens=room)
    await orchestrator.start()
    messages = [opening(limits=pb.Limits(max_tokens=LENGTH)), endless(LENGTH, prompt=OTHER)]
    pair = [SealedDevice(orchestrator, message, name=f"phone-{index}") for index, message in enumerate(messages)]
    try:
        for index, name, amount in history:
            await live_through(engine, orchestrator, pair[index], name, amount)
        for device in pair:
            for _ in range(1000):
                if device.finished is not None:
                    break
                await live_through(engine, orchestrator, device, "draft", 3)
                await live_through(engine, orchestrator, device, "read", 3)
        assert pair[0].settled == sealed_text(PROMPT, LENGTH)
        assert pair[1].settled == sealed_text(OTHER, LENGTH, ignore_eos=True)
        for device in pair:
            assert device.finished.usage.settled_tokens == len(device.settled)
    finally:
        await orchestrator.close()


@settings(max_examples=200)
@given(
    history=histories,
    run_ahead=st.sampled_from([0, 1, 4, 64]),
    window=st.integers(1, 10),
    room=st.sampled_from([2, 5, 100]),
)
def test_whatever_happens_each_position_is_the_devices_or_the_targets(history, run_ahead, window, room):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "MOMENT", 0.0)
        patch.setattr(supervisor_module, "MOST_RESTARTS", 1000)
        asyncio.run(play(history, run_ahead, window, room))
