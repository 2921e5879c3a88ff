"""What two devices may live through at an orchestrator, drawn at random: drafts, reads, cuts, deaths, refusals."""

import time

from devices import turns
from hypothesis import strategies as st

from edgedraft.errors import Overloaded, VerifierUnavailable

histories = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["draft", "draft", "draft", "read", "read", "turn", "cut", "die", "refuse", "forget"]),
        st.integers(1, 8),
    ),
    max_size=60,
)
"""Which device, what happens to it, and how much of that."""


async def live_through(engine, orchestrator, device, name: str, amount: int) -> None:
    """Let one thing happen to a device; one that was refused or lost its verifier is cut off."""
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
