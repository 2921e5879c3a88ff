"""Shows an answer in a terminal as it comes: the draft grey at once, plain once verified, replaced where wrong."""

from __future__ import annotations

import asyncio
import re
import unicodedata
from types import TracebackType
from typing import Final, Self

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from edgedraft.events import Verified
from edgedraft.generation import Generation

DRAFT_STYLE: Final = "italic bright_black"
FRAME_SECONDS: Final = 1 / 30
"""Time between two drawings; more often is not seen and takes time from the models."""
_TAB: Final = "    "
_DIRECTIONS: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Embeddings, overrides and isolates: they turn around what comes after them."""
_PIECES: Final = re.compile(r"\n|[^\S\n]+|\S+")


async def show(generation: Generation, console: Console) -> None:
    """Show a generation until it has finished.

    Where the output is no terminal, only verified text is written, as it stands.

    Args:
        generation: Cancelled if this is left early.
        console: Where to show it.

    Raises:
        EdgedraftError: What the generation raises; what was verified until then stays on the screen.
    """
    async with generation:
        if not console.is_terminal or console.is_dumb_terminal:
            async for event in generation:
                if isinstance(event, Verified):
                    console.file.write(event.text)
                    console.file.flush()
            console.file.write("\n")
            return
        loop = asyncio.get_running_loop()
        due: asyncio.TimerHandle | None = None

        with AnswerView(console) as view:

            def draw() -> None:
                nonlocal due
                due = None
                view.draw(generation.text, generation.draft_text)

            try:
                async for _ in generation:
                    due = due or loop.call_later(FRAME_SECONDS, draw)
            finally:
                if due is not None:
                    due.cancel()
                view.draw(generation.text, "")


class AnswerView:
    """Draws verified and provisional text; a context manager.

    Rows that can change no more are printed once and scroll away as usual. Only what follows them, a few rows, is drawn
    anew each time, so nothing flickers however long the answer is.

    Args:
        console: A terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._printed = 0
        self._rest = Text()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._console.print(self._rest)

    def draw(self, verified: str, draft: str) -> None:
        """Show this state.

        Args:
            verified: All verified text; it only ever grows.
            draft: Provisional text behind it.
        """
        width = self._console.width
        rest = printable(verified)[self._printed :]
        *complete, last = row_starts(rest, width)
        self._printed += last
        tail = rest[last:] + printable(draft)
        self._rest = _rows(tail, row_starts(tail, width), len(rest) - last)
        with self._console:  # all in one write
            if complete:
                self._console.print(_rows(rest[:last], complete, last))
            self._live.update(self._rest, refresh=True)


def printable(text: str) -> str:
    """Text that only ever moves the cursor on: tabs become spaces, other control characters the replacement character.

    So do those that override the direction of writing. A model may write them; they shall not reach the terminal.
    """
    return "".join(_printable(char) for char in text)


def row_starts(text: str, width: int) -> list[int]:
    """Where the rows begin if text is wrapped between words, and longer words between characters.

    However the text goes on, all rows but the last stay as they are.

    Args:
        text: Printable text.
        width: Cells in a row.

    Returns:
        Indices into the text, the first one 0.
    """
    starts, column = [0], 0
    for piece in _PIECES.finditer(text):
        start, word = piece.start(), piece.group()
        if word == "\n":
            starts.append(piece.end())
            column = 0
        elif word.isspace():
            column += cell_len(word)  # may go beyond the edge, where nobody sees it
        elif column + cell_len(word) <= width:
            column += cell_len(word)
        else:
            if column:
                starts.append(start)
                column = 0
            for offset, char in enumerate(word):
                if column and column + cell_len(char) > width:
                    starts.append(start + offset)
                    column = 0
                column += cell_len(char)
    return starts


def _rows(text: str, starts: list[int], verified: int) -> Text:
    """Rows as they are drawn; what lies behind the first `verified` characters is a draft."""
    rows = Text(no_wrap=True, overflow="ignore")
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(text)
        if number:
            rows.append("\n")
        row = text[start:end].rstrip()  # blanks at the edge must not make the terminal wrap
        cut = min(max(verified - start, 0), len(row))
        rows.append(row[:cut])
        rows.append(row[cut:], DRAFT_STYLE)
    return rows


def _printable(char: str) -> str:
    if char == "\t":
        return _TAB
    harmless = char == "\n" or (unicodedata.category(char) != "Cc" and char not in _DIRECTIONS)
    return char if harmless else "\ufffd"
