"""What a benchmark found: rows with goals, shown as a table and written as JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.machine import machine

Bound = Literal[">=", "<=", "==", ""]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        metric: What was measured.
        case: Under which conditions.
        value: The figure.
        unit: Of the figure; empty for a count or a ratio.
        bound: How `value` shall stand to `goal`; empty where there is no goal.
        goal: The goal, or None.
        ok: Whether it is reached; None where there is none.
    """

    metric: str
    case: str
    value: float
    unit: str = ""
    bound: Bound = ""
    goal: float | None = None
    ok: bool | None = None

    @classmethod
    def at_least(cls, metric: str, case: str, value: float, goal: float, unit: str = "") -> Self:
        """A figure that shall not be lower than its goal."""
        return cls(metric, case, value, unit, ">=", goal, value >= goal)

    @classmethod
    def at_most(cls, metric: str, case: str, value: float, goal: float, unit: str = "") -> Self:
        """A figure that shall not be higher than its goal."""
        return cls(metric, case, value, unit, "<=", goal, value <= goal)

    @classmethod
    def exactly(cls, metric: str, case: str, value: float, goal: float, unit: str = "") -> Self:
        """A figure that shall be its goal."""
        return cls(metric, case, value, unit, "==", goal, value == goal)


@dataclass(frozen=True, slots=True)
class Result:
    """What a suite found.

    Attributes:
        suite: Its name.
        rows: The figures.
    """

    suite: str
    rows: Sequence[Row]

    @property
    def missed(self) -> int:
        """How many goals were missed."""
        return sum(row.ok is False for row in self.rows)

    def save(self, file: Path) -> None:
        """Write `{"suite", "commit", "machine", "rows"}`, whole or not at all.

        Raises:
            InvalidInput: The file cannot be written.
        """
        data: dict[str, Any] = {
            "suite": self.suite,
            "commit": commit(),
            "machine": machine(),
            "rows": [asdict(row) for row in self.rows],
        }
        part = file.with_name(f"{file.name}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(file)
        except OSError as error:
            raise InvalidInput(
                "json", f"{file} cannot be written ({error.strerror})", "choose another place"
            ) from error

    def show(self, console: Console) -> None:
        """Print the rows."""
        table = Table(title=self.suite, title_justify="left", box=None)
        for name in ("metric", "case", "value", "goal", ""):
            table.add_column(name, justify="right" if name in ("value", "goal") else "left", overflow="fold")
        for row in self.rows:
            goal = "" if row.goal is None else f"{row.bound} {row.goal:.4g}"
            mark = {True: Text("ok", "green"), False: Text("missed", "red"), None: Text("")}[row.ok]
            table.add_row(row.metric, row.case, f"{row.value:.4g} {row.unit}".rstrip(), goal, mark)
        console.print(table, markup=False)


def commit() -> str | None:
    """The commit of the source tree that this runs from, with a mark where it was changed; None without a tree."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None if run.returncode == 0 else None
