"""The embedded engine on real weights: steps, sharing, limits of its memory, sleep and death."""

import asyncio
import threading
from functools import lru_cache

import numpy as np
import pytest
from given_law import check_law

from edgedraft.errors import InvalidInput, ModelNotFound, Overloaded, VerifierUnavailable
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed
from edgedraft_cloud.engines.base import Outcome, Sampling, Work
from edgedraft_cloud.engines.embedded import PREFILL_CHUNK, EmbeddedEngine, _Worker

GREEDY = Sampling()
PROMPTS = [[1, 4093, 198, *range(500 + 40 * i, 500 + 40 * i + 5 + 9 * i)] for i in range(4)]
LONG = [1, *(300 + i % 700 for i in range(PREFILL_CHUNK + 50))]


@pytest.fixture(scope="module")
def plain(default_pair):
    """The target by itself: greedy continuations, token by token."""
    model = CompiledModel.load(default_pair.target)
    cache = model.new_cache(1024)

    @lru_cache
    def continued(prompt: tuple[int, ...], count: int) -> list[int]:
        sequence = cache.new_sequence()
        tokens: list[int] = []
        feed = [*prompt]
        for _ in range(count):
            tokens.append(int(np.argmax(model.forward(cache, [Feed(sequence, feed)])[0])))
            feed = tokens[-1:]
        cache.free(sequence)
        return tokens

    return lambda prompt, count: continued(tuple(prompt), count)


@pytest.fixture
async def make(default_pair):
    engines: list[EmbeddedEngine] = []

    async def start(**settings) -> EmbeddedEngine:
        engine = EmbeddedEngine(default_pair.target, **{"max_block": 8, "kv_tokens": 1024, **settings})
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.close()


async def first(engine: EmbeddedEngine, **prompts: list[int]) -> dict[str, Outcome]:
    """Open sessions and wait until each has its first outcome."""
    for name, prompt in prompts.items():
        await engine.open(name, prompt, GREEDY, "acme")
    return await outcomes_of(engine, prompts)


async def step(engine: EmbeddedEngine, *works: Work) -> dict[str, Outcome]:
    """Submit and wait until each of the works has its outcome."""
    engine.submit(works)
    return await outcomes_of(engine, [work.session for work in works])


async def outcomes_of(engine: EmbeddedEngine, sessions) -> dict[str, Outcome]:
    missing, found = set(sessions), {}
    while missing:
        for outcome in (await engine.step()).outcomes:
            found[outcome.session] = outcome
            missing.remove(outcome.session)
    return found


async def test_a_cache_that_memory_cannot_hold_is_named(make, monkeypatch):
    def new_cache(*_, **__):
        raise MemoryError

    monkeypatch.setattr(CompiledModel, "new_cache", new_cache)
    with pytest.raises(InvalidInput, match="kv_tokens: is 5000, more than memory holds"):
        await make(kv_tokens=5000)


async def test_opening_brings_the_token_after_the_prompt(make, plain):
    engine = await make()
    outcome = (await first(engine, s=PROMPTS[0]))["s"]
    assert (outcome.tokens, outcome.accepted, outcome.judged) == (tuple(plain(PROMPTS[0], 1)), 0, 0)


async def test_drafts_right_and_wrong_settle_what_plain_decoding_gives(make, plain):
    engine = await make()
    expected = {f"s{i}": plain(prompt, 24) for i, prompt in enumerate(PROMPTS)}
    found = await first(engine, **dict(zip(expected, PROMPTS, strict=True)))
    settled: dict[str, list[int]] = {name: [*found[name].tokens] for name in expected}
    draws = np.random.default_rng(0)
    while any(len(tokens) < 16 for tokens in settled.values()):
        works = []
        for name, tokens in settled.items():
            draft = expected[name][len(tokens) : len(tokens) + int(draws.integers(0, 7))]
            if draft and draws.random() < 0.5:
                wrong = int(draws.integers(len(draft)))
                draft[wrong] = (draft[wrong] + 1) % engine.info.vocab_size
            works.append(Work(name, tuple(draft)))
        outcomes = await step(engine, *works)
        for work in works:
            outcome = outcomes[work.session]
            assert outcome.error is None
            assert len(outcome.tokens) == outcome.accepted + 1
            assert outcome.judged == len(work.tokens)
            settled[work.session] += outcome.tokens
            right = expected[work.session][: len(settled[work.session])]
            assert settled[work.session][: len(right)] == right


