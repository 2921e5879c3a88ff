"""The vLLM engine by itself: all blocks in one step, the same tokens whatever KV is lost, and the same draws."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.plain_vllm import PlainSettings, plain_vllm
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import Suite
from edgedraft_cloud.engines.base import Engine, Sampling, Step, Work
from edgedraft_cloud.engines.vllm.engine import VllmEngine

SESSIONS: Final = 16
CONTEXT: Final = 512
_BLOCK: Final = 5
_TOP_K: Final = 4
_DRAWN: Final = 3
"""Tokens of each of the texts that are drawn."""
_RARE: Final = 10
"""Cells of fewer counts are left out of the test, which does not hold for them (Cochran 1954, Biometrics 10(4))."""


async def engine_figures(suite: Suite, model: str, prompts: Sequence[Sequence[int]], tokens: int) -> list[Row]:
    """Rows about one engine, beside plain vLLM.

    Args:
        suite: The surroundings.
        model: Folder of safetensors.
        prompts: Token ids; the first of `SESSIONS` that are short enough are taken.
        tokens: Of each answer.

    Raises:
        EdgedraftError: vLLM is not there, or failed.
        InvalidInput: SciPy is not there, or there are too few prompts.
    """
    chosen = [list(prompt) for prompt in prompts if len(prompt) + tokens < CONTEXT][:SESSIONS]
    if len(chosen) < SESSIONS:
        raise InvalidInput("prompts", f"has {len(chosen)} that fit, {SESSIONS} are needed", "pass more short ones")
    draws = 80 if suite.quick else 480
    settings = PlainSettings(model, chosen, tokens, SESSIONS, CONTEXT)
    suite.progress("plain vLLM", 0, 1, "")
    async with plain_vllm(settings, suite.folder) as plain:
        answers = (await plain.wave(range(SESSIONS))).answers
    drawing = replace(settings, prompts=chosen[:1], tokens=_DRAWN, most=40, temperature=1.0, top_k=_TOP_K)
    async with plain_vllm(drawing, suite.folder) as plain:
        theirs = [text for _ in range(draws // 40) for text in (await plain.wave([0] * 40)).answers]
    limits = {"context": CONTEXT, "max_sessions": 48, "max_block": _BLOCK}
    roomy = VllmEngine(model, kv_tokens=SESSIONS * CONTEXT, **limits)
    suite.progress("engine", 0, 1, "")
    await roomy.start()
    try:
        together = await _run(roomy, chosen, answers, wrong=0.0)
        ours: list[list[int]] = []
        for start in range(0, draws, 40):
            suite.progress("draws", start, draws, "texts")
            drafts = [_likely(theirs, start + index) for index in range(40)]
            chance = Sampling(temperature=1.0, top_k=_TOP_K)
            ours += (await _run(roomy, chosen[:1] * 40, drafts, wrong=0.1, sampling=chance, salt=str(start))).texts
    finally:
        await roomy.close()
    # Little more KV than one context needs: with many at work at once, vLLM must take it from one for another.
    scarce = VllmEngine(model, kv_tokens=CONTEXT + 64, **limits)
    suite.progress("engine, little KV", 0, 1, "")
    await scarce.start()
    try:
        robbed = await _run(scarce, chosen, answers, wrong=0.3)
    finally:
        await scarce.close()
    case = f"{SESSIONS} sessions"
    return [
        Row.exactly("sessions in one engine step when all have a block", case, together.most_in_a_step, SESSIONS),
        Row.exactly("answers identical to plain vLLM", f"{case}, all in each step", together.same(answers), SESSIONS),
        Row.exactly("answers identical to plain vLLM", f"{case}, KV for one or two", robbed.same(answers), SESSIONS),
        Row("times that KV was taken from a session", f"{case}, KV for one or two", robbed.evicted),
        *(
            Row.at_least("p of chi-square against plain vLLM's draws", f"temperature 1, {what}", p, 1e-3)
            for what, p in _same_distribution(ours, theirs)
        ),
    ]


@dataclass(slots=True)
class _Run:
    texts: list[list[int]]
    steps: list[Step] = field(default_factory=list)

    @property
    def most_in_a_step(self) -> int:
        return max(sum(outcome.judged > 0 for outcome in step.outcomes) for step in self.steps)

    @property
    def evicted(self) -> int:
        return sum(step.evicted for step in self.steps)

    def same(self, answers: Sequence[Sequence[int]]) -> int:
        return sum(text == list(answer) for text, answer in zip(self.texts, answers, strict=True))


async def _run(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    drafts: Sequence[Sequence[int]],
    *,
    wrong: float,
    sampling: Sampling = Sampling(),  # noqa: B008  it is frozen
    salt: str = "",
) -> _Run:
    """Let sessions settle as many tokens as there are drafts for each, a share of the blocks with a wrong one."""
    draws = random.Random(salt)
    names = [f"bench-{salt}-{index}" for index in range(len(prompts))]
    run = _Run([[] for _ in prompts])
    for name, prompt in zip(names, prompts, strict=True):
        await engine.open(name, prompt, sampling, f"bench{salt}")
    waiting, ready = set(range(len(names))), set[int]()
    while waiting or ready:
        if not waiting:
            works = []
            for index in sorted(ready):
                settled = len(run.texts[index])
                block = list(drafts[index][settled : settled + _BLOCK])
                if draws.random() < wrong:
                    block[draws.randrange(len(block))] = draws.randrange(engine.info.vocab_size)
                works.append(Work(names[index], tuple(block)))
            engine.submit(works)
            waiting, ready = ready, set()
        step = await engine.step()
        run.steps.append(step)
        for outcome in step.outcomes:
            if outcome.error is not None:
                raise outcome.error
            index = names.index(outcome.session)
            run.texts[index] += outcome.tokens
            waiting.discard(index)
            if len(run.texts[index]) < len(drafts[index]):
                ready.add(index)
            else:
                engine.release(outcome.session)
    run.texts = [text[: len(draft)] for text, draft in zip(run.texts, drafts, strict=True)]
    return run


def _likely(texts: Sequence[Sequence[int]], number: int) -> list[int]:
    """A draft of tokens that are often drawn, so that both accepting and refusing matter."""
    common = [[token for token, _ in Counter(text[i] for text in texts).most_common(_TOP_K)] for i in range(_DRAWN)]
    return [tokens[(number // _TOP_K**place) % len(tokens)] for place, tokens in enumerate(common)]


def _same_distribution(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> list[tuple[str, float]]:
    try:
        from scipy.stats import chi2_contingency
    except ImportError as error:
        raise InvalidInput("scipy", "is not installed", "run `pip install 'edgedraft[bench]'`") from error
    found = []
    for what, cut in (("token 1", slice(0, 1)), ("token 2", slice(1, 2)), ("tokens 1 and 2", slice(0, 2))):
        mine, other = (Counter(tuple(text[cut]) for text in texts) for texts in (ours, theirs))
        cells = [cell for cell in mine | other if mine[cell] + other[cell] >= _RARE]
        table = [[counts[cell] for cell in cells] for counts in (mine, other)]
        found.append((what, float(chi2_contingency(table).pvalue) if len(cells) > 1 else 1.0))
    return found
