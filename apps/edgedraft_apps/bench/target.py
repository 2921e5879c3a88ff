"""The verifier on vLLM beside plain vLLM, with a real target and the drafts of a real drafter: sameness and speed."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgedraft.client import Client
from edgedraft.events import Verified
from edgedraft.identity import Identity
from edgedraft.prompt import Mode, Prompt
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft_apps.bench.crowd import Crowd, Pace, ParkedSessions
from edgedraft_apps.bench.engine import engine_figures
from edgedraft_apps.bench.load import wait
from edgedraft_apps.bench.machine import ProcessUse
from edgedraft_apps.bench.measured import Samples
from edgedraft_apps.bench.plain_vllm import PlainSettings, PlainVllm, plain_vllm
from edgedraft_apps.bench.prompts import BenchPrompt
from edgedraft_apps.bench.record import choices_along
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import RunningVerifier, Suite
from edgedraft_apps.bench.trace_drafter import Material, RecordedMaterial, TraceCodec, TraceDrafter
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.engines.trace_file import Trace, TraceFile, TraceHeader

PARTS: Final = ("same", "speed", "engine")
CONTEXT: Final = 1024
GOALS: Final = {1: 1.8, 4: 1.8, 8: 1.3}
"""Sessions, and how much faster they shall be than plain decoding, at the acceptance rate below."""
ALPHA: Final = 0.8
CUT_SECONDS: Final = 2.0
WARM_UP: Final = 2.0
_PLAIN: Final = "plain"
_AT_ONCE: Final = 0.001
"""Seconds for a draft that is only replayed: what is measured is the verifier, not a drafter."""


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """A real pair and what to ask it.

    Attributes:
        hf: Folder of the target's safetensors.
        drafter: Artifact folder of the drafter.
        prompts: What to ask.
        tokens: Tokens of an answer.
        draft_seconds: Time of a step of each device's drafter where that is a case of its own.
    """

    hf: Path
    drafter: Path
    prompts: Sequence[BenchPrompt]
    tokens: int = 128
    draft_seconds: float = 0.01


async def target_figures(suite: Suite, settings: TargetSettings, parts: Collection[str] = PARTS) -> list[Row]:
    """Rows of sameness, of speed, and of the engine by itself.

    Args:
        suite: The surroundings.
        settings: The pair, and what to ask it.
        parts: Which of `PARTS`.

    Raises:
        EdgedraftError: vLLM is not there, or failed.
    """
    codec = TextCodec.load(settings.drafter)
    prompts = [codec.encode_chat(Prompt.of(prompt.text).as_dicts()) for prompt in settings.prompts]
    rows = await engine_figures(suite, str(settings.hf), prompts, settings.tokens) if "engine" in parts else []
    if not {"same", "speed"} & set(parts):
        return rows
    plain_settings = PlainSettings(str(settings.hf), prompts, settings.tokens, max(GOALS), CONTEXT)
    async with plain_vllm(plain_settings, suite.folder) as plain:
        answers = []
        for number in range(len(prompts)):
            suite.progress("plain vLLM", number, len(prompts), "prompts")
            answers += (await plain.wave([number])).answers
        suite.progress("draft", 0, 1, "")
        traces = await asyncio.to_thread(trace_along, settings.drafter, codec, prompts, answers)
        rows += await _speed(suite, settings, traces, plain) if "speed" in parts else []
    return rows + (await _sameness(suite, settings, traces) if "same" in parts else [])


def trace_along(
    folder: Path, codec: TextCodec, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> TraceFile:
    """What the drafter says along vLLM's own answers."""
    drafter = CompiledModel.load(folder)
    name = f"{drafter.manifest.model} {drafter.manifest.quantization}"
    header = TraceHeader(
        target="vLLM",
        target_fingerprint="",
        drafter=name,
        drafter_fingerprint=drafter.manifest.model_fingerprint,
        tokenizer_fingerprint=codec.fingerprint,
        vocab_size=drafter.config.vocab_size,
        context_length=CONTEXT,
        eos_token_ids=codec.eos_token_ids,
        max_tokens=max(map(len, answers)),
        machine="",
    )
    traces = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        traces[tuple(prompt)] = Trace(tuple(prompt), tuple(answer), *choices_along(drafter, prompt, answer))
    return TraceFile(header, traces)


