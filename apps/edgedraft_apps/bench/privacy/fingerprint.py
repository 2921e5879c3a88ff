"""Fingerprinting: can somebody who sees only sizes and times of TLS records tell which of 50 prompts was asked?

Real clients ask a real verifier over mutual TLS, through a proxy that writes down what passes. Target and drafter are
replayed from a record of a real pair, so that each prompt has its own lengths, rejections and rollbacks. A classifier
learns four fifths of the runs and guesses the prompts of the rest. Frames are shaped alike in all modes, so `open`
stands for all of them here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edgedraft.client import Client
from edgedraft.errors import InvalidInput
from edgedraft.identity import Identity
from edgedraft.privacy.shaping import Shaping
from edgedraft.prompt import Mode, Prompt
from edgedraft.report import Report
from edgedraft.sampling import SamplingParams
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft_apps.bench.machine import describe_machine
from edgedraft_apps.bench.privacy.observer import Observer
from edgedraft_apps.bench.privacy.questions import load_questions
from edgedraft_apps.bench.prompts import DEFAULT_PROMPTS, BenchPrompt, load_prompts
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import Suite
from edgedraft_apps.bench.trace_drafter import RecordedMaterial, TraceCodec, TraceDrafter
from edgedraft_cloud.engines.trace_file import TraceFile

_FULL: Final = (50, 20)
"""Prompts, and runs of each."""
_QUICK: Final = (10, 6)
MAX_TOKENS: Final = 40
"""Of an answer; many are shorter."""
_DRAFT_SECONDS: Final = 0.015
_VERIFY_MS: Final = "20"
_GOAL: Final = 5.0
_FOLDS: Final = 5
_RECORDS: Final = 100
"""Records at the beginning that the classifier looks at one by one."""
_CURVE: Final = 50
"""Points at which it looks at the sum of bytes."""
_LONGEST: Final = 2048
"""Bytes of a record, up to which it tells lengths apart."""

_TREES: Final = 300

Floats = npt.NDArray[np.float32]
Sighting = Sequence[tuple[float, int]]
"""What an observer saw of a run: seconds, and bytes of a record, negative towards the device."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way to shape frames.

    Attributes:
        name: What it is called.
        shaping: Of the client.
        at_once: Runs at a time; more only where the machine has little to do.
    """

    name: str
    shaping: Shaping
    at_once: int


CASES: Final = (
    Case("without shaping", Shaping(sizes=()), 8),
    Case("with padding", Shaping(), 8),
    Case("with padding and pace, ends told", Shaping(pace="steady", span_seconds=0.0), 8),
    Case("with padding and pace", Shaping(pace="steady"), 16),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One generation.

    Attributes:
        prompt: Number of its prompt.
        seen: What the observer saw.
        report: What it cost.
    """

    prompt: int
    seen: Sighting
    report: Report


async def fingerprint_rows(suite: Suite, trace: Path, cases: Sequence[Case] = CASES) -> list[Row]:
    """Ask all prompts of a record many times in each case, and guess them.

    Args:
        suite: The surroundings.
        trace: What was recorded.
        cases: How to shape frames.

    Raises:
        InvalidInput: scikit-learn is not installed, or the trace cannot be used.
        EdgedraftError: A generation failed.
    """
    _classifier()
    material = RecordedMaterial(TraceFile.load(trace))
    prompts, times = _QUICK if suite.quick else _FULL
    if len(material.traces) < prompts:
        raise InvalidInput("trace", f"holds {len(material.traces)} prompts", f"record {prompts}")
    (identity,) = suite.devices("a", 1)
    runs: list[list[Run]] = []
    flags = ("--max-sessions", "64", "--verify-ms", _VERIFY_MS, "--tenants", str(suite.tenants()))
    async with suite.verifier("trace", str(trace), *flags) as verifier:
        for case in cases:
            runs.append(await _runs(suite, case, verifier.address, identity, material, prompts, times))
    rows = []
    for case, its in zip(cases, runs, strict=True):
        suite.progress(f"guess {case.name}", 0, 1, "")
        rows += await asyncio.to_thread(_rows, case, its, prompts, last=case is cases[-1])
    return rows


def record_prompts(suite: Suite, drafter: Path, target: Path) -> Path:
    """Record what a pair says to the prompts of this benchmark; a trace file in the suite's folder.

    Args:
        suite: The surroundings.
        drafter: Artifact folder.
        target: Artifact folder.

    Raises:
        InvalidInput: scikit-learn is not installed, so that the record would be of no use.
        ModelError: A folder cannot be used.
    """
    _classifier()
    # Only here: it loads TVM.
    from edgedraft_apps.bench.record import Recorder, RecordSettings, record

    private = [BenchPrompt(f"{each.public} {each.private}", each.kind) for each in load_questions()]
    prompts = [*load_prompts(DEFAULT_PROMPTS), *private][: _QUICK[0] if suite.quick else _FULL[0]]
    out = suite.folder / "fingerprint.jsonl"
    record(Recorder(RecordSettings(drafter, target, MAX_TOKENS), describe_machine()), prompts, out, suite.progress)
    return out


