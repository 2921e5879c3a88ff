"""`edgedraft bench privacy` and `edgedraft bench rule`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.command import OutOption, QuickOption, StrictOption, chosen_parts, finish, run_suite
from edgedraft_apps.bench.privacy.questions import HALVES, QUESTIONS, by_turns, load_questions
from edgedraft_apps.bench.privacy.rules import RULE_SETS, Rule, rule_named
from edgedraft_apps.bench.privacy.suite import PARTS, PrivacySettings, privacy_figures
from edgedraft_apps.bench.results import Result
from edgedraft_apps.models_cli import RegistryOption, SourceOption
from edgedraft_apps.progress import ProgressBars
from edgedraft_models import build_pair, load_registry

_SETS = ("modes", *RULE_SETS)
_PAIR = "qwen2.5-coder"

PairOption = Annotated[str, typer.Option(help="Pair of `edgedraft models list`.")]
DrafterOption = Annotated[Path | None, typer.Option(help="Artifact folder, in place of the pair's.")]
TargetOption = Annotated[Path | None, typer.Option(help="Artifact folder, in place of the pair's.")]
AnswersOption = Annotated[
    Path, typer.Option("--answers", help="File of answers, which a run that was stopped goes on with.")
]


def privacy(
    context: typer.Context,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only this part; may be given again. One of: {', '.join(PARTS)}.")
    ] = None,
    pair: PairOption = _PAIR,
    answers: AnswersOption = Path("private-answers.jsonl"),
    half: Annotated[str | None, typer.Option(help="Ask only this half of the questions: choose or final.")] = None,
    registry: RegistryOption = None,
    source: SourceOption = None,
    quick: QuickOption = False,
    strict: StrictOption = False,
    out: OutOption = None,
) -> None:
    """Check what the privacy modes promise, and what they cost.

    `leaks`, which compares the ledger with a tap too, `alarms`, `cost` and `detectors` ask no target: a small `--pair`
    does for them. `answers`, `cloaked` and `recall` take an hour or more. `fingerprint` needs
    `pip install 'edgedraft[bench]'`.
    """
    parts = chosen_parts(only, PARTS)
    with ProgressBars(Console(stderr=True)) as progress:
        built = build_pair(context.obj, load_registry(registry).pair(pair), source=source, progress=progress)
    settings = PrivacySettings(built, answers, half)
    rows = run_suite(lambda suite: privacy_figures(suite, settings, parts), quick)
    finish(Result("privacy", rows), out, strict=strict)


def rule(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="JSON Lines with an answer each; what it has is not done again.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", help=f"Rules to try; may be given again. One of: {', '.join(_SETS)}.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--rule", help="A single rule of the sets, by its name.")] = None,
    half: Annotated[str, typer.Option(help="Half of the questions: choose or final.")] = "choose",
    questions: Annotated[Path, typer.Option(help="Questions to ask.", show_default=False)] = QUESTIONS,
    limit: Annotated[int | None, typer.Option(help="Ask so many, of all kinds by turns. [all]")] = None,
    seconds: Annotated[float | None, typer.Option(help="Begin no question after this time.")] = None,
    pair: PairOption = _PAIR,
    drafter: DrafterOption = None,
    target: TargetOption = None,
    threads: Annotated[int | None, typer.Option(help="Threads for the arithmetic. [the cores]")] = None,
    registry: RegistryOption = None,
    source: SourceOption = None,
) -> None:
    """Try rules for mode `sealed` on private questions, offline, and show how many answers come out right."""
    # Only here: it loads TVM.
    from edgedraft_apps.bench.privacy.rule import PLAIN_MODES, Pair, explore
    from edgedraft_apps.bench.privacy.tally import table, tallies

    if half not in HALVES:
        raise InvalidInput("half", f"is {half!r}", f"use {' or '.join(HALVES)}")
    rules = [each for name in chosen_parts(sets, _SETS) if name != "modes" for each in RULE_SETS[name]]
    if only:
        rules = [rule_named(name) for name in only]
    modes = list(PLAIN_MODES) if not sets or "modes" in sets else []
    asked = by_turns(load_questions(questions, half))
    if limit is not None:
        asked = asked[:limit]
    with ProgressBars(Console(stderr=True)) as progress:
        if drafter is None or target is None:
            built = build_pair(context.obj, load_registry(registry).pair(pair), source=source, progress=progress)
            drafter, target = drafter or built.drafter, target or built.target
        models = Pair.load(drafter, target, threads)
        ways: list[str | Rule] = [*modes, *rules]
        answers = explore(models, asked, ways, out, progress, seconds)
    Console().print(table(tallies(answers, asked)), markup=False)
