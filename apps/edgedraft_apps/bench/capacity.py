"""How many clients one target serves at the same time between tokens: devices draft, a model beside it, or nobody.

The prediction beside it: with the drafter on the devices the target's machine is free of γ steps of the drafter a step
of its own, so (1 + γ·T_draft/T_verify) times the clients fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.prompt import Prompt
from edgedraft.text import TextCodec
from edgedraft_apps.bench.crowd import Pace
from edgedraft_apps.bench.plain_vllm import PlainSettings, plain_vllm
from edgedraft_apps.bench.prompts import BenchPrompt
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import Suite
from edgedraft_apps.bench.target import settled_rate, trace_along
from edgedraft_apps.bench.trace_drafter import RecordedMaterial

CONTEXT: Final = 1024
GOAL: Final = 1.5


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """A real pair, what to ask it, and how.

    Attributes:
        target: Folder of the target's safetensors.
        beside: Folder of the drafter's safetensors, to draft beside the target.
        drafter: Artifact folder of the drafter, as it runs on devices.
        prompts: What to ask.
        tokens: Tokens of an answer.
        draft_seconds: Time of a step of each device's drafter.
        gamma: Draft tokens a step of the draft model beside the target.
        clients: Numbers of clients to measure with, ascending; where devices draft, twice the last too.

    Raises:
        InvalidInput: A value is out of range.
    """

    target: Path
    beside: Path
    drafter: Path
    prompts: Sequence[BenchPrompt]
    tokens: int
    draft_seconds: float
    gamma: int
    clients: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= 16:
            raise InvalidInput("gamma", f"is {self.gamma}", "use 1 to 16")
        if self.tokens < 2:
            raise InvalidInput("tokens", f"is {self.tokens}", "use at least 2")
        if not self.clients or self.clients[0] < 1 or list(self.clients) != sorted(set(self.clients)):
            raise InvalidInput("clients", f"are {self.clients}", "use ascending numbers from 1 on, e.g. 1,2,4,8")


@dataclass(frozen=True, slots=True)
class _Plain:
    """What plain vLLM said to each prompt, its tokens a second by clients, and how often its draft model was right."""

    answers: list[list[int]]
    rates: dict[int, float]
    accepted: float | None


async def capacity_figures(suite: Suite, settings: CapacitySettings) -> list[Row]:
    """Measure the three and compare.

    Raises:
        EdgedraftError: vLLM is not there, or failed.
    """
    codec = TextCodec.load(settings.drafter)
    prompts = [codec.encode_chat(Prompt.of(prompt.text).as_dicts()) for prompt in settings.prompts]
    own = {"method": "draft_model", "model": str(settings.beside), "num_speculative_tokens": settings.gamma}

    async def plain(what: str, model: Path, speculative: Mapping[str, object] | None) -> _Plain:
        suite.progress(what, 0, 1, "")
        waves, most = 1 if suite.quick else 3, settings.clients[-1]
        asked = PlainSettings(str(model), prompts, settings.tokens, most, CONTEXT, speculative)
        async with plain_vllm(asked, suite.folder) as running:
            first = [await running.wave([number]) for number in range(len(prompts))]
            rates = {clients: await running.rate(clients, waves, len(prompts)) for clients in settings.clients}
        return _Plain([ids for wave in first for ids in wave.answers], rates, first[-1].accepted)

    alone = await plain("the target alone", settings.target, None)
    draft = await plain("the draft model alone", settings.beside, None)
    beside = await plain("the target with a draft model beside it", settings.target, own)
    suite.progress("draft", 0, 1, "")
    traces = await asyncio.to_thread(trace_along, settings.drafter, codec, prompts, alone.answers)
    edge: dict[int, float] = {}
    # Twice as many as beside a draft model, to see where they come to the same time.
    numbers = (*settings.clients, 2 * settings.clients[-1])
    flags = ("--max-sessions", str(numbers[-1]), "--context", str(CONTEXT), "--run-ahead", "0")
    pace = Pace(settings.draft_seconds, settings.tokens, ignore_eos=True)
    async with suite.verifier("vllm", str(settings.target), *flags) as verifier:
        for clients in numbers:
            case = f"{clients} clients whose devices draft"
            edge[clients] = await settled_rate(
                suite, verifier, RecordedMaterial(traces), pace, clients, case, suite.seconds(60)
            )
    systems = {"plain decoding": alone.rates, "draft model beside the target": beside.rates, "devices draft": edge}
    rows = [
        Row("time between a client's tokens", f"{name}, {clients} clients", clients / rate * 1000, "ms")
        for name, rates in systems.items()
        for clients, rate in rates.items()
    ]
    for clients in settings.clients:
        seconds = clients / beside.rates[clients]
        case = f"time of {clients} clients of the draft model beside the target"
        held = clients_within(edge, seconds)
        rows.append(Row.at_least("clients over those of the draft model beside", case, held / clients, GOAL, "×"))
        if plain_clients := clients_within(alone.rates, seconds):
            rows.append(Row("clients over those of plain decoding", case, held / plain_clients, "×"))
    t_draft, t_verify = 1 / draft.rates[settings.clients[0]], 1 / alone.rates[settings.clients[0]]
    return [
        *rows,
        Row("γ", "draft model beside the target", settings.gamma),
        Row("T_draft", f"draft model, {settings.clients[0]} clients", t_draft * 1000, "ms"),
        Row("T_verify", f"a step of the target, {settings.clients[0]} clients", t_verify * 1000, "ms"),
        Row("predicted clients, 1 + γ·T_draft/T_verify", "", 1 + settings.gamma * t_draft / t_verify, "×"),
        Row("acceptance rate α", "4-bit drafter along the target's answers", traces.acceptance_rate),
        Row("accepted of the drafted", "draft model beside the target", beside.accepted or 0.0),
    ]


def clients_within(rates: Mapping[int, float], seconds: float) -> float:
    """Clients that get a token in this time each, interpolated between those that were measured.

    Args:
        rates: Tokens a second, all clients together, by their number; ascending.
        seconds: Time between a client's tokens.

    Returns:
        0 where not even the smallest number keeps it; the largest that was measured where all do, which may be fewer
        than it could be.
    """
    points = [(clients, clients / rate) for clients, rate in rates.items()]
    held = 0.0
    for index, (clients, time) in enumerate(points):
        if time <= seconds:
            held = max(held, float(clients))
        elif index and points[index - 1][1] <= seconds:
            before, start = points[index - 1]
            held = max(held, before + (clients - before) * (seconds - start) / (time - start))
    return held
