"""The gateway's own figures, on the trace engine: cost, fairness, isolation, and many sessions that do nothing."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from edgedraft_apps.bench.crowd import Crowd, Pace, ParkedSessions, jain_index, percentile
from edgedraft_apps.bench.echo import echo_cost
from edgedraft_apps.bench.load import wait
from edgedraft_apps.bench.machine import ProcessUse
from edgedraft_apps.bench.measured import LoopLag, Samples
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import RunningVerifier, Suite
from edgedraft_apps.bench.trace_drafter import AnyMaterial
from edgedraft_cloud.engines.trace import ANY_PROMPT

ALPHA: Final = 0.8
_MEGA: Final = 2**20
_FLOOD: Final = 40
_CALM: Final = 8
_COMPANY: Final = 24


async def gateway_cost(suite: Suite) -> list[Row]:
    """CPU time of the verifier's process over the blocks that it handled, 256 sessions, each a device of its own."""
    sessions, samples = 256, Samples()
    # A block a session and step, and no other work: half a second for four tokens keeps the load tool off the limit.
    pace = Pace(draft_seconds=0.12, max_tokens=4096)
    flags = ("--max-sessions", str(sessions), "--run-ahead", "0", "--tenants", str(suite.tenants()))
    async with suite.verifier("trace", ANY_PROMPT, "--verify-ms", "500", *flags) as verifier:
        crowd = Crowd(verifier.address, suite.devices("a", sessions), AnyMaterial(ALPHA), pace, samples)
        async with crowd:
            await _begin(suite, crowd, sessions)
            start, before = time.monotonic(), ProcessUse.of(verifier.pid)
            await wait("gateway cost", suite.seconds(30), suite.progress)
            end, after = time.monotonic(), ProcessUse.of(verifier.pid)
    blocks = samples.blocks_between(start, end)
    verdicts = len(samples.between(start, end))
    used = (after.cpu_seconds - before.cpu_seconds) * 1000
    alone = await echo_cost(suite, sessions, max(1, blocks) / (end - start), suite.seconds(15)) * 1000
    case = (
        f"{sessions} sessions, {blocks / (end - start):.0f} blocks and {verdicts / (end - start):.0f} verdicts a second"
    )
    return [
        Row.at_most("gateway CPU a block", case, used / max(1, blocks), 0.5, "ms"),
        Row("gateway CPU a verdict", case, used / max(1, verdicts), "ms"),
        Row("CPU of gRPC and TLS alone, an echo of a frame", f"{sessions} streams, as many frames", alone, "ms"),
        Row.exactly("errors", case, crowd.errors.total() + crowd.refused, 0),
    ]


async def fairness(suite: Suite) -> list[Row]:
    """Two tenants that both always want more than there is, one with 20 times the sessions."""
    rows = []
    for weight in (1.0, 3.0):
        samples, sessions = Samples(), {"few": 8, "many": 160}
        # A step holds 24 rows and there are ten a second; eight sessions alone draft more than three quarters of that.
        flags = ("--max-sessions", "256", "--step-tokens", "24", "--run-ahead", "0", "--verify-ms", "100")
        tenants = ("--tenants", str(suite.tenants(few=weight, many=1.0)))
        async with suite.verifier("trace", ANY_PROMPT, *flags, *tenants) as verifier, AsyncExitStack() as stack:
            for name, count in sessions.items():
                pace = Pace(draft_seconds=0.001, max_tokens=4096)
                crowd = Crowd(verifier.address, suite.devices(name, 8), AnyMaterial(ALPHA), pace, samples)
                await stack.enter_async_context(crowd)
                await _begin(suite, crowd, count)
            start = time.monotonic()
            await wait(f"fairness {weight:g}:1", suite.seconds(60), suite.progress)
            end = time.monotonic()
        few, many = (sum(s.settled for s in samples.between(start, end, name)) for name in sessions)
        case = f"weights {weight:g}:1, 8 against 160 sessions"
        rows += [
            Row.at_least("Jain index of verified tokens over weights", case, jain_index([few / weight, many]), 0.99),
            Row.at_most("error of the ratio of verified tokens", case, abs(few / max(1, many) / weight - 1), 0.05),
            Row("verified tokens/s", f"{case}: few", few / (end - start), "1/s"),
            Row("verified tokens/s", f"{case}: many", many / (end - start), "1/s"),
        ]
    return rows


async def isolation(suite: Suite) -> list[Row]:
    """What one tenant does to another's verdict times: windows with and without it take turns in one run."""
    rows = await _isolation(suite, f"a flood of {_FLOOD} sessions", "")
    return rows + await _isolation(
        suite, f"{_FLOOD} devices that hit the limits", "max_sessions = 4\ntokens_per_minute = 600\n"
    )