# ------------------------------------------------------------ the same tokens


async def _sameness(suite: Suite, settings: TargetSettings, traces: TraceFile) -> list[Row]:
    """Answers of many sessions at once, under all kinds of stress, against plain vLLM's."""
    material = RecordedMaterial(traces)
    rows = []

    async def compare(case: str, verifier: RunningVerifier, sessions: int, pace: Callable[[float], None]) -> None:
        suite.progress(f"same tokens: {case}", 0, 1, "")
        devices = suite.devices("same", sessions)
        same = await _same(verifier.address, devices, material, settings, pace)
        rows.append(Row.exactly("answers identical to plain vLLM", case, same, len(material.traces)))

    def steady(seconds: float) -> None:
        time.sleep(seconds)

    draws = random.Random(0)

    def late(seconds: float) -> None:
        # Now far faster and now far slower than the cloud.
        time.sleep(seconds * draws.choice((0.1, 1, 5, 20)))

    plenty = ("--max-sessions", "16", "--context", str(CONTEXT), "--kv-tokens", "16384")
    async with suite.verifier("vllm", str(settings.hf), *plenty) as verifier:
        for sessions in (1, 16) if suite.quick else (1, 4, 16):
            await compare(f"{sessions} sessions", verifier, sessions, steady)
        await compare("8 sessions, the cloud ahead, drafts late at random", verifier, 8, late)
        host, _, port = verifier.address.rpartition(":")
        async with WanProxy(host, int(port)) as proxy:
            cutting = asyncio.create_task(_cut(proxy))
            try:
                link = RunningVerifier(f"localhost:{proxy.port}", verifier.pid)
                await compare(f"4 sessions, links cut every {CUT_SECONDS:g} s", link, 4, steady)
            finally:
                cutting.cancel()
                await asyncio.wait([cutting])
        rows += await _parked_cpu(suite, verifier, material)
    scarce = ("--max-sessions", "16", "--context", str(CONTEXT), "--kv-tokens", str(CONTEXT + 256))
    async with suite.verifier("vllm", str(settings.hf), *scarce) as verifier:
        await compare("16 sessions, KV for a few (preemption, eviction)", verifier, 16, steady)
    return rows


async def _same(
    address: str,
    devices: Sequence[Identity],
    material: RecordedMaterial,
    settings: TargetSettings,
    pace: Callable[[float], None],
) -> int:
    """How many of the recorded answers come out token for token, asked by so many devices at once."""
    waiting = list(range(len(material.traces)))
    same = 0

    async def device(identity: Identity) -> None:
        nonlocal same
        drafter = TraceDrafter(material, settings.draft_seconds, pace)
        transport = GrpcTransport(address, identity)
        async with Client(drafter, verifier=transport, mode=Mode.OPEN, codec=TraceCodec(material)) as client:
            while waiting:
                number = waiting.pop(0)
                trace = material.traces[number]
                sampling = SamplingParams(len(trace.tokens), ignore_eos=True)
                tokens: list[int] = []
                async for event in client.generate(Prompt(raw=str(number)), sampling):
                    if isinstance(event, Verified):
                        tokens += event.tokens
                same += tuple(tokens) == trace.tokens

    await asyncio.gather(*map(device, devices))
    return same


async def _cut(proxy: WanProxy) -> None:
    while True:
        await asyncio.sleep(CUT_SECONDS)
        await proxy.cut()


