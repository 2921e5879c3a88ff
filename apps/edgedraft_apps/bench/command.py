"""What the commands of `edgedraft bench` share: options, and a suite's way from its parts to its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.results import Result, Row
from edgedraft_apps.bench.suite import Suite, run_to_the_end
from edgedraft_apps.progress import ProgressBars

PromptsOption = Annotated[
    Path,
    typer.Option(
        help="JSON Lines with `prompt`, `text` or `turns`, or a text line each. [some of our own]", show_default=False
    ),
]
OutOption = Annotated[Path | None, typer.Option("--json", help="Write the result to this file as JSON too.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="A short try-out; its figures are not to be quoted.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a goal is missed.")]


def chosen_parts(only: Collection[str] | None, parts: Collection[str]) -> list[str]:
    """The parts of a suite that are asked for, in their order; all where none is named.

    Raises:
        InvalidInput: There is no such part.
    """
    for name in only or ():
        if name not in parts:
            raise InvalidInput("only", f"is {name!r}", f"use {', '.join(parts)}")
    return [name for name in parts if not only or name in only]


def run_suite(part: Callable[[Suite], Coroutine[Any, Any, list[Row]]], quick: bool) -> list[Row]:
    """Run a suite in a temporary folder, with progress bars."""
    with TemporaryDirectory(prefix="edgedraft-bench-") as folder, ProgressBars(Console(stderr=True)) as progress:
        return run_to_the_end(part(Suite(Path(folder), quick, progress)))


def finish(result: Result, out: Path | None, *, strict: bool) -> None:
    """Write and show a result; exit with 1 if a goal is missed and that is asked for."""
    if out is not None:
        result.save(out)
    result.show(Console())
    if strict and result.missed:
        raise typer.Exit(1)
