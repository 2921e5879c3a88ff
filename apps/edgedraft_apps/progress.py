"""Progress bars for long work, one a stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from edgedraft_models import Progress as Report


class _Amount(ProgressColumn):
    """Bytes as megabytes, everything else as a share."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn()

    def render(self, task: Task) -> Text:
        """Render one task's amount."""
        if task.fields["unit"] == "bytes":
            return self._bytes.render(task)
        return Text(f"{task.percentage:>3.0f} %", style="progress.percentage")


@contextmanager
def bars(console: Console) -> Iterator[Report]:
    """Show what a long job reports; without a terminal, one line a finished stage.

    Args:
        console: Where to show it.
    """
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=28), _Amount(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(stage: str, done: int, total: int, unit: str) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None, unit=unit)
                if not console.is_terminal:
                    console.print(stage)
            progress.update(tasks[stage], completed=done, total=total or None)

        yield report