async def _isolation(suite: Suite, what: str, limits: str) -> list[Row]:
    window, turns = (4.0, 2) if suite.quick else (20.0, 4)
    samples, lag = Samples(), LoopLag()
    quiet: list[float] = []
    loud: list[float] = []
    delays: list[float] = []
    file = suite.tenants(calm=1.0)
    with file.open("a", encoding="utf-8") as text:
        text.write(f"[tenants.flood]\n{limits or 'max_sessions = 4096'}\n")
    # Flat: rows of others cost a step nothing, so what shows is the queue. The calm one asks for less than its share,
    # and usual company keeps one step following another in all windows: where the engine rests between them, a block
    # is lucky that meets no step under way. Steps are long, so that what this machine needs for devices and verifier
    # together hardly shows beside them, and no multiple of what a device takes for a block.
    flags = ("--max-sessions", "256", "--verify-ms", "400", "--step-tokens", "192", "--run-ahead", "0")
    async with (
        suite.verifier("trace", ANY_PROMPT, *flags, "--tenants", str(file)) as verifier,
        AsyncExitStack() as stack,
    ):
        usual = Pace(draft_seconds=0.07, max_tokens=4096)
        calm, company, flood = (
            Crowd(verifier.address, suite.devices(name, devices), AnyMaterial(ALPHA), pace, samples)
            for name, devices, pace in (("calm", _CALM, usual), ("company", 8, usual), ("flood", 8, Pace(0.02, 4096)))
        )
        for entered in (calm, company, flood, lag):
            await stack.enter_async_context(entered)
        await _begin(suite, company, _COMPANY)
        await _begin(suite, calm, _CALM)
        await flood.connect()
        for turn in range(2 * turns):
            if turn % 2:
                flood.start(_FLOOD)
            await asyncio.sleep(3.0)  # the change itself is no part of either
            start = time.monotonic()
            await wait(f"{what}, window {turn + 1} of {2 * turns}", window, suite.progress)
            end = time.monotonic()
            waits = [wait for sample in samples.between(start, end, "calm") for wait in sample.waits]
            (loud if turn % 2 else quiet).extend(waits)
            if turn % 2:
                delays.extend(lag.between(start, end))
            await flood.stop()
    without, under, own = (percentile(values, 0.99) for values in (quiet, loud, delays))
    case = f"{_CALM} sessions beside {what}"
    return [
        Row.at_most("growth of p99 verdict time", case, under / without - 1, 0.10),
        Row("p99 verdict time", f"{_CALM} sessions in usual company", without * 1000, "ms"),
        Row("p99 verdict time", case, under * 1000, "ms"),
        Row("delay of the load tool itself p99", case, own * 1000, "ms"),
        Row("sessions refused", case, flood.refused),
    ]


async def parked(suite: Suite) -> list[Row]:
    """A thousand sessions that do nothing beside a hundred that work: errors, memory, and what parking costs."""
    resting, active, samples = 1000, 100, Samples()
    flags = ("--max-sessions", str(resting + active), "--run-ahead", "0", "--tenants", str(suite.tenants()))
    material, pace = AnyMaterial(ALPHA), Pace(draft_seconds=0.12, max_tokens=128)
    async with suite.verifier("trace", ANY_PROMPT, "--verify-ms", "500", *flags) as verifier:
        (sleeper,) = suite.devices("sleeper", 1)
        async with (
            ParkedSessions(verifier.address, sleeper, material, resting) as rest,
            Crowd(verifier.address, suite.devices("a", active), material, pace, samples) as crowd,
        ):
            before = ProcessUse.of(verifier.pid)
            asleep = time.monotonic()
            await wait("only parked sessions", suite.seconds(10), suite.progress)
            idle = (ProcessUse.of(verifier.pid).cpu_seconds - before.cpu_seconds) / (time.monotonic() - asleep)
            await _begin(suite, crowd, active, suite.seconds(20))
            start = time.monotonic()
            memory = await _memory(suite, verifier, suite.seconds(60))
            tokens = sum(sample.settled for sample in samples.between(start, time.monotonic()))
    case = f"{resting} parked and {active} active streams, {suite.seconds(60):.0f} s"
    third = max(1, len(memory) // 3)
    early, late = (statistics.median(part) for part in (memory[:third], memory[-third:]))
    return [
        Row.exactly("errors", case, crowd.errors.total() + crowd.refused + rest.errors.total(), 0),
        Row.at_most("growth of memory", case, late / early - 1, 0.02),
        Row("memory", case, late / _MEGA, "MiB"),
        Row("settled tokens/s", case, tokens / suite.seconds(60), "1/s"),
        Row("CPU share of the process", f"{resting} parked streams alone", idle),
    ]


async def _begin(suite: Suite, crowd: Crowd, sessions: int, warm_up: float = 5.0) -> None:
    suite.progress("connect", 0, 1, "")
    await crowd.connect()
    crowd.start(sessions)
    await wait("warm up", warm_up, suite.progress)


async def _memory(suite: Suite, verifier: RunningVerifier, seconds: float) -> Sequence[int]:
    """Resident memory of the verifier, once a second."""
    found = []
    for second in range(round(seconds)):
        suite.progress("parked and active", second, round(seconds), "seconds")
        found.append(ProcessUse.of(verifier.pid).rss)
        await asyncio.sleep(1.0)
    return found
