"""`edgedraft`: models, generation and the demo, from the command line."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from edgedraft import __version__
from edgedraft.client import Client
from edgedraft.errors import EdgedraftError, InvalidInput
from edgedraft.generation import Generation
from edgedraft.prompt import Mode, Prompt, PromptLike
from edgedraft.sampling import SamplingParams
from edgedraft_apps.bench.cli import bench_app
from edgedraft_apps.demo import PROMPT, DemoSettings, answer
from edgedraft_apps.figures import figures
from edgedraft_apps.ledger_cli import ledger_app
from edgedraft_apps.models_cli import JsonOption, RegistryOption, SourceOption, models_app, print_json
from edgedraft_apps.plan_cli import plan
from edgedraft_apps.progress import ProgressBars
from edgedraft_apps.terminal import show
from edgedraft_models import Store, build_model, build_pair, default_home, load_registry


class _Group(TyperGroup):
    """Shows an error that is the project's or the system's as one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (EdgedraftError, OSError) as error:
            if ctx.params["debug"] or isinstance(error, BrokenPipeError):  # who read the output has had enough
                raise
            Console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
            raise typer.Exit(1) from error


class Engine(StrEnum):
    """What can run the demo's target."""

    EMBEDDED = "embedded"
    VLLM = "vllm"


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="One language model, run by a device and a cloud together. Start with `edgedraft demo`.",
)
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")
app.add_typer(ledger_app, name="ledger")
app.command()(plan)

PairOption = Annotated[str | None, typer.Option(help="Pair of `edgedraft models list`. [the default pair]")]
MaxTokensOption = Annotated[int, typer.Option(help="Tokens to generate at most.")]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy: the most probable token each time.")]
ModeOption = Annotated[
    Mode,
    typer.Option(
        help="sealed: the cloud sees public text and unsuspicious drafts. cloaked: it sees placeholders for what is "
        "personal. open: it sees all. local: it sees nothing, and the drafter answers alone."
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Fixes the draws at a temperature above 0.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def shared_options(
    context: typer.Context,
    home: Annotated[
        Path | None, typer.Option(help="Where models live. [$EDGEDRAFT_HOME, or the user's cache folder]")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of all commands; the only place that looks at the environment."""
    context.obj = Store(home.expanduser().absolute() if home else default_home(os.environ))


@app.command()
def demo(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="What to ask; what is in [[double brackets]] is private.")] = PROMPT,
    mode: ModeOption = Mode.SEALED,
    rtt: Annotated[float, typer.Option(help="Round trip to put between device and verifier, in milliseconds.")] = 0.0,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = None,
    pair: PairOption = None,
    engine: Annotated[Engine, typer.Option(help="What runs the target.")] = Engine.EMBEDDED,
    registry: RegistryOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the whole thing on this machine, everything real.

    Builds the pair the first time, starts a verifier as a separate process and answers a prompt over mutual TLS. The
    draft is grey at once, turns plain as it is verified, and is replaced where the target disagrees. Private parts of
    the prompt stay on the device; what the cloud sees instead stands beside it.
    """
    store: Store = context.obj
    console = Console(stderr=as_json)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    settings = DemoSettings(prompt, mode, sampling, rtt / 1000, engine.value)
    with ProgressBars(Console(stderr=True)) as progress:
        built = build_pair(store, load_registry(registry).pair(pair), source=source, progress=progress)
    generation = asyncio.run(answer(settings, built, store.home / "demo", console))
    assert generation.report is not None  # it has finished
    console.print()
    console.print(figures(generation.report))
    if as_json:
        print_json(_result(generation))


@app.command()
def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="One user message; - reads it from standard input.")],
    verifier: Annotated[str | None, typer.Option(help="host:port of a running verifier.")] = None,
    identity: Annotated[Path | None, typer.Option(help="Folder with key.pem, cert.pem and ca.pem.")] = None,
    mode: ModeOption = Mode.SEALED,
    public: Annotated[
        str, typer.Option(help="What the cloud may see beside the prompt, e.g. what to do with it; it comes first.")
    ] = "",
    marked: Annotated[
        bool, typer.Option("--marked", help="Only what is in [[double brackets]] is private, e.g. [[Ana Ríos|person]].")
    ] = False,
    show_view: Annotated[
        bool,
        typer.Option(
            "--show-view", help="Print what the cloud would see of the prompt; needs no verifier, sends nothing."
        ),
    ] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="Write all that leaves and comes to this new file, encrypted.")
    ] = None,
    drafter: Annotated[
        Path | None, typer.Option(help="The drafter's folder. [the pair's drafter, built if it is not yet]")
    ] = None,
    pair: PairOption = None,
    model: Annotated[str, typer.Option(help="Target to ask for. [the verifier's only one]")] = "",
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this probability; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many likeliest tokens; 0 is off.")] = 0,
    seed: SeedOption = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be given again.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the drafter. [the cores]")] = None,
    registry: RegistryOption = None,
    source: SourceOption = None,
    report: Annotated[bool, typer.Option("--report", help="Print the figures too, on standard error.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt with a verifier that runs elsewhere, or in mode local with the drafter alone.

    In mode sealed, the default, the prompt stays on this device, and only what `--public` says is seen by the cloud.

    Example: `edgedraft generate "Why is the sky blue?" --mode open --verifier verifier.example:7443 --identity ./me`
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if marked and public:
        raise InvalidInput("public", "and marked exclude each other", "mark what is private, or say what is public")
    asked: PromptLike = Prompt.marked(text) if marked else Prompt(public=public, private=text) if public else text
    if mode is Mode.SEALED and not (marked or public or show_view):
        typer.echo("note: the cloud sees nothing of this prompt; --public or --marked tells what it may see", err=True)
    sampling = SamplingParams(max_tokens, temperature, top_p, top_k, seed, tuple(stop or ()))
    folder = drafter
    if folder is None:
        chosen = load_registry(registry).pair(pair)
        with ProgressBars(Console(stderr=True)) as progress:
            folder = build_model(context.obj, chosen.drafter, source=source, progress=progress)

    async def run() -> Generation:
        if show_view:
            async with Client(folder, mode=Mode.LOCAL, threads=threads) as client:
                typer.echo(client.public_view(asked, mode).text)
            raise typer.Exit
        async with Client(
            folder, verifier=verifier, identity=identity, mode=mode, model=model, threads=threads, ledger=ledger
        ) as client:
            generation = client.generate(asked, sampling)
            if as_json:
                await generation
            else:
                await show(generation, Console())
            return generation

    generation = asyncio.run(run())
    assert generation.report is not None  # it has finished
    if as_json:
        print_json(_result(generation))
    if report:
        Console(stderr=True).print(figures(generation.report))


def main() -> None:
    """Run the command; Ctrl-C and SIGTERM end it in good order, with exit codes 130 and 143."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what the terminal's encoding lacks
    # gRPC's own lines on standard error are for its developers; what matters of them is in our errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    signal.signal(signal.SIGTERM, _leave)
    app()


def _leave(number: int, frame: Any) -> NoReturn:
    sys.exit(128 + number)


def _result(generation: Generation) -> dict[str, Any]:
    assert generation.report is not None
    assert generation.finish_reason is not None
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason.value,
        "report": asdict(generation.report),
    }
