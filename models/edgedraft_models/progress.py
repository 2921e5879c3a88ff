"""How a long job tells its caller how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A callback that takes one report of progress; a command line shows it as a bar."""

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        """Take one report.

        Args:
            stage: What is going on, e.g. `fetch smollm2-135m-instruct`; a new stage means a new bar.
            done: How much of it is done, from 0 to `total`.
            total: How much there is to do in this stage.
            unit: What is counted: `bytes`, `tensors` or `percent`.
        """


def silent(stage: str, done: int, total: int, unit: str) -> None:
    """Ignore a report of progress."""
