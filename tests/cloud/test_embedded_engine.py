"""The embedded engine on real weights: steps, sharing, limits of its memory, sleep and death."""

import asyncio
import threading

import numpy as np
import pytest

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

    def greedy(prompt: list[int], count: int) -> list[int]:
        sequence = cache.new_sequence()
        tokens: list[int] = []
        feed = prompt
        for _ in range(count):
            tokens.append(int(np.argmax(model.forward(cache, [Feed(sequence, feed)])[0])))
            feed = tokens[-1:]
        cache.free(sequence)
        return tokens

    return greedy


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


async def step(engine: EmbeddedEngine, *works: Work) -> dict[str, Outcome]:
    """Submit and wait until each of the works has its outcome."""
    engine.submit(works)
    outcomes: dict[str, Outcome] = {}
    while len(outcomes) < len(works):
        outcomes.update({outcome.session: outcome for outcome in await engine.outcomes()})
    return outcomes


async def test_a_cache_that_memory_cannot_hold_is_named(make, monkeypatch):
    def new_cache(*_, **__):
        raise MemoryError

    monkeypatch.setattr(CompiledModel, "new_cache", new_cache)
    with pytest.raises(InvalidInput, match="kv_tokens: is 5000, more than memory holds"):
        await make(kv_tokens=5000)


async def test_drafts_right_and_wrong_settle_what_plain_decoding_gives(make, plain):
    engine = await make()
    expected = {f"s{i}": plain(prompt, 24) for i, prompt in enumerate(PROMPTS)}
    for name, prompt in zip(expected, PROMPTS, strict=True):
        await engine.open(name, prompt, GREEDY)
    settled: dict[str, list[int]] = {name: [] for name in expected}
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
            settled[work.session] += outcome.tokens
            right = expected[work.session][: len(settled[work.session])]
            assert settled[work.session][: len(right)] == right


async def test_works_of_one_moment_share_a_step(make):
    engine = await make()
    for name in "abc":
        await engine.open(name, PROMPTS[0], GREEDY)
    await step(engine, *(Work(name) for name in "abc"))
    engine.submit([Work(name, (5,)) for name in "abc"])
    outcomes = await engine.outcomes()
    assert {outcome.session for outcome in outcomes} == set("abc")
    assert len({outcome.verify_seconds for outcome in outcomes}) == 1


async def test_a_step_waits_until_the_last_one_was_taken_in(make):
    """While the outcomes of `a` are being dealt with, `b` cannot slip into a step of its own."""
    engine = await make()
    for name in "ab":
        await engine.open(name, PROMPTS[0], GREEDY)
    await step(engine, Work("a"), Work("b"))
    engine.submit([Work("a")])
    await engine.outcomes()
    engine.submit([Work("b")])
    await asyncio.sleep(0.3)  # ample time for a step, if it were to begin
    engine.submit([Work("a")])
    assert {outcome.session for outcome in await engine.outcomes()} == {"a", "b"}


async def test_a_long_prompt_lets_others_go_on(make, plain):
    engine = await make()
    await engine.open("short", PROMPTS[0], GREEDY)
    await step(engine, Work("short"))
    await engine.open("long", LONG, GREEDY)
    engine.submit([Work("long"), Work("short")])
    order: list[str] = []
    long: list[int] = []
    while not long:
        for outcome in await engine.outcomes():
            order.append(outcome.session)
            if outcome.session == "long":
                long += outcome.tokens
            else:
                engine.submit([Work("short")])
    assert order.count("short") >= 3
    assert long == plain(LONG, 1)


async def test_given_tokens_are_taken_as_they_stand(make, plain):
    engine = await make()
    await engine.open("s", PROMPTS[1], GREEDY)
    given = (plain(PROMPTS[1], 1)[0] + 1) % engine.info.vocab_size
    outcomes = await step(engine, Work("s", (given,), (True,)))
    assert outcomes["s"].tokens == (given, *plain([*PROMPTS[1], given], 1))


