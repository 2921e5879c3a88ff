"""`edgedraft bench`: record real generations, load a verifier, and measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edgedraft_apps.bench.machine import describe_machine
from edgedraft_apps.bench.prompts import load_prompts
from edgedraft_apps.models_cli import RegistryOption, SourceOption
from edgedraft_apps.progress import ProgressBars
from edgedraft_models import build_pair, load_registry

bench_app = typer.Typer(no_args_is_help=True, help="Measure: real figures as a table and as JSON.")


@bench_app.command()
def record(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="The trace file to make.")],
    prompts: Annotated[Path, typer.Option(help="JSON Lines with `prompt`, `text` or `turns`, or a text line each.")],
    pair: Annotated[str | None, typer.Option(help="Pair of `edgedraft models list`. [the default pair]")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Artifact folder, in place of the pair's.")] = None,
    target: Annotated[Path | None, typer.Option(help="Artifact folder, in place of the pair's.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 128,
    limit: Annotated[int | None, typer.Option(help="Take so many prompts, evenly spread over the file. [all]")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for the arithmetic. [the cores]")] = None,
    registry: RegistryOption = None,
    source: SourceOption = None,
) -> None:
    """Record what a target answers, and what a drafter would have drafted at each token.

    `edgedraft-verifier serve --engine trace --model OUT` and `bench load --trace OUT` replay it at any speed. What was
    interrupted goes on where it was.
    """
    # Only here: it loads TVM.
    from edgedraft_apps.bench.record import Recorder, RecordSettings
    from edgedraft_apps.bench.record import record as record_traces

    asked = load_prompts(prompts, limit)
    with ProgressBars(Console(stderr=True)) as progress:
        if drafter is None or target is None:
            built = build_pair(context.obj, load_registry(registry).pair(pair), source=source, progress=progress)
            drafter, target = drafter or built.drafter, target or built.target
        recorder = Recorder(RecordSettings(drafter, target, max_tokens, threads), describe_machine())
        traces = record_traces(recorder, asked, out, progress)
    tokens = sum(len(trace.tokens) for trace in traces.traces.values())
    typer.echo(f"{out}: {len(traces.traces)} prompts, {tokens} tokens, α {traces.acceptance_rate:.3f}")
