"""How many of the labelled spans the detectors find, and how much of what they find is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from edgedraft.privacy.detect import Detectors, Finding
from edgedraft.prompt import Message
from edgedraft_apps.bench.results import Row

CASES: Final = Path(__file__).with_name("detector_cases.jsonl")
"""Texts with marks around what shall be found, as in `Mail [[ann@example.org|EMAIL]]`; without: hard negatives."""
Split = Literal["tuning", "held out", "all"]
_RECALL: Final = 0.95
_PRECISION: Final = 0.9
_HELD_OUT: Final = 3
"""Each third case is held out: the detectors were not tuned on it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled text.

    Attributes:
        text: It, without marks.
        language: ISO 639 code.
        spans: What shall be found in it.
        held_out: Whether it is one that the detectors were not tuned on.
    """

    text: str
    language: str
    spans: tuple[Finding, ...]
    held_out: bool


def load_cases(split: Split = "all") -> list[Case]:
    """The labelled texts.

    Args:
        split: Which of them.
    """
    cases = [_case(index, line) for index, line in enumerate(CASES.read_text(encoding="utf-8").splitlines())]
    return [case for case in cases if split == "all" or case.held_out == (split == "held out")]


def detector_rows(detectors: Detectors | None = None) -> list[Row]:
    """Recall and precision of the detectors: of each kind, over all, and on the part that was held out.

    A span is found if a finding of its kind covers its letters and digits. A finding is right if at least half of it is
    in spans of its kind.

    Args:
        detectors: None takes the standard ones.
    """
    detectors = detectors or Detectors.standard()
    rows: list[Row] = []
    for split in ("all", "held out"):
        cases = load_cases(split)
        score = Score.of(cases, detectors)
        negatives = [case for case in cases if not case.spans]
        rows += [
            Row("labelled spans", split, sum(score.labelled.values())),
            Row.at_least("detector recall", split, score.recall(), _RECALL),
            Row.at_least("detector precision", split, score.precision(), _PRECISION),
            Row("hard negatives", split, len(negatives)),
            Row("hard negatives with a finding", split, sum(bool(detectors.find(case.text)) for case in negatives)),
        ]
        if split == "all":
            for kind in sorted(score.labelled):
                rows += [
                    Row("detector recall", f"{kind}, {score.labelled[kind]} spans", score.recall(kind)),
                    Row("detector precision", f"{kind}, {score.made[kind]} findings", score.precision(kind)),
                ]
    return rows


@dataclass(frozen=True, slots=True)
class Score:
    """Counts by kind.

    Attributes:
        labelled: Spans.
        found: Those of them that were found.
        made: Findings.
        right: Those of them that are right.
    """

    labelled: Counter[str]
    found: Counter[str]
    made: Counter[str]
    right: Counter[str]

    @classmethod
    def of(cls, cases: Iterable[Case], detectors: Detectors) -> Score:
        """Count over cases."""
        score = cls(Counter(), Counter(), Counter(), Counter())
        for case in cases:
            findings = detectors.find(case.text)
            for span in case.spans:
                score.labelled[span.kind] += 1
                score.found[span.kind] += is_found(case.text, span, findings)
            for finding in findings:
                score.made[finding.kind] += 1
                score.right[finding.kind] += is_right(case.text, finding, case.spans)
        return score

    def recall(self, kind: str | None = None) -> float:
        """Found of labelled, of a kind or over all."""
        return _ratio(self.found, self.labelled, kind)

    def precision(self, kind: str | None = None) -> float:
        """Right of made, of a kind or over all; 1 where none was made."""
        return _ratio(self.right, self.made, kind)


def is_found(text: str, span: Finding, findings: Iterable[Finding]) -> bool:
    """Whether findings of its kind cover all letters and digits of a span."""
    return _letters(text, span) <= _letters_of(text, findings, span.kind)


def is_right(text: str, finding: Finding, spans: Iterable[Finding]) -> bool:
    """Whether at least half of the letters and digits of a finding are in spans of its kind."""
    letters = _letters(text, finding)
    return 2 * len(letters & _letters_of(text, spans, finding.kind)) >= len(letters)


def _letters(text: str, span: Finding) -> set[int]:
    return {place for place in range(span.start, span.end) if text[place].isalnum()}


def _letters_of(text: str, spans: Iterable[Finding], kind: str) -> set[int]:
    return set().union(*(_letters(text, span) for span in spans if span.kind == kind))


def _ratio(part: Counter[str], whole: Counter[str], kind: str | None) -> float:
    over, under = (part.total(), whole.total()) if kind is None else (part[kind], whole[kind])
    return over / under if under else 1.0


def _case(index: int, line: str) -> Case:
    data = json.loads(line)
    message = Message.marked("user", data["text"])
    return Case(message.text, data["language"], tuple(_spans(message)), index % _HELD_OUT == _HELD_OUT - 1)


def _spans(message: Message) -> Iterator[Finding]:
    position = 0
    for part in message.parts:
        end = position + len(part.text)
        if part.secret:
            yield Finding(position, end, part.kind)
        position = end
