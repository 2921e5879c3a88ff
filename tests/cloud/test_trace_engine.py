"""The trace engine: it replays what was recorded, in the time that was set, and says that it does no more."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput, Overloaded
from edgedraft_cloud.config import ServerConfig
from edgedraft_cloud.engines.base import Sampling, Work
from edgedraft_cloud.engines.trace import StepTime, TraceEngine, any_token, make_trace_engine
from edgedraft_cloud.engines.trace_file import Trace, TraceFile, TraceHeader

HEADER = TraceHeader("big q0f16", "aa", "small q4f16_1", "bb", "cc", 100, 64, (2,), 4, "a machine")
TRACE = Trace((5, 6), (10, 11, 12, 13), ((10, 9), (8, 11), (12, 1), (3, 13)), ((0.9, 0.1),) * 4, "maths")
OTHER = Trace((5, 6, 7), (20, 2), ((20,), (2,)), ((0.5,), (0.5,)))
GREEDY = Sampling()


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "some.trace", HEADER.as_json(), TRACE.as_json(), OTHER.as_json())


def engine_of(file=None, time="0", **settings) -> TraceEngine:
    return TraceEngine(file and TraceFile.load(file), StepTime.parse(time), **settings)


def test_a_file_is_read_as_it_was_written(file):
    traces = TraceFile.load(file)
    assert traces.header == HEADER
    assert list(traces.traces.values()) == [TRACE, OTHER]
    assert traces.acceptance_rate == 4 / 6


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no trace"),
        ([HEADER.as_json()], "holds no trace"),
        (["{}"], "line 1 is no header"),
        (["[1]"], "line 1 is no JSON object"),
        ([HEADER.as_json(), "nonsense"], "line 2 is no JSON"),
        ([HEADER.as_json(), replace(TRACE, prompt=(100,)).as_json()], "line 2: prompt are no token ids below 100"),
        ([HEADER.as_json(), replace(TRACE, tokens=()).as_json()], "line 2 has no prompt or no tokens"),
        ([HEADER.as_json(), replace(TRACE, choices=((1,),)).as_json()], "line 2: choices has no entry for each"),
        ([HEADER.as_json(), replace(OTHER, choices=((1, 2), (3,))).as_json()], "choices and confidence do not match"),
        ([HEADER.as_json(), TRACE.as_json().replace("0.9", "1.9")], "confidence are no probabilities"),
        ([HEADER.as_json(), TRACE.as_json(), TRACE.as_json()], "line 3 .* prompt of an earlier one"),
        ([json.dumps({**json.loads(HEADER.as_json()), "vocab_size": 0})], "line 1: vocab_size is 0"),
        ([json.dumps({**json.loads(HEADER.as_json()), "target": 1})], "line 1: target is 1"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(tmp_path, lines, message):
    with pytest.raises(InvalidInput, match=message):
        TraceFile.load(write(tmp_path / "wrong.trace", *lines))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        TraceFile.load(tmp_path / "none.trace")


def test_it_says_that_it_replays(file):
    info = engine_of(file, max_sessions=3).info
    assert (info.engine, info.model) == ("trace", "big q0f16 (replayed)")
    assert (info.vocab_size, info.context_length, info.max_sessions, info.eos_token_ids) == (100, 64, 3, (2,))
    assert engine_of(file, context=32).info.context_length == 32
    assert "replayed" in engine_of().info.model


async def test_it_replays_and_judges_drafts(file):
    engine = engine_of(file)
    await engine.open("a", TRACE.prompt, GREEDY, "")
    (first,) = (await engine.step()).outcomes
    assert (first.tokens, first.accepted, first.judged) == ((10,), 0, 0)
    assert engine.submit([Work("a", (11, 7, 13))]) == 1
    step = await engine.step()
    assert (step.batch, step.tokens) == (1, 4)
    (outcome,) = step.outcomes
    assert (outcome.tokens, outcome.accepted, outcome.judged) == ((11, 12), 1, 3)
    engine.submit([Work("a", (50,), (True,))])
    (outcome,) = (await engine.step()).outcomes
    assert (outcome.tokens, outcome.accepted) == ((50, 2), 1)  # given, and then the end of the trace


async def test_a_batch_is_a_step_and_opened_sessions_join_it(file):
    engine = engine_of(file)
    await engine.open("a", TRACE.prompt, GREEDY, "")
    await engine.open("b", OTHER.prompt, GREEDY, "")
    assert {outcome.session for outcome in (await engine.step()).outcomes} == {"a", "b"}
    engine.submit([Work("a")])
    engine.submit([Work("b")])
    await engine.open("c", TRACE.prompt, GREEDY, "")
    steps = [await engine.step(), await engine.step()]
    assert [step.batch for step in steps] == [1, 2]
    assert [sorted(outcome.session for outcome in step.outcomes) for step in steps] == [["a", "c"], ["b"]]


async def test_a_released_session_has_no_outcome_and_frees_its_place(file):
    engine = engine_of(file, max_sessions=1)
    await engine.open("a", TRACE.prompt, GREEDY, "")
    with pytest.raises(Overloaded):
        await engine.open("b", OTHER.prompt, GREEDY, "")
    engine.release("a")
    engine.release("unknown")
    await engine.open("b", OTHER.prompt, GREEDY, "")
    assert [outcome.session for outcome in (await engine.step()).outcomes] == ["b"]


async def test_a_step_that_is_cancelled_has_not_happened(file):
    engine = engine_of(file, "60000")
    await engine.open("a", TRACE.prompt, GREEDY, "")
    engine.submit([Work("a")])
    step = engine.step()
    step.send(None)  # it sleeps now
    step.close()
    engine._time = StepTime.parse("0")
    assert (await engine.step()).batch == 1


async def test_a_session_goes_on_where_it_was(file):
    engine = engine_of(file)
    await engine.open("a", (*TRACE.prompt, 10, 11), GREEDY, "")
    (outcome,) = (await engine.step()).outcomes
    assert outcome.tokens == (12,)
    await engine.open("b", (*TRACE.prompt, 10, 12), GREEDY, "")
    (outcome,) = (await engine.step()).outcomes
    assert outcome.tokens == (12,), "behind a given token too"
    with pytest.raises(InvalidInput, match="not in the trace"):
        await engine.open("c", (1,), GREEDY, "")


async def test_any_prompt_is_a_function_of_the_position():
    engine = engine_of()
    for session, prompt in (("a", (1, 2, 3)), ("b", (1, 2, 3, any_token(3)))):
        await engine.open(session, prompt, GREEDY, "")
    first, second = (await engine.step()).outcomes
    assert (first.tokens, second.tokens) == ((any_token(3),), (any_token(4),))
    assert {any_token(position) for position in range(100)} <= set(range(engine.info.vocab_size))


async def test_it_starts_anew_after_close(file):
    engine = engine_of(file, max_sessions=1)
    await engine.open("a", TRACE.prompt, GREEDY, "")
    await engine.close()
    await engine.start()
    await engine.open("a", OTHER.prompt, GREEDY, "")
    assert engine.submit([]) == 1
    assert [outcome.tokens for outcome in (await engine.step()).outcomes] == [(20,)]


@pytest.mark.parametrize("text", ["", "-1", "30+", "30+1", "30@5", "1e3", "90000", "nan"])
def test_a_wrong_step_time_is_refused(text):
    with pytest.raises(InvalidInput, match="verify_ms"):
        StepTime.parse(text)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_time_is_flat_up_to_the_knee_and_grows_behind_it(rows, more):
    time = StepTime.parse("30+0.5@64")
    assert time.seconds(min(rows, 64)) == 0.03
    assert time.seconds(64 + more) == pytest.approx(0.03 + 0.0005 * more)
    assert time.seconds(rows + more) >= time.seconds(rows)
    jittered = StepTime.parse("30+0.5@64", 0.2)
    assert jittered.seconds(rows) <= jittered.seconds(rows, 0.9) < 1.2 * time.seconds(rows)


def test_the_room_of_a_step_follows_from_its_time(file):
    assert engine_of(file, "30", max_sessions=4, max_block=3).info.room == 16
    assert engine_of(file, "30+1@10", max_sessions=40, max_block=3).info.room == 10 + 3 * 30
    with pytest.raises(InvalidInput, match="jitter"):
        StepTime.parse("30", 1.5)


def test_a_verifier_makes_it_from_its_settings(file, tmp_path):
    settings = {"tls": tmp_path, "engine": "trace", "max_sessions": 7, "max_block": 5, "verify_ms": "12"}
    assert make_trace_engine(ServerConfig(model=str(file), **settings)).info.max_block == 5
    assert make_trace_engine(ServerConfig(model="any", **settings)).info.max_sessions == 7
    with pytest.raises(InvalidInput, match="cannot be read"):
        make_trace_engine(ServerConfig(model="none", **settings))