async def test_works_of_one_batch_share_a_step_that_says_what_it_was(make):
    engine = await make()
    await first(engine, a=PROMPTS[0], b=PROMPTS[0], c=PROMPTS[0])
    batch = engine.submit([Work(name, (5,)) for name in "abc"])
    done = await engine.step()
    assert {outcome.session for outcome in done.outcomes} == set("abc")
    assert (done.batch, done.tokens, done.prompt_tokens, done.evicted) == (batch, 6, 0, 0)
    assert done.seconds > 0
    assert 3 * len(PROMPTS[0]) / 1024 <= done.kv_used <= 1


async def test_batches_are_counted_and_prompts_are_told_apart(make):
    engine = await make()
    await engine.open("long", LONG, GREEDY, "acme")
    read = 0
    while not (done := await engine.step()).outcomes:
        assert done.batch == 0
        assert done.tokens == done.prompt_tokens > 0
        read += done.prompt_tokens
    # The last token of the prompt is the row that the first answer comes from.
    assert read + done.prompt_tokens == len(LONG) - 1
    assert done.tokens == done.prompt_tokens + 1
    assert [engine.submit([Work("long")]), (await engine.step()).batch] == [1, 1]
    assert [engine.submit([Work("long")]), (await engine.step()).batch] == [2, 2]


async def test_a_step_waits_until_the_last_one_was_taken_in(make):
    """While the outcomes of `a` are being dealt with, `b` cannot slip into a step of its own."""
    engine = await make()
    await first(engine, a=PROMPTS[0], b=PROMPTS[0])
    engine.submit([Work("a")])
    await engine.step()
    engine.submit([Work("b")])
    await asyncio.sleep(0.3)  # ample time for a step, if it were to begin
    engine.submit([Work("a")])
    assert {outcome.session for outcome in (await engine.step()).outcomes} == {"a", "b"}


async def test_a_long_prompt_lets_others_go_on(make, plain):
    engine = await make()
    await first(engine, short=PROMPTS[0])
    await engine.open("long", LONG, GREEDY, "acme")
    engine.submit([Work("short")])
    order: list[str] = []
    long: list[int] = []
    while not long:
        for outcome in (await engine.step()).outcomes:
            order.append(outcome.session)
            if outcome.session == "long":
                long += outcome.tokens
            else:
                engine.submit([Work("short")])
    assert order.count("short") >= 3
    assert long == plain(LONG, 1)


async def test_a_short_prompt_does_not_wait_for_the_long_ones_before_it(make, plain):
    engine = await make()
    for number in range(2):
        await engine.open(f"long-{number}", [*LONG, number], GREEDY, "acme")
    await engine.open("short", PROMPTS[0], GREEDY, "umbra")
    read, found = 0, {}
    while "short" not in found:
        step = await engine.step()
        read += step.prompt_tokens
        found |= {outcome.session: outcome.tokens for outcome in step.outcomes}
    assert found == {"short": tuple(plain(PROMPTS[0], 1))}
    assert read < len(LONG)


async def test_given_tokens_are_taken_as_they_stand(make, plain):
    engine = await make()
    ((_, outcome),) = (await first(engine, s=PROMPTS[1])).items()
    text = [*PROMPTS[1], *outcome.tokens]
    given = (plain(text, 1)[0] + 1) % engine.info.vocab_size
    outcomes = await step(engine, Work("s", (given,), (True,)))
    assert outcomes["s"].tokens == (given, *plain([*text, given], 1))


async def test_given_tokens_among_drafts_settle_what_a_naive_target_would(make):
    engine = await make(max_sessions=16)
    assert await check_law(engine, PROMPTS[:3], rounds=6, block=5, seed=0) > 10


async def test_one_that_is_opened_again_at_once_reads_only_what_is_new(make, plain):
    engine = await make()
    text = [*LONG, *plain(LONG, 1)]
    await first(engine, s=LONG, other=PROMPTS[0])
    engine.submit([Work("s"), Work("other")])
    other = (plain(text, 1)[0] + 1) % engine.info.vocab_size
    engine.release("s")
    await engine.open("s", [*text, other], GREEDY, "acme")
    read, found = 0, []
    while not any(outcome.session == "s" for outcome in found):
        done = await engine.step()
        read += done.prompt_tokens
        found += done.outcomes
    assert [outcome.tokens for outcome in found if outcome.session == "s"] == [tuple(plain([*text, other], 1))]
    assert read <= 2
    engine.submit([Work("s", (5,))])
    assert (await outcomes_of(engine, ["s"]))["s"].judged == 1


