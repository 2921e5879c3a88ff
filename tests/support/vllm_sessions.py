"""Sessions on a vLLM engine as a gateway would drive them, plain vLLM beside it, and what their processes cost."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgedraft_cloud.engines.base import Sampling, Step, Work
from edgedraft_cloud.engines.vllm import VllmEngine, launch

GREEDY = Sampling()


@dataclass
class Run:
    """What some sessions settled, and the steps that it took."""

    texts: list[list[int]]
    steps: list[Step] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Works whose drafts were not put before the target."""
        return sum(not outcome.judged for step in self.steps for outcome in step.outcomes)


async def run(
    engine: VllmEngine,
    prompts: Sequence[Sequence[int]],
    length: int,
    *,
    drafts: Sequence[Sequence[int]] | None = None,
    block: int = 4,
    wrong: float = 0.3,
    together: int | None = None,
    in_step: bool = False,
    sampling: Sequence[Sampling] | None = None,
    seed: int = 0,
) -> Run:
    """Let every session settle `length` tokens.

    Args:
        engine: Started.
        prompts: One a session.
        length: Tokens that each settles.
        drafts: Where each session's drafts come from: what it would settle anyway. None: no drafts.
        block: Drafts in a work.
        wrong: Share of works with one draft made wrong.
        together: How many of the sessions that could go are handed over in a batch, taken at random; None: all.
        in_step: Hand works over only when every session that goes on has one.
        sampling: One a session; None: greedy.
        seed: Of what is drawn here.
    """
    draws = random.Random(seed)
    names = [f"{seed}-{index}" for index in range(len(prompts))]
    result = Run([[] for _ in prompts])
    ready: set[int] = set()
    waiting = set(range(len(prompts)))
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        await engine.open(name, prompt, sampling[index] if sampling else GREEDY, "salt")
    batch = 0
    while waiting or ready:
        if ready and result.steps[-1].batch >= batch and not (in_step and waiting):
            going = sorted(ready) if together is None else draws.sample(sorted(ready), min(together, len(ready)))
            works = []
            for index in going:
                settled = len(result.texts[index])
                tokens = list(drafts[index][settled : settled + block]) if drafts else []
                if tokens and draws.random() < wrong:
                    tokens[draws.randrange(len(tokens))] = draws.randrange(engine.info.vocab_size)
                works.append(Work(names[index], tuple(tokens)))
            batch = engine.submit(works)
            ready -= set(going)
            waiting |= set(going)
        step = await engine.step()
        result.steps.append(step)
        for outcome in step.outcomes:
            assert outcome.error is None
            index = names.index(outcome.session)
            result.texts[index] += outcome.tokens
            waiting.discard(index)
            if len(result.texts[index]) < length:
                ready.add(index)
            else:
                engine.release(outcome.session)
    result.texts = [text[:length] for text in result.texts]
    return result


async def clear(engine: VllmEngine) -> None:
    """Release every session and take in the reports that are still to come."""
    for name in list(engine._names):
        engine.release(name)
    batch = engine.submit([])
    while (await engine.step()).batch < batch:
        pass


class PlainVllm:
    """The same vLLM with nothing of ours in it: its own scheduler, no drafts.

    Args:
        settings: As for the engine.
    """

    def __init__(self, settings: launch.Settings) -> None:
        self._settings = settings

    async def __aenter__(self) -> "PlainVllm":
        kept = launch._drafting
        launch._drafting = lambda settings: {}
        try:
            self._client = await asyncio.to_thread(launch.start, self._settings, threading.Event())
        finally:
            launch._drafting = kept
        return self

    async def __aexit__(self, *_: object) -> None:
        await launch.stop(self._client)

    async def decode(
        self, prompts: Sequence[Sequence[int]], length: int, sampling: Sequence[Sampling]
    ) -> list[list[int]]:
        """What vLLM writes after each prompt."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        texts: list[list[int]] = [[] for _ in prompts]
        for index, (prompt, choice) in enumerate(zip(prompts, sampling, strict=True)):
            params = SamplingParams(
                temperature=choice.temperature,
                top_p=choice.top_p,
                top_k=choice.top_k,
                seed=choice.seed,
                max_tokens=length,
                ignore_eos=True,
            )
            request = EngineCoreRequest(str(index), list(prompt), None, params, None, time.time(), None, None, None)
            await self._client.add_request_async(request)
        left = len(prompts)
        while left:
            for output in (await self._client.get_output_async()).outputs:
                texts[int(output.request_id)] += output.new_token_ids
                left -= output.finish_reason is not None
        return texts


def engine_processes() -> list[int]:
    """Process ids of vLLM engines among what this process started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            title = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid() and "EngineCore" in title:
            found.append(int(folder.name))
    return found


def wait_for_engine_processes(there: bool) -> None:
    """Wait until there are some, or none; they tell nobody when they come and go."""
    while bool(engine_processes()) != there:
        time.sleep(0.02)


def cpu_ticks(process: int) -> int:
    """Processor time that a process has used, in hundredths of a second.

    Left out are the threads of torch's message layer, which look for messages a hundred times a second, come what may.
    """
    ticks = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        name, _, rest = (thread / "stat").read_text().rpartition(")")
        if "gloo_tcp_loop" not in name:
            ticks += sum(map(int, rest.split()[11:13]))
    return ticks
