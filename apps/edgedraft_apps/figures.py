"""The figures of a generation as a small table."""

from __future__ import annotations

from rich.filesize import decimal
from rich.table import Table

from edgedraft.report import Report


def figures(report: Report) -> Table:
    """A table of what a generation cost and gained; figures that it has none of are left out."""
    rows = [
        ("tokens", f"{report.tokens} in {_time(report.seconds)}, {report.tokens_per_second:.1f} a second"),
        ("first draft", _time(report.first_draft_seconds)),
        ("first verified", _time(report.first_token_seconds)),
    ]
    if report.acceptance_rate is not None:
        rows += [
            ("α", f"{report.acceptance_rate:.2f} of {report.judged} judged drafts were right"),
            ("drafted", f"{report.drafted} tokens, {report.wasted} of them in vain"),
        ]
    if report.device_tokens and report.frames_up:
        rows.append(
            (
                "this device decided",
                f"{report.device_tokens} tokens, {report.held_back} held back, {report.vetoes} vetoes",
            )
        )
    if report.rounds:
        rows += [
            ("rounds", f"{report.rounds}, {report.tokens / report.rounds:.1f} tokens each"),
            ("rollbacks", str(report.rollbacks)),
            ("RTT", _time(report.rtt_seconds)),
            ("target step", _time(report.verify_seconds)),
        ]
    if report.frames_up:
        rows += [
            ("up", _traffic(report.bytes_up, report.frames_up, report.padding_bytes_up)),
            ("down", _traffic(report.bytes_down, report.frames_down, report.padding_bytes_down)),
        ]
    if report.empty_frames_up or report.empty_frames_down:
        empty = f"{report.empty_frames_up} empty frames up, {report.empty_frames_down} down"
        rows.append(("pace", f"{empty}, {_time(report.pace_delay_seconds)} of delay a frame"))
    if report.hidden_share is not None:
        rows.append(
            (
                "wait hidden",
                f"{_time(report.hidden_seconds)} of {_time(report.wait_seconds)}, {report.hidden_share:.0%}",
            )
        )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(name, value)
    return table


def _traffic(size: int, frames: int, padding: int) -> str:
    return f"{decimal(size)} in {frames} frames" + (f", {padding / size:.0%} of it padding" if padding else "")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
