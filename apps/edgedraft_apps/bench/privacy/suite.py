"""The parts of `edgedraft bench privacy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgedraft.text import TextCodec
from edgedraft_apps.bench.privacy.detectors import detector_rows
from edgedraft_apps.bench.privacy.hunt import hunt_rows
from edgedraft_apps.bench.privacy.questions import load_questions
from edgedraft_apps.bench.privacy.rules import DEFAULT_RULE, Rule
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import Suite
from edgedraft_models import BuiltPair

PARTS: Final = ("leaks", "cloaked", "alarms", "cost", "detectors", "answers", "recall", "fingerprint")
"""What can be measured by itself."""
_PROMPTS: Final = 1000


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    """What to measure with.

    Attributes:
        pair: A real pair.
        answers: File of answers to the private questions.
        half: Of the questions; None: all.
    """

    pair: BuiltPair
    answers: Path
    half: str | None = None


async def privacy_figures(suite: Suite, settings: PrivacySettings, parts: Sequence[str]) -> list[Row]:
    """Measure parts of the suite.

    Raises:
        EdgedraftError: A model or a verifier failed.
    """
    rows: list[Row] = []
    codec = TextCodec.load(settings.pair.drafter)
    if "leaks" in parts:
        rows += await hunt_rows(codec, 60 if suite.quick else _PROMPTS, suite.progress)
    if "cloaked" in parts:
        # Only here: it loads TVM.
        from edgedraft_apps.bench.privacy.lossless import lossless_rows

        rows += await lossless_rows(suite, settings.pair.drafter, settings.pair.target, 4 if suite.quick else 20)
    if {"alarms", "cost"} & set(parts):
        # Only here: it loads TVM.
        from edgedraft_apps.bench.privacy.ordinary import alarm_rows, cost_rows, ordinary_answers

        answered = ordinary_answers(settings.pair.drafter, codec, suite.progress, 16 if suite.quick else None)
        if "alarms" in parts:
            rows += alarm_rows(answered, codec)
        if "cost" in parts:
            rows += await cost_rows(answered, codec)
    if "detectors" in parts:
        rows += detector_rows()
    if {"answers", "recall"} & set(parts):
        rows += _answers(suite, settings, parts)
    if "fingerprint" in parts:
        # Only here: it loads TVM and scikit-learn.
        from edgedraft_apps.bench.privacy.fingerprint import fingerprint_rows, record_prompts

        trace = record_prompts(suite, settings.pair.drafter, settings.pair.target)
        rows += await fingerprint_rows(suite, trace)
    return rows


def _answers(suite: Suite, settings: PrivacySettings, parts: Sequence[str]) -> list[Row]:
    # Only here: it loads TVM.
    from edgedraft_apps.bench.privacy.recall import recall_rows
    from edgedraft_apps.bench.privacy.rule import PLAIN_MODES, Pair, explore
    from edgedraft_apps.bench.privacy.tally import answer_rows, tallies

    questions = load_questions(half=settings.half)
    if suite.quick:
        questions = questions[::6]
    pair = Pair.load(settings.pair.drafter, settings.pair.target)
    ways: list[str | Rule] = [*PLAIN_MODES, DEFAULT_RULE]
    answers = explore(pair, questions, ways, settings.answers, suite.progress)
    rows = answer_rows(tallies(answers, questions), DEFAULT_RULE.name) if "answers" in parts else []
    if "recall" in parts:
        rows += recall_rows([answer for answer in answers if answer.way == DEFAULT_RULE.name], questions)
    return rows
