"""What the answers to the private questions come to: by way of answering, by kind, and against the goals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from edgedraft_apps.bench.privacy.questions import MAX_TOKENS, Question
from edgedraft_apps.bench.privacy.rule import Answer
from edgedraft_apps.bench.results import Row

_POINTS: Final = 100
_LEEWAY: Final = 2.0  # points that sealed may be behind local
_CLOAKED_LEEWAY: Final = 5.0  # points that cloaked may be behind open
_SHARE: Final = 0.5  # of the gap between local and open that sealed closes


@dataclass(frozen=True, slots=True)
class Tally:
    """One way's answers.

    Attributes:
        right: Share of right answers by kind, in points of 100.
        total: Of all.
        alpha: Share of the drafts that the target would have chosen itself; None without drafts.
        by_device: Share of the tokens that the device decided.
        held: Share of the tokens that the guard held back.
        vetoed: Share of the tokens that the device put in the place of the target's.
    """

    right: Mapping[str, float]
    total: float
    alpha: float | None
    by_device: float
    held: float
    vetoed: float

    @classmethod
    def of(cls, answers: Sequence[Answer], kinds: Mapping[str, str]) -> Tally:
        """Count answers; `kinds` are those of the questions."""
        by_kind: dict[str, list[bool]] = defaultdict(list)
        for answer in answers:
            by_kind[kinds[answer.question]].append(answer.right)
        tokens = sum(answer.tokens for answer in answers)
        drafted = sum(answer.drafted for answer in answers)
        return cls(
            {kind: _points(by_kind[kind]) for kind in MAX_TOKENS if kind in by_kind},
            _points([answer.right for answer in answers]),
            sum(answer.accepted for answer in answers) / drafted if drafted else None,
            sum(answer.by_device for answer in answers) / tokens,
            sum(answer.held for answer in answers) / tokens,
            sum(answer.vetoed for answer in answers) / tokens,
        )


def tallies(answers: Sequence[Answer], questions: Sequence[Question]) -> dict[str, Tally]:
    """A tally of each way that has answered all these questions, best first."""
    kinds = {question.id: question.kind for question in questions}
    by_way: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.question in kinds:
            by_way[answer.way].append(answer)
    found = {way: Tally.of(given, kinds) for way, given in by_way.items() if len(given) == len(questions)}
    return dict(sorted(found.items(), key=lambda item: -item[1].total))


def gap_closed(tally: Tally, local: Tally, opened: Tally) -> dict[str, float]:
    """Of the kinds where `open` beats `local`: which share of that gap a way closes."""
    return {
        kind: (tally.right[kind] - local.right[kind]) / (opened.right[kind] - local.right[kind])
        for kind in tally.right
        if opened.right[kind] > local.right[kind]
    }


def table(found: Mapping[str, Tally]) -> Table:
    """All ways, a line each."""
    shown = Table(box=None)
    kinds = list(next(iter(found.values())).right) if found else []
    for name in ("way", "right", *kinds, "α", "device", "held", "vetoed", "worst gap"):
        shown.add_column(name, justify="left" if name == "way" else "right")
    local, opened = found.get("local"), found.get("open")
    for way, tally in found.items():
        gaps = gap_closed(tally, local, opened) if local is not None and opened is not None else {}
        shown.add_row(
            way,
            f"{tally.total:.1f}",
            *(f"{tally.right[kind]:.0f}" for kind in kinds),
            "" if tally.alpha is None else f"{tally.alpha:.3f}",
            *(f"{share:.3f}" for share in (tally.by_device, tally.held, tally.vetoed)),
            f"{min(gaps.values()):.2f}" if gaps else "",
        )
    return shown


def answer_rows(found: Mapping[str, Tally], sealed: str) -> list[Row]:
    """Figures of the modes with their goals.

    Args:
        found: Tallies of the plain modes and of the rule.
        sealed: The rule's name.
    """
    modes = {"sealed" if way == sealed else way: tally for way, tally in found.items()}
    rows: list[Row] = []
    for mode, tally in modes.items():
        rows += [Row("answers right", f"{mode}, {kind}", points, "%") for kind, points in tally.right.items()]
        rows.append(Row("answers right", f"{mode}, all", tally.total, "%"))
        if tally.alpha is not None:
            rows.append(Row("acceptance rate α", mode, tally.alpha))
    sealed_mode = modes["sealed"]
    local, opened, cloaked = modes["local"], modes["open"], modes["cloaked"]
    rows += [
        Row("tokens decided by the device", "sealed", sealed_mode.by_device),
        Row("tokens held back", "sealed", sealed_mode.held),
        Row("tokens vetoed", "sealed", sealed_mode.vetoed),
    ]
    rows += [
        Row.at_least("gap between local and open that sealed closes", kind, share, _SHARE)
        for kind, share in gap_closed(sealed_mode, local, opened).items()
    ]
    rows += [
        Row.at_least("sealed over local", kind, sealed_mode.right[kind] - local.right[kind], -_LEEWAY, "points")
        for kind in sealed_mode.right
    ]
    rows.append(Row.at_least("cloaked over open", "all", cloaked.total - opened.total, -_CLOAKED_LEEWAY, "points"))
    return rows


def _points(right: Sequence[bool]) -> float:
    return _POINTS * sum(right) / len(right)