async def test_what_was_under_way_for_its_former_self_is_not_taken_for_its_own(make, plain):
    engine = await make()
    await first(engine, s=PROMPTS[0])
    for number in range(20):
        engine.submit([Work("s")])
        await asyncio.sleep(0.002 * number)  # before, in and after the step
        engine.release("s")
        await engine.open("s", PROMPTS[number % 4], GREEDY, "acme")
        assert (await outcomes_of(engine, ["s"]))["s"].tokens == tuple(plain(PROMPTS[number % 4], 1))


async def test_a_seed_fixes_the_draws(make):
    engine = await make()
    sampling = Sampling(temperature=1.0, top_p=0.9, top_k=50, seed=7)
    runs = []
    for name in ("first", "second"):
        await engine.open(name, PROMPTS[0], sampling, "acme")
        tokens = [(await outcomes_of(engine, [name]))[name].tokens]
        runs.append(tokens + [(await step(engine, Work(name)))[name].tokens for _ in range(6)])
    assert runs[0] == runs[1]


async def test_a_session_that_goes_on_reads_what_was_settled_before(make, plain):
    engine = await make()
    expected = plain(PROMPTS[2], 12)
    found = await first(engine, s=[*PROMPTS[2], *expected[:5]])
    assert found["s"].tokens == tuple(expected[5:6])
    assert (await step(engine, Work("s", tuple(expected[6:10]))))["s"].tokens == tuple(expected[6:11])


# ---------------------------------------------------------------- a cache that is too small


async def test_a_session_that_does_not_fit_is_refused_and_changes_nothing(make):
    engine = await make(kv_tokens=64, max_sessions=2)
    await first(engine, a=PROMPTS[0])
    with pytest.raises(Overloaded, match="no room") as error:
        await engine.open("b", [1] * 60, GREEDY, "acme")
    assert error.value.retry_after is not None
    await first(engine, c=PROMPTS[0])
    with pytest.raises(Overloaded, match="all 2 sessions"):
        await engine.open("d", [1], GREEDY, "acme")
    engine.release("a")
    await first(engine, e=PROMPTS[0])
    assert (await step(engine, Work("c"), Work("e"))).keys() == {"c", "e"}


SMALL = {"kv_tokens": 68, "max_block": 4}
"""A cache that holds three of the prompts, and their answers no longer."""
WANTED = 16
"""Tokens of each answer."""


async def test_sessions_that_take_turns_lose_nothing_where_the_cache_holds_one_at_a_time(make, plain):
    """Whose turn it is not gives up its KV, and reads it again."""
    engine = await make(**SMALL)
    prompts = dict(zip("abc", PROMPTS, strict=False))
    expected = {name: plain(prompt, 24) for name, prompt in prompts.items()}
    settled = {name: [*outcome.tokens] for name, outcome in (await first(engine, **prompts)).items()}
    evicted = 0
    while any(len(tokens) < WANTED for tokens in settled.values()):
        for name, tokens in settled.items():
            engine.submit([Work(name, tuple(expected[name][len(tokens) : len(tokens) + 4]))])
            before = len(tokens)
            while len(tokens) == before:
                done = await engine.step()
                evicted += done.evicted
                assert done.kv_used <= 1
                for outcome in done.outcomes:
                    assert outcome.error is None
                    settled[outcome.session] += outcome.tokens
    for name, tokens in settled.items():
        assert tokens == expected[name][: len(tokens)]
    assert evicted > 2


@pytest.mark.parametrize("length", [0, 4])
async def test_sessions_that_all_have_work_at_once_lose_nothing_where_the_cache_is_too_small(make, plain, length):
    """Each batch goes to all; who finds no room waits, and nobody waits for ever."""
    engine = await make(**SMALL)
    prompts = dict(zip("abc", PROMPTS, strict=False))
    expected = {name: plain(prompt, 24) for name, prompt in prompts.items()}
    settled = {name: [*outcome.tokens] for name, outcome in (await first(engine, **prompts)).items()}
    evicted = 0
    waiting: set[str] = set()
    while any(len(tokens) < WANTED for tokens in settled.values()):
        works = [
            Work(name, tuple(expected[name][len(tokens) : len(tokens) + length]))
            for name, tokens in settled.items()
            if name not in waiting and len(tokens) < WANTED
        ]
        waiting |= {work.session for work in works}
        batch = engine.submit(works) if works else 0
        while (done := await engine.step()).batch < batch:
            pass
        evicted += done.evicted
        for outcome in done.outcomes:
            assert outcome.error is None
            settled[outcome.session] += outcome.tokens
            waiting.remove(outcome.session)
    for name, tokens in settled.items():
        assert tokens == expected[name][: len(tokens)]
    assert evicted > 0


