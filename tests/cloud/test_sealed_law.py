"""The law of sealed mode at the verifier: each position is as the device decides, or else as the target has it.

A real orchestrator over a scripted engine; link, engine and schedule are drawn at random.
"""

import asyncio
import time

import pytest
from devices import PROMPT, RecordingEngine, endless, engine_info, opening, turns
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed_device import SealedDevice, sealed_text

from edgedraft.errors import Overloaded, VerifierUnavailable
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


async def live_through(engine, orchestrator, device, name: str, amount: int) -> None:
    if device.finished is not None:
        return
    try:
        if device.handle is None:
            await device.connect()
        match name:
            case "draft":
                device.draft(amount)
            case "read":
                for _ in range(amount):
                    if device.finished is None:
                        await device.read()
            case "cut":
                await device.cut()
            case "die":
                engine.die()
            case "refuse":
                engine.refuse = Overloaded("for a moment", 1.0)
            case "forget":
                orchestrator.tidy(time.monotonic() + 61)
            case "turn":
                await turns(amount)
    except (VerifierUnavailable, Overloaded):
        if device.handle is not None:
            await device.cut()
        await turns()


@settings(max_examples=200)
@given(
    history=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["draft", "draft", "draft", "read", "read", "turn", "cut", "die", "refuse", "forget"]),
            st.integers(1, 8),
        ),
        max_size=60,
    ),
    run_ahead=st.sampled_from([0, 1, 4, 64]),
    window=st.integers(1, 10),
    room=st.sampled_from([2, 5, 100]),
)
def test_whatever_happens_each_position_is_the_devices_or_the_targets(history, run_ahead, window, room):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "MOMENT", 0.0)
        patch.setattr(supervisor_module, "MOST_RESTARTS", 1000)
        asyncio.run(play(history, run_ahead, window, room))