async def _parked_cpu(suite: Suite, verifier: RunningVerifier, material: Material) -> list[Row]:
    """CPU time of all of the verifier's processes while sessions are open that have nothing to do."""
    sessions, seconds = 8, suite.seconds(20)
    (sleeper,) = suite.devices("sleeper", 1)
    suite.progress("let sessions come to rest", 0, 1, "")
    async with ParkedSessions(verifier.address, sleeper, material, sessions) as parked:
        await parked.rest()
        before = ProcessUse.of_tree(verifier.pid)
        await wait("parked sessions", seconds, suite.progress)
        used = ProcessUse.of_tree(verifier.pid).cpu_seconds - before.cpu_seconds
    return [Row.at_most("CPU share of the verifier", f"{sessions} parked sessions, nothing else", used / seconds, 0.01)]


# ------------------------------------------------------------ speed


async def _speed(suite: Suite, settings: TargetSettings, traces: TraceFile, plain: PlainVllm) -> list[Row]:
    """Tokens a second against plain decoding, with the drafts as recorded and with fewer errors.

    Both targets are loaded all the time and take turns, so that whatever else the machine does meets both.
    """
    flags = ("--max-sessions", "16", "--context", str(CONTEXT), "--kv-tokens", "16384")
    recorded, drawn = traces.acceptance_rate, RecordedMaterial(traces, ALPHA)
    goal_case = f"errors taken out or put in at random to α {ALPHA:g}"
    at_once, paced = (Pace(seconds, settings.tokens, ignore_eos=True) for seconds in (_AT_ONCE, settings.draft_seconds))
    cases = {
        f"drafts as recorded, α {recorded:.2f}": (RecordedMaterial(traces), at_once),
        goal_case: (drawn, at_once),
        f"{goal_case}, a draft every {settings.draft_seconds * 1000:g} ms": (drawn, paced),
    }
    rows = []
    async with suite.verifier("vllm", str(settings.hf), *flags) as verifier:
        for sessions, goal in GOALS.items():
            rates: dict[str, list[float]] = {case: [] for case in (_PLAIN, *cases)}
            beside: dict[str, list[float]] = {case: [] for case in cases}
            for turn in range(1 if suite.quick else 4):
                suite.progress(f"{sessions} sessions, plain, turn {turn + 1}", 0, 1, "")
                rates[_PLAIN].append(await plain.rate(sessions, 1, len(traces.traces)))
                for case, (material, pace) in cases.items():
                    what, before = f"{sessions} sessions, {case}, turn {turn + 1}", _cpu_beside(verifier)
                    rates[case].append(await settled_rate(suite, verifier, material, pace, sessions, what, 10.0))
                    beside[case].append((_cpu_beside(verifier) - before) / (WARM_UP + 10.0))
            base = statistics.mean(rates.pop(_PLAIN))
            rows.append(Row("tokens/s of plain vLLM", f"{sessions} sessions", base, "1/s"))
            for case, found in rates.items():
                ratio = statistics.mean(found) / base
                metric, named = "tokens/s over plain vLLM's", f"{sessions} sessions, {case}"
                rows.append(
                    Row.at_least(metric, named, ratio, goal, "×")
                    if case == goal_case
                    else Row(metric, named, ratio, "×")
                )
                rows.append(Row("cores that devices and gateway take", named, statistics.mean(beside[case])))
    return rows


def _cpu_beside(verifier: RunningVerifier) -> float:
    """CPU seconds so far of what plain vLLM has no need of: devices and gateway, on the engine's cores here."""
    return ProcessUse.of(os.getpid()).cpu_seconds + ProcessUse.of(verifier.pid).cpu_seconds


async def settled_rate(
    suite: Suite,
    verifier: RunningVerifier,
    material: Material,
    pace: Pace,
    sessions: int,
    case: str,
    seconds: float,
) -> float:
    """Tokens a second that a verifier settles for so many sessions, each on a device of its own."""
    samples = Samples()
    async with AsyncExitStack() as stack:
        crowd = Crowd(verifier.address, suite.devices("speed", sessions), material, pace, samples)
        await stack.enter_async_context(crowd)
        await crowd.connect()
        crowd.start(sessions)
        await wait(f"warm up: {case}", WARM_UP, suite.progress)
        start = time.monotonic()
        await wait(case, seconds, suite.progress)
        end = time.monotonic()
    return sum(sample.settled for sample in samples.between(start, end)) / (end - start)
