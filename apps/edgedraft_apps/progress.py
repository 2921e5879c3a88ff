"""Shows how far a long job is: a bar for each stage on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProgressBars:
    """A context manager and a callback that takes reports of progress, one stage after the other.

    Args:
        console: Where to show them; standard error, so that output can be piped.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._task: TaskID | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[amount]}", justify="right"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        """Take one report.

        Args:
            stage: What is going on; a new name begins a new bar.
            done: How much of it is done.
            total: How much there is to do.
            unit: What is counted: `bytes`, `percent` or a plural noun; empty where counting says nothing.
        """
        if stage != self._stage:
            self._stage = stage
            self._task = self._bars.add_task(stage, total=max(total, 1), amount="")
            if not self._console.is_terminal:
                self._console.print(stage, highlight=False, markup=False, soft_wrap=True)
        assert self._task is not None
        self._bars.update(self._task, completed=done, total=max(total, 1), amount=_amount(done, total, unit))


def _amount(done: int, total: int, unit: str) -> str:
    match unit:
        case "bytes":
            return f"{decimal(done)} of {decimal(total)}"
        case "percent":
            return f"{done} %"
        case "":
            return ""
        case _:
            return f"{done} of {total} {unit}"
