"""The answer as a user sees it: a small terminal takes what is written and is looked at."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from edgedraft.errors import VerifierUnavailable
from edgedraft.events import Drafted, Finished, FinishReason, Revised, Verified
from edgedraft.generation import Generation
from edgedraft.privacy.ledger import Ledger
from edgedraft.report import Report
from edgedraft_apps.terminal import AnswerView, printable, row_starts, show

WIDTH = 20
words = st.lists(st.sampled_from(["a", "word", "antidisestablishmentarianism", " ", "  ", "\n", "東京", "é"])).map(
    "".join
)


class Screen(io.StringIO):
    """A terminal without end: rows of characters, each with whether it is a draft."""

    def __init__(self):
        super().__init__()
        self.rows = [[]]
        self.row = self.column = 0
        self.grey = False
        self.writes = 0

    def isatty(self):
        return True

    def write(self, data):
        self.writes += 1
        for code, final, char in re.findall(r"\x1b\[([\d;?]*)([A-Za-z])|([\s\S])", data):
            if final == "A":
                self.row -= int(code or 1)
            elif final == "K":
                self.rows[self.row] = []
            elif final == "m":
                self.grey = "90" in code.split(";")
            elif char == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [[] for _ in range(self.row + 1 - len(self.rows))]
            elif char == "\r":
                self.column = 0
            elif char:
                assert ord(char) >= 32
                row = self.rows[self.row]
                row[self.column : self.column + 1] = [(char, self.grey)]
                self.column += 1
                assert cell_len("".join(each for each, _ in row)) <= WIDTH, "the terminal would wrap"
        return len(data)

    def text(self):
        return "\n".join("".join(char for char, _ in row).rstrip() for row in self.rows).rstrip()

    def grey_text(self):
        return "".join(char for row in self.rows for char, grey in row if grey)


def terminal(height=100):
    screen = Screen()
    size = {"width": WIDTH, "height": height}
    return screen, Console(file=screen, force_terminal=True, color_system="standard", _environ={}, **size)


def wrapped(text):
    starts = row_starts(text, WIDTH)
    return "\n".join(text[a:b].rstrip() for a, b in zip(starts, [*starts[1:], None], strict=True)).rstrip()


@given(words, words, st.integers(2, 12))
def test_rows_hold_all_text_within_the_width_and_stay_as_text_grows(text, more, width):
    starts = row_starts(text, width)
    rows = [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert "".join(rows) == text
    assert all(cell_len(row.rstrip()) <= width for row in rows)
    assert row_starts(text + more, width)[: len(starts)] == starts


@given(st.lists(st.tuples(words, words), max_size=6))
def test_whatever_was_drafted_the_screen_ends_with_the_verified_text(steps):
    screen, console = terminal()
    verified = ""
    with AnswerView(console) as view:
        for settled, draft in steps:
            verified += settled
            view.draw(verified, draft)
            assert screen.text() == wrapped(verified + draft)
        view.draw(verified, "")
    assert screen.text() == wrapped(verified)
    assert screen.grey_text() == ""


def test_drafts_are_grey_and_complete_rows_are_written_once():
    screen, console = terminal()
    with AnswerView(console) as view:
        view.draw("one ", "two")
        assert screen.grey_text() == "two"
        view.draw("one two three four five six", " seven")
        assert screen.text() == "one two three four\nfive six seven"
        first_row = screen.rows[0]
        view.draw("one two three four five six", " eight")
        assert screen.rows[0] is first_row
        assert screen.grey_text().strip() == "eight"


def test_a_draft_higher_than_the_terminal_is_cut():
    screen, console = terminal(height=4)
    with AnswerView(console) as view:
        view.draw("a", "\nb\nc\nd\ne\nf")
        assert screen.text() == "a\nb\nc\nd"
        view.draw("a", "")
    assert screen.text() == "a"


def test_control_characters_do_not_reach_the_terminal():
    assert printable("\x1b[2J\ta\r\n\x9b\x07") == "\ufffd[2J    a\ufffd\n\ufffd\ufffd"
    family = "\U0001f469\u200d\U0001f469"
    assert printable(f"a\u202eb\u2069 \u05e9 {family}") == f"a\ufffdb\ufffd \u05e9 {family}"


def scripted(*events, error=None):
    async def run(generation):
        for event in events:
            generation.push(event)
        if error:
            raise error

    return Generation(run, Ledger().page("open"))


EVENTS = (
    Drafted(0, 1, "The cat", 0.9),
    Drafted(1, 2, " sleeps", 0.5),
    Verified(0, (1,), "The cat"),
    Revised(1, 1),
    Verified(1, (3,), " sits"),
)
END = Finished(FinishReason.STOP, "The cat sits", Report())


async def test_a_generation_is_shown_on_a_terminal():
    screen, console = terminal()
    await show(scripted(*EVENTS, END), console)
    assert screen.text() == "The cat sits"


async def test_what_was_verified_stays_when_it_fails():
    screen, console = terminal()
    with pytest.raises(VerifierUnavailable):
        await show(scripted(*EVENTS, error=VerifierUnavailable("gone")), console)
    assert screen.text() == "The cat sits"


@pytest.mark.parametrize("environment", [{}, {"TERM": "dumb"}])
async def test_without_a_terminal_only_verified_text_is_written_as_it_stands(environment):
    out = io.StringIO()
    console = Console(file=out, force_terminal=bool(environment), width=5, _environ=environment)
    await show(scripted(*EVENTS, END), console)
    assert out.getvalue() == "The cat sits\n"
