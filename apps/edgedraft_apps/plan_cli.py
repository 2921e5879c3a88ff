"""`edgedraft plan` on the command line: reads the flags, shows the answer as tables and as a plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from edgedraft.errors import InvalidInput
from edgedraft_apps.models_cli import JsonOption, print_json
from edgedraft_apps.plan import GPUS, POLICIES, Plan, Question, Target, make_plan


def plan(
    alpha: Annotated[
        float, typer.Option(help="α: how often a draft token is right; `edgedraft demo` measures it.")
    ] = 0.8,
    draft_ms: Annotated[float, typer.Option(help="A step of the device's drafter.")] = 20.0,
    rtt: Annotated[str, typer.Option(help="Round trips in milliseconds.")] = "0,20,50,100,200,400",
    gpu: Annotated[str, typer.Option(help=f"The target's GPU: {', '.join(GPUS)}.")] = "h100",
    target_b: Annotated[float, typer.Option(help="Billions of weights of the target.")] = 32.0,
    bits: Annotated[float, typer.Option(help="Bits of a weight of the target.")] = 16.0,
    verify_ms: Annotated[
        float | None, typer.Option(help="A step of the target with one row, as measured. [from GPU and target]")
    ] = None,
    knee: Annotated[
        float | None, typer.Option(help="Rows from which on a step takes longer. [from GPU and target]")
    ] = None,
    gamma: Annotated[int, typer.Option(help="Draft tokens of a block in a step.")] = 6,
    branches: Annotated[float, typer.Option(help="What a step of the drafter over a tree's branches costs.")] = 1.0,
    covered: Annotated[
        float,
        typer.Option(
            help="Share of the rejections that a branch covers. Devices draft no branches yet; 0.4 is likely."
        ),
    ] = 0.0,
    itl_ms: Annotated[float, typer.Option(help="Time between tokens that each client shall get.")] = 20.0,
    drafter_b: Annotated[
        float, typer.Option(help="Billions of weights of the drafter where it runs beside the target, to compare.")
    ] = 0.5,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time a token over RTT into this file: .png, .svg, .pdf or .html.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what to expect: time a token by policy and round trip, the best policy, and clients on one GPU.

    By formulas, in no time, and so without jitter, queues and the moods of a text: for orders of magnitude and for the
    choice of a policy. Only steps are counted: no overhead of a serving engine, no prompts, no room for KV caches. What
    a machine really does: `edgedraft bench`.

    Example: `edgedraft plan --alpha 0.85 --draft-ms 15 --gpu l40s --target-b 8 --rtt 30,80`
    """
    target = Target.on(gpu, target_b * 1e9, bits)
    target = Target(target.base if verify_ms is None else verify_ms / 1000, target.knee if knee is None else knee)
    beside = Target.on(gpu, drafter_b * 1e9, bits).base
    question = Question(
        alpha, draft_ms / 1000, target, _milliseconds(rtt), gamma, branches, covered, itl_ms / 1000, beside
    )
    answer = make_plan(question)
    if plot is not None:
        draw(answer, plot)
    if as_json:
        print_json(answer.as_json())
        return
    console = Console()
    console.print(
        f"a step of the target takes {target.base * 1000:.1f} ms up to {target.knee:.0f} rows; "
        f"a block of {gamma} drafts settles {answer.tokens:.1f} tokens\n",
        highlight=False,
    )
    console.print(_by_rtt(answer))
    console.print()
    console.print(_capacity(answer, question), highlight=False)


def draw(answer: Plan, file: Path) -> None:
    """Draw time a token over the round trip, a line a policy.

    Raises:
        InvalidInput: Matplotlib is not there, or the file cannot be written or is of a kind it does not know.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput("plot", "needs Matplotlib", "run `pip install 'edgedraft[bench]'`") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    rtts = [row.rtt * 1000 for row in answer.rows]
    for name in _policies(answer):
        axes.plot(rtts, [row.seconds(name) * 1000 for row in answer.rows], marker="o", label=name)
    axes.set(xlabel="RTT, ms", ylabel="time a token, ms", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    try:
        if file.suffix == ".html":
            drawing = io.StringIO()
            figure.savefig(drawing, format="svg")
            page = f"<!doctype html><meta charset='utf-8'><title>edgedraft plan</title>{drawing.getvalue()}"
            file.write_text(page, encoding="utf-8")
        else:
            figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidInput("plot", f"{file} cannot be written ({error})", "use a .png, .svg, .pdf or .html") from error


def _milliseconds(text: str) -> Sequence[float]:
    try:
        return [float(number) / 1000 for number in text.split(",")]
    except ValueError as error:
        raise InvalidInput("rtt", f"is {text!r}", "write milliseconds, e.g. 20,50,100") from error


def _by_rtt(answer: Plan) -> Table:
    table = Table(title="ms a token, one client with the target to itself", title_justify="left", box=None)
    names = _policies(answer)
    for name in ("RTT", *names, "best", "tokens/s"):
        table.add_column(name, justify="right")
    for row in answer.rows:
        cells = {name: f"{row.seconds(name) * 1000:.1f}" for name in names}
        cells["sync"] += f" (γ {row.gamma})"
        table.add_row(f"{row.rtt * 1000:g}", *cells.values(), row.best, f"{1 / row.seconds(row.best):.0f}")
    return table


def _policies(answer: Plan) -> list[str]:
    """Those to show: a tree that covers nothing is a chain."""
    same = all(row.tree == row.chain for row in answer.rows)
    return [name for name in POLICIES if name != "tree" or not same]


def _capacity(answer: Plan, question: Question) -> Table:
    table = Table(title=f"clients of one target at {question.goal * 1000:g} ms a token", title_justify="left", box=None)
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_row("plain decoding", f"{answer.plain}")
    for name, served in (("drafter beside the target", answer.beside), ("drafters on the devices", answer.edge)):
        table.add_row(name, f"{served.clients} (γ {served.gamma})" if served.clients else "0")
    table.add_row(f"1 + γ·T_draft/T_verify, γ {question.gamma}", f"{answer.predicted:.2f} ×")
    pays = f"up to {answer.break_even * 1000:.0f} ms RTT" if answer.break_even > 0 else "at no RTT"
    table.add_row("synchronous drafting pays for one client", pays)
    return table
