"""Shows a generation in a terminal: provisional text grey, verified text plain, and a report at the end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from edgedraft.events import Drafted, Event, Finished, Revised, Verified
from edgedraft.report import Report


class Screen:
    """Draws verified text once and redraws only the provisional tail behind it.

    Complete lines of verified text scroll away as ordinary output; what is redrawn is the last verified line and the
    draft, so nothing flickers however long the answer is.

    Args:
        console: A terminal; anything else gets the verified text only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = ""
        self._drafts: list[tuple[int, str]] = []
        self._rows = 0

    def show(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Drafted(position=position, text=text):
                self._drafts.append((position, text))
            case Verified(position=position, tokens=tokens, text=text):
                end = position + len(tokens)
                self._drafts = [draft for draft in self._drafts if draft[0] >= end]
                self._line += text
            case Revised(position=cut):
                self._drafts = [draft for draft in self._drafts if draft[0] < cut]
            case Finished():
                self._drafts = []
        if self._console.is_terminal:
            self._draw()
        elif isinstance(event, Verified):
            sys.stdout.write(event.text)
            sys.stdout.flush()
        if isinstance(event, Finished):
            self._console.print()

    def _draw(self) -> None:
        self._erase()
        *complete, self._line = self._line.split("\n")
        for line in complete:
            self._console.print(Text(line), soft_wrap=False)
        live = Text(self._line)
        live.append("".join(text for _, text in self._drafts), style="bright_black")
        rows = live.wrap(self._console, self._console.width)
        self._console.print(Text("\n").join(rows), end="")
        self._rows = len(rows)

    def _erase(self) -> None:
        if self._rows:
            up = [(ControlType.CURSOR_UP, self._rows - 1)] if self._rows > 1 else []
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *up))
            # Erase from the cursor to the end of the screen: rich has no control for it.
            self._console.file.write("\x1b[J")
            self._rows = 0


async def show(events: AsyncIterator[Event], console: Console) -> Finished:
    """Draw a whole generation; its last event.

    Raises:
        EdgedraftError: What the generation raised.
    """
    screen = Screen(console)
    async for event in events:
        screen.show(event)
        if isinstance(event, Finished):
            return event
    raise AssertionError("a generation ends with Finished or an error")


def report_table(report: Report, *, first_token_note: str = "") -> Table:
    """The figures of a generation, for people.

    Args:
        report: Of the generation.
        first_token_note: Said behind the time to the first token.
    """
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    alpha = report.acceptance_rate
    hidden = report.hidden_share
    rows = [
        ("tokens", f"{report.tokens} in {report.seconds:.2f} s"),
        ("tokens/s", f"{report.tokens_per_second:.1f}"),
        ("first draft", _milliseconds(report.first_draft_seconds)),
        ("first verified token", _milliseconds(report.first_token_seconds) + first_token_note),
        ("α (drafts that were right)", "none judged" if alpha is None else f"{alpha:.2f} of {report.judged}"),
        ("rounds / rollbacks", f"{report.rounds} / {report.rollbacks}"),
        ("drafted / wasted", f"{report.drafted} / {report.wasted}"),
        ("RTT", _milliseconds(report.rtt_seconds)),
        ("a target step", _milliseconds(report.verify_seconds)),
        ("bytes up / down", f"{report.bytes_up} / {report.bytes_down} (before TLS)"),
        (
            "wait hidden",
            "no wait" if hidden is None else f"{hidden:.0%} of {report.wait_seconds:.2f} s with drafts in flight",
        ),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _milliseconds(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1000:.0f} ms"