async def test_a_seed_fixes_the_draws(make):
    engine = await make()
    sampling = Sampling(temperature=1.0, top_p=0.9, top_k=50, seed=7)
    runs = []
    for name in ("first", "second"):
        await engine.open(name, PROMPTS[0], sampling)
        runs.append([(await step(engine, Work(name)))[name].tokens for _ in range(6)])
    assert runs[0] == runs[1]


async def test_a_session_that_does_not_fit_is_refused_and_changes_nothing(make):
    engine = await make(kv_tokens=64, max_sessions=2)
    await engine.open("a", PROMPTS[0], GREEDY)
    with pytest.raises(Overloaded, match="no room") as error:
        await engine.open("b", [1] * 60, GREEDY)
    assert error.value.retry_after is not None
    await engine.open("c", PROMPTS[0], GREEDY)
    with pytest.raises(Overloaded):
        await engine.open("d", [1], GREEDY)
    engine.release("a")
    await engine.open("e", PROMPTS[0], GREEDY)
    assert (await step(engine, Work("c"), Work("e"))).keys() == {"c", "e"}


async def test_where_the_cache_runs_out_one_session_ends_and_the_others_go_on(make):
    engine = await make(kv_tokens=64)
    for name in "ab":
        await engine.open(name, PROMPTS[0], GREEDY)
    alive = {"a", "b"}
    while len(alive) == 2:
        for name, outcome in (await step(engine, *(Work(name) for name in sorted(alive)))).items():
            if outcome.error is not None:
                assert isinstance(outcome.error, Overloaded)
                assert outcome.tokens == ()
                alive.remove(name)
                engine.release(name)
    (left,) = alive
    assert (await step(engine, Work(left)))[left].error is None


async def test_prompts_that_were_taken_in_keep_their_room(make):
    """A session that grows must not eat what another was promised for its prompt."""
    engine = await make(kv_tokens=PREFILL_CHUNK + 100)
    await engine.open("grows", PROMPTS[0], GREEDY)
    await step(engine, Work("grows"))
    await engine.open("reads", LONG, GREEDY)
    engine.submit([Work("reads"), Work("grows", tuple(PROMPTS[2][:8]))])
    seen: dict[str, Outcome] = {}
    while "reads" not in seen:
        for outcome in await engine.outcomes():
            seen[outcome.session] = outcome
            if outcome.session == "grows" and outcome.error is None:
                engine.submit([Work("grows", tuple(PROMPTS[2][:8]))])
    assert seen["reads"].error is None
    assert len(seen["reads"].tokens) == 1


async def test_a_released_session_yields_nothing_and_unknown_ones_do_no_harm(make):
    engine = await make()
    for name in "ab":
        await engine.open(name, PROMPTS[0], GREEDY)
    engine.submit([Work("a"), Work("b"), Work("nobody")])
    engine.release("a")
    engine.release("nobody")
    assert {outcome.session for outcome in await engine.outcomes()} <= {"a", "b"}
    engine.release("a")
    assert "b" in await step(engine, Work("b"))


async def test_an_idle_engine_sleeps(make, monkeypatch):
    rounds = []
    original = _Worker.round
    monkeypatch.setattr(_Worker, "round", lambda worker, inbox: rounds.append(inbox) or original(worker, inbox))
    engine = await make()
    await engine.open("parked", PROMPTS[0], GREEDY)
    await step(engine, Work("parked"))
    asking = asyncio.ensure_future(engine.outcomes())
    before = len(rounds)
    await asyncio.sleep(0.3)
    assert len(rounds) == before, "a parked session makes the engine spin"
    asking.cancel()


async def test_an_engine_that_dies_says_so_to_all_who_ask(make, monkeypatch):
    engine = await make()
    await engine.open("s", PROMPTS[0], GREEDY)
    cause = RuntimeError("out of luck")

    def broken(*_, **__):
        raise cause

    monkeypatch.setattr(CompiledModel, "forward", broken)
    engine.submit([Work("s")])
    for _ in range(2):
        with pytest.raises(VerifierUnavailable) as error:
            await engine.outcomes()
        assert error.value.__cause__ is cause
    await engine.close()


async def test_close_ends_the_thread(make):
    engine = await make()
    await engine.open("s", LONG, GREEDY)
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
