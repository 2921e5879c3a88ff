"""Recording: interrupted it goes on, and what it says of the drafter is what the drafter says step by step."""

import json
from dataclasses import replace

import pytest

from edgedraft.drafters.base import Feed
from edgedraft.drafters.tvm import TvmDrafter
from edgedraft.errors import InvalidInput
from edgedraft.runtime.compiled import CompiledModel
from edgedraft_apps.bench.prompts import BenchPrompt
from edgedraft_apps.bench.record import Recorder, RecordSettings, record
from edgedraft_cloud.engines.trace_file import Trace, TraceFile, TraceHeader

HEADER = TraceHeader("big", "aa", "small", "bb", "cc", 100, 64, (2,), 4, "a machine")


class Stub:
    """Records made-up tokens, and may be interrupted."""

    def __init__(self, header=HEADER, stop_at=None) -> None:
        self.header = header
        self.stop_at = stop_at
        self.asked: list[int] = []

    def encode(self, prompt: BenchPrompt) -> tuple[int, ...]:
        return (int(prompt.text),)

    def record(self, prompt, category) -> Trace:
        if prompt[0] == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(prompt[0])
        return Trace(tuple(prompt), (prompt[0] + 1,), ((prompt[0] + 1,),), ((1.0,),), category)


def prompts(*numbers):
    return [BenchPrompt(str(number), "kind") for number in numbers]


def progress(*report) -> None:
    pass


def test_a_file_is_made_and_a_prompt_that_comes_twice_is_recorded_once(tmp_path):
    out = tmp_path / "deep" / "some.trace"
    found = record(stub := Stub(), prompts(1, 2, 1), out, progress)
    assert stub.asked == [1, 2]
    assert TraceFile.load(out).traces == found.traces
    assert [path.name for path in out.parent.iterdir()] == ["some.trace"]


def test_an_interrupted_run_goes_on(tmp_path):
    out = tmp_path / "some.trace"
    with pytest.raises(KeyboardInterrupt):
        record(Stub(stop_at=3), prompts(1, 2, 3), out, progress)
    assert not out.exists()
    part = tmp_path / "some.trace.part"
    part.write_text(part.read_text() + '{"prompt": [9', encoding="utf-8")  # killed in the middle of a line
    record(stub := Stub(), prompts(2, 3, 1), out, progress)
    assert stub.asked == [3]
    assert set(TraceFile.load(out).traces) == {(1,), (2,), (3,)}


@pytest.mark.parametrize("change", [{"max_tokens": 5}, {"target_fingerprint": "dd"}])
def test_what_is_of_another_pair_or_length_is_made_anew(tmp_path, change):
    with pytest.raises(KeyboardInterrupt):
        record(Stub(stop_at=2), prompts(1, 2), tmp_path / "some.trace", progress)
    record(stub := Stub(replace(HEADER, **change)), prompts(1, 2), tmp_path / "some.trace", progress)
    assert stub.asked == [1, 2]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="out"):
        record(Stub(), prompts(1), tmp_path / "file" / "some.trace", progress)
    with pytest.raises(InvalidInput, match="max_tokens"):
        RecordSettings(tmp_path, tmp_path, max_tokens=0)


def test_a_real_pair_is_recorded_as_it_would_draft(default_pair, tmp_path):
    settings = RecordSettings(default_pair.drafter, default_pair.target, max_tokens=12)
    recorder = Recorder(settings, "here")
    asked = [BenchPrompt("What is 17 times 24? Show the steps.", "maths")]
    found = record(recorder, asked, tmp_path / "real.trace", progress)
    (trace,) = found.traces.values()
    assert trace.prompt == recorder.encode(asked[0])
    assert trace.category == "maths"
    drafter = TvmDrafter.load(default_pair.drafter)
    sequence = drafter.new_sequence()
    feed = trace.prompt
    for token, ids, confidence in zip(trace.tokens, trace.choices, trace.confidence, strict=True):
        (candidates,) = drafter.step([Feed(sequence, feed)], 8)
        assert candidates.ids == ids
        assert candidates.probs == pytest.approx(confidence, abs=1e-4)
        feed = (token,)
    drafter.close()
    lines = (tmp_path / "real.trace").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["machine"] == "here"


def test_two_models_that_are_no_pair_are_refused(default_pair, monkeypatch):
    settings = RecordSettings(default_pair.drafter, default_pair.target)
    load = CompiledModel.load

    def other(folder, **options):
        model = load(folder, **options)
        if folder == default_pair.drafter:
            model.manifest = replace(model.manifest, tokenizer_fingerprint="00" * 32)
        return model

    monkeypatch.setattr(CompiledModel, "load", other)
    with pytest.raises(InvalidInput, match="another tokenizer"):
        Recorder(settings, "here")