async def test_a_session_larger_than_the_cache_ends_alone(make, plain):
    engine = await make(kv_tokens=64)
    await first(engine, large=PROMPTS[0], small=PROMPTS[0])
    length, outcome = len(PROMPTS[0]) + 1, None
    while outcome is None or outcome.error is None:
        assert length <= 65, "the newest token need not be in the cache, all others must"
        outcome = (await step(engine, Work("large")))["large"]
        length += len(outcome.tokens)
    assert isinstance(outcome.error, Overloaded)
    assert (outcome.tokens, length) == ((), 65)
    assert (await step(engine, Work("small")))["small"].tokens == tuple(plain(PROMPTS[0], 2)[1:])
    engine.release("large")
    assert (await first(engine, next=PROMPTS[1]))["next"].error is None


async def test_drafts_that_do_not_fit_are_left_out_and_the_session_goes_on(make, plain):
    engine = await make(kv_tokens=64, max_block=16)
    expected = plain(PROMPTS[0], 60)  # its prompt and these fill the cache
    settled = [*(await first(engine, s=PROMPTS[0]))["s"].tokens]
    judged = set()
    while len(PROMPTS[0]) + len(settled) < 64:
        outcome = (await step(engine, Work("s", tuple(expected[len(settled) : len(settled) + 16]))))["s"]
        settled += outcome.tokens
        judged.add(outcome.judged)
    assert settled == expected[: len(settled)]
    assert judged == {16, 0}


# ---------------------------------------------------------------- life


async def test_a_released_session_yields_nothing_and_unknown_ones_do_no_harm(make):
    engine = await make()
    await first(engine, a=PROMPTS[0], b=PROMPTS[0])
    engine.submit([Work("a"), Work("b"), Work("nobody")])
    engine.release("a")
    engine.release("nobody")
    assert {outcome.session for outcome in (await engine.step()).outcomes} <= {"a", "b"}
    engine.release("a")
    assert "b" in await step(engine, Work("b"))


async def test_a_batch_of_sessions_that_are_gone_is_taken_in_all_the_same(make):
    """Whoever waits for it would wait for ever."""
    engine = await make()
    await first(engine, a=PROMPTS[0])
    engine.release("a")
    batch = engine.submit([Work("a")])
    done = await engine.step()
    assert (done.batch, done.outcomes) == (batch, ())


async def test_an_idle_engine_sleeps(make, monkeypatch):
    rounds = []
    original = _Worker.round
    monkeypatch.setattr(_Worker, "round", lambda worker, inbox: rounds.append(inbox) or original(worker, inbox))
    engine = await make()
    await first(engine, parked=PROMPTS[0])
    asking = asyncio.ensure_future(engine.step())
    await asyncio.sleep(0)
    before = len(rounds)
    await asyncio.sleep(0.3)
    assert len(rounds) == before, "a parked session makes the engine spin"
    asking.cancel()


async def test_an_engine_that_dies_says_so_to_all_who_ask_and_can_be_started_again(make, plain, monkeypatch):
    engine = await make()
    await first(engine, s=PROMPTS[0])
    cause = RuntimeError("out of luck")

    def broken(*_, **__):
        raise cause

    monkeypatch.setattr(CompiledModel, "forward", broken)
    engine.submit([Work("s")])
    for _ in range(2):
        with pytest.raises(VerifierUnavailable) as error:
            await engine.step()
        assert error.value.__cause__ is cause
    await engine.close()
    monkeypatch.undo()
    await engine.start()
    assert (await first(engine, s=PROMPTS[1]))["s"].tokens == tuple(plain(PROMPTS[1], 1))
    batch = engine.submit([Work("s")])
    assert (await engine.step()).batch == batch


async def test_close_ends_the_thread(make):
    engine = await make()
    await engine.open("s", LONG, GREEDY, "acme")
    engine.submit([Work("s")])
    await engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "edgedraft-engine"]
    await engine.close()


@pytest.mark.parametrize("name", ["max_sessions", "kv_tokens", "max_block"])
def test_limits_are_checked(default_pair, name):
    with pytest.raises(InvalidInput, match=name):
        EmbeddedEngine(default_pair.target, **{name: 0})


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ModelNotFound):
        EmbeddedEngine(tmp_path / "nothing")


def test_info_comes_from_the_artifact(default_pair):
    info = EmbeddedEngine(default_pair.target, kv_tokens=256).info
    assert (info.engine, info.vocab_size, info.context_length) == ("embedded", 49152, 256)
    assert info.eos_token_ids