async def _runs(
    suite: Suite, case: Case, address: str, identity: Identity, material: RecordedMaterial, prompts: int, times: int
) -> list[Run]:
    # In an order of its own, so that what the machine does meanwhile tells nothing of the prompt.
    left = [prompt for prompt in range(prompts) for _ in range(times)]
    random.Random(case.name).shuffle(left)
    runs: list[Run] = []

    async def work() -> None:
        while left:
            runs.append(await _run(case, address, identity, material, left.pop()))
            suite.progress(f"fingerprint {case.name}", len(runs), prompts * times, "runs")

    async with asyncio.TaskGroup() as group:
        for _ in range(case.at_once):
            group.create_task(work())
    return runs


async def _run(case: Case, address: str, identity: Identity, material: RecordedMaterial, prompt: int) -> Run:
    """One generation over a connection of its own."""
    host, _, port = address.rpartition(":")
    async with Observer(host, int(port)) as observer:
        async with Client(
            TraceDrafter(material, _DRAFT_SECONDS),
            verifier=GrpcTransport(f"localhost:{observer.port}", identity, timeout=60.0),
            mode=Mode.OPEN,
            codec=TraceCodec(material),
            shaping=case.shaping,
        ) as client:
            generation = client.generate(
                Prompt(raw=str(prompt)), SamplingParams(max_tokens=material.length(prompt, MAX_TOKENS))
            )
            await generation
        assert generation.report is not None  # it has finished
        return Run(prompt, observer.seen, generation.report)


def _rows(case: Case, runs: Sequence[Run], prompts: int, *, last: bool) -> list[Row]:
    name = f"{case.name}, {prompts} prompts, {len(runs) // prompts} runs each"
    share = accuracy([run.seen for run in runs], [run.prompt for run in runs]) * 100
    metric = "prompts told by sizes and times"
    up, empty = (sum(getattr(run.report, field) for run in runs) for field in ("frames_up", "empty_frames_up"))
    seen = [run.seen for run in runs]
    return [
        Row.at_most(metric, name, share, _GOAL, "%") if last else Row(metric, name, share, "%"),
        Row("bytes on the line", name, _mean([sum(abs(size) for _, size in each) for each in seen]), "B/answer"),
        Row("seconds on the line", name, _mean([each[-1][0] for each in seen]), "s/answer"),
        Row("seconds of an answer", name, _mean([run.report.seconds for run in runs]), "s"),
        Row("delay of a frame by the pace", name, _mean([run.report.pace_delay_seconds for run in runs]) * 1000, "ms"),
        Row("empty frames sent before the answer is there", name, 100 * empty / up, "%"),
        Row("guessing", name, 100 / prompts, "%"),
    ]


def accuracy(seen: Sequence[Sighting], prompts: Sequence[int]) -> float:
    """The share of runs whose prompt a classifier tells that has learnt the other runs (five-fold cross-validation).

    There are two, one that looks at sizes and one that looks at the course in time; the better one counts.

    Args:
        seen: What was seen of each run.
        prompts: The prompt of each run.

    Raises:
        InvalidInput: scikit-learn is not installed.
    """
    classifier, cross_val_score, folds = _classifier()
    return max(
        float(np.mean(cross_val_score(classifier, np.stack([look(each) for each in seen]), prompts, cv=folds)))
        for look in (sizes_of, course_of)
    )


def sizes_of(seen: Sighting) -> Floats:
    """How many records of each length passed, each way.

    Returns:
        [2 * _LONGEST]; a longer record counts as one of the longest.
    """
    counts = np.zeros((2, _LONGEST), np.float32)
    for _, size in seen:
        counts[int(size < 0), min(abs(size), _LONGEST) - 1] += 1
    return counts.reshape(-1)


def course_of(seen: Sighting) -> Floats:
    """What is known to tell web pages apart: counts, gaps, the curve of sums, and the records at the beginning.

    Returns:
        [features], as many for each run.
    """
    times = np.array([each[0] for each in seen], np.float32)
    sizes = np.array([each[1] for each in seen], np.float32)
    parts: list[Any] = [[len(sizes), times[-1]]]
    for way in (sizes > 0, sizes < 0):
        one, at = np.abs(sizes[way]), times[way]
        gaps = np.diff(at, prepend=0) if len(at) else np.zeros(1)
        parts.append([len(one), one.sum(), gaps.mean(), gaps.std(), *np.percentile(gaps, (10, 25, 50, 75, 90, 100))])
        parts += [np.histogram(at, _CURVE, (0, until), weights=one)[0] for until in (1.5, 10)]
    # The curve of sums over the records: Panchenko et al., Website Fingerprinting at Internet Scale (2016).
    places = np.linspace(0, len(sizes) - 1, _CURVE)
    parts += [np.interp(places, np.arange(len(sizes)), np.cumsum(part)) for part in (sizes, np.abs(sizes))]
    parts += [_first(sizes), _first(np.diff(times, prepend=0))]
    return np.concatenate([np.asarray(part, np.float32) for part in parts])


def _first(values: Floats) -> Floats:
    first = np.zeros(_RECORDS, np.float32)
    first[: len(values)] = values[:_RECORDS]
    return first


def _classifier() -> tuple[Any, Any, Any]:
    try:
        from sklearn.ensemble import ExtraTreesClassifier
        from sklearn.model_selection import StratifiedKFold, cross_val_score
    except ImportError as error:
        cure = "run `pip install 'edgedraft[bench]'`"
        raise InvalidInput("fingerprint", "needs scikit-learn, which is not installed", cure) from error
    classifier = ExtraTreesClassifier(n_estimators=_TREES, random_state=0, n_jobs=-1)
    return classifier, cross_val_score, StratifiedKFold(_FOLDS, shuffle=True, random_state=0)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
