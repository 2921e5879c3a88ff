"""Progress, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from edgedraft_apps.progress import ProgressBars


def shown(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None, _environ={})
    with ProgressBars(console) as progress:
        progress("fetch", 10_000_000, 98_000_000, "bytes")
        progress("fetch", 98_000_000, 98_000_000, "bytes")
        progress("quantize", 3, 12, "tensors")
        progress("compile", 50, 100, "percent")
        progress("check", 1, 1, "")
    return out.getvalue()


def test_elsewhere_each_stage_is_a_line():
    assert shown(terminal=False).splitlines() == ["fetch", "quantize", "compile", "check"]


@pytest.mark.parametrize("part", ["98.0 MB of 98.0 MB", "3 of 12 tensors", "50 %", "check"])
def test_on_a_terminal_each_stage_is_a_bar_that_says_how_much(part):
    assert part in shown(terminal=True)
