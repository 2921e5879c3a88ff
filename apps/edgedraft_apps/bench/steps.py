"""What the verifier's steps are made of, on the trace engine: drafts in a full house, no pause in an empty one."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
from dataclasses import dataclass
from typing import Final, Self

from edgedraft_apps.bench.crowd import Crowd, Pace
from edgedraft_apps.bench.load import wait
from edgedraft_apps.bench.measured import Samples
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import Suite
from edgedraft_apps.bench.trace_drafter import AnyMaterial
from edgedraft_cloud.engines.trace import ANY_PROMPT

_ALPHA: Final = 0.8
_DRAFTING: Final = {"kind": "drafting"}


async def steps(suite: Suite) -> list[Row]:
    """More sessions with drafts than a step has room for; then a few whose drafts are rare."""
    full = await _observe(suite, 64, Pace(0.001, 4096), "--step-tokens", "24", "--verify-ms", "100")
    empty = await _observe(suite, 4, Pace(1.0, 4096), "--verify-ms", "50", "--run-ahead", "1024")
    full_case, empty_case = "64 sessions with drafts, room for 24 rows", "4 sessions, a draft a second, run-ahead on"
    return [
        Row.exactly("steps without drafts", full_case, full.without_drafts, 0),
        Row("steps", full_case, full.steps),
        Row.at_most("share of time without a step", empty_case, 1 - empty.seconds / empty.wall, 0.1),
        Row("steps", empty_case, empty.steps),
    ]


@dataclass(frozen=True, slots=True)
class _Counters:
    """The verifier's own counts, or what was added to them in a while."""

    wall: float
    steps: float
    seconds: float
    without_drafts: float

    @classmethod
    async def read(cls, port: int) -> Self:
        # Only here: a device has neither verifier nor metrics.
        from prometheus_client.parser import text_string_to_metric_families

        url = f"http://localhost:{port}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

        def value(name: str, **labels: str) -> float:
            return next(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

        return cls(
            time.monotonic(),
            value("edgedraft_step_seconds_count"),
            value("edgedraft_step_seconds_sum"),
            value("edgedraft_step_sessions_bucket", le="0.0", **_DRAFTING),
        )

    def since(self, other: Self) -> Self:
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return type(self)(*(new - old for new, old in pairs))


async def _observe(suite: Suite, sessions: int, pace: Pace, *flags: str) -> _Counters:
    port = _free_port()
    flags = ("--metrics-port", str(port), "--max-sessions", "256", "--tenants", str(suite.tenants()), *flags)
    async with suite.verifier("trace", ANY_PROMPT, *flags) as verifier:
        devices = suite.devices("a", min(sessions, 16))
        async with Crowd(verifier.address, devices, AnyMaterial(_ALPHA), pace, Samples()) as crowd:
            await crowd.connect()
            crowd.start(sessions)
            await wait("warm up", 5.0, suite.progress)
            before = await _Counters.read(port)
            await wait(f"steps of {sessions} sessions", suite.seconds(30), suite.progress)
            return (await _Counters.read(port)).since(before)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
