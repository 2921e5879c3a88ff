"""`edgedraft models`: list, fetch, build and inspect models."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table

from edgedraft_apps.progress import ProgressBars
from edgedraft_models import (
    ArtifactInfo,
    Build,
    ModelEntry,
    ModelInfo,
    PairEntry,
    Registry,
    Store,
    build_hf,
    build_model,
    build_pair,
    fetch,
    info,
    load_registry,
)

models_app = typer.Typer(no_args_is_help=True, help="List, fetch, build and inspect models.")


class Format(StrEnum):
    """What to make of a model."""

    COMPILED = "compiled"
    HF = "hf"


class Quantization(StrEnum):
    """Weights of a compiled model."""

    Q4F16_1 = "q4f16_1"
    Q0F16 = "q0f16"


RegistryOption = Annotated[
    Path | None, typer.Option("--registry", help="TOML file with models and pairs of your own, on top of the built-in.")
]
SourceOption = Annotated[
    str | None, typer.Option(help="Kind of source: wheels, hub or local. [the first that the registry names]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
_MODEL: Final = "A model of `models list`, an id of the Hugging Face hub, a .gguf file or a safetensors folder"


@models_app.command("list")
def list_models(context: typer.Context, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """Show the models and pairs that have names, and what of them is built here."""
    known = load_registry(registry)
    infos = [info(_store(context), model) for model in known.models.values()]
    if as_json:
        pairs = [_pair_json(pair) for pair in known.pairs.values()]
        print_json(
            {"default_pair": known.default_pair, "pairs": pairs, "models": [_model_json(each) for each in infos]}
        )
        return
    pairs_table = Table(Column("pair", no_wrap=True), "drafter", "target", box=None)
    for pair in known.pairs.values():
        name = f"{pair.name} (default)" if pair.name == known.default_pair else pair.name
        pairs_table.add_row(name, *(f"{build.model.name} {build.quantization}" for build in _builds(pair)))
    models_table = Table(Column("model", no_wrap=True), "licence", "from", "built here", box=None)
    for each in infos:
        built = [artifact.folder.name for artifact in each.artifacts if artifact.problem is None]
        sources = [source.kind for source in each.model.sources]
        models_table.add_row(each.model.name, each.model.licence, ", ".join(sources), ", ".join(built) or "-")
    Console().print(pairs_table, "", models_table)


@models_app.command("fetch")
def fetch_models(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help=f"A pair, or a model. {_MODEL}. [the default pair]")] = None,
    registry: RegistryOption = None,
    source: SourceOption = None,
) -> None:
    """Download the original files of a pair or a model and check them; prints where they are."""
    known = load_registry(registry)
    pair = _pair(known, name)
    entries = [build.model for build in _builds(pair)] if pair else [known.model(name or "")]
    with ProgressBars(Console(stderr=True)) as progress:
        paths = [fetch(_store(context), entry, source=source, progress=progress) for entry in _distinct(entries)]
    for path in paths:
        typer.echo(path)


@models_app.command("build")
def build_models(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help=f"A pair, or a model. {_MODEL}. [the default pair]")] = None,
    quantization: Annotated[
        Quantization, typer.Option(help="Weights of a single model; a pair has its own.")
    ] = Quantization.Q4F16_1,
    drafter: Annotated[str | None, typer.Option(help=f"Drafter of a pair of your own. {_MODEL}.")] = None,
    target: Annotated[str | None, typer.Option(help="Target of a pair of your own, likewise.")] = None,
    platform: Annotated[str, typer.Option(help="What to compile for: native or x86-64-v3.")] = "native",
    layout: Annotated[
        Format, typer.Option("--format", help="hf: only float16 safetensors, which vLLM and transformers load.")
    ] = Format.COMPILED,
    registry: RegistryOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch, convert, quantize, compile and check, as far as it is not done already; prints the folders.

    Without a name it makes the default pair. `--drafter` and `--target` together make a pair of your own.
    """
    if (drafter is None) != (target is None) or (name is not None and drafter is not None):
        raise typer.BadParameter("give both, and no name", param_hint="--drafter, --target")
    known, store = load_registry(registry), _store(context)
    pair = known.own_pair(drafter, target) if drafter and target else _pair(known, name)
    with ProgressBars(Console(stderr=True)) as progress:
        if layout is Format.HF:
            entries = _distinct([build.model for build in _builds(pair)] if pair else [known.model(name or "")])
            made = {entry.name: build_hf(store, entry, source=source, progress=progress) for entry in entries}
        elif pair:
            made = asdict(build_pair(store, pair, target=platform, source=source, progress=progress))
        else:
            build = Build(known.model(name or ""), quantization)
            made = {build.model.name: build_model(store, build, target=platform, source=source, progress=progress)}
    if as_json:
        print_json({key: str(folder) for key, folder in made.items()})
    else:
        for key, folder in made.items():
            typer.echo(f"{key}: {folder}")


@models_app.command("info")
def model_info(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=f"{_MODEL}.")],
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what there is of a model, where, and whether it can be used."""
    found = info(_store(context), load_registry(registry).model(model))
    if as_json:
        print_json(_model_json(found))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    for name, value in _facts(found):
        table.add_row(name, value)
    Console().print(table, markup=False)


def print_json(value: Any) -> None:
    """Print a value for a script."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


# ------------------------------------------------------------ inside


def _store(context: typer.Context) -> Store:
    store = context.obj
    assert isinstance(store, Store)
    return store


def _pair(known: Registry, name: str | None) -> PairEntry | None:
    """The pair of a name, if it is a pair's."""
    return known.pair(name) if name is None or name in known.pairs else None


def _builds(pair: PairEntry) -> tuple[Build, Build]:
    return pair.drafter, pair.target


def _distinct(entries: list[ModelEntry]) -> list[ModelEntry]:
    return list({entry.name: entry for entry in entries}.values())


def _facts(found: ModelInfo) -> list[tuple[str, str]]:
    model = found.model
    return [
        ("model", model.name),
        ("about", model.description or "-"),
        ("licence", model.licence),
        ("sources", ", ".join(source.kind for source in model.sources)),
        ("downloads", decimal(found.downloads) if found.downloads else "none in the store"),
        ("safetensors", str(found.hf or "not made")),
        *(
            (each.folder.name, each.problem or f"ready, {decimal(each.nbytes)} in {each.folder}")
            for each in found.artifacts
        ),
    ]


def _model_json(found: ModelInfo) -> dict[str, Any]:
    model = found.model
    return {
        "name": model.name,
        "description": model.description,
        "licence": model.licence,
        "architecture": model.architecture,
        "sources": [source.kind for source in model.sources],
        "downloaded_bytes": found.downloads,
        "hf": str(found.hf) if found.hf else None,
        "origin": dict(found.provenance.origin) if found.provenance else None,
        "artifacts": [_artifact_json(each) for each in found.artifacts],
    }


def _artifact_json(found: ArtifactInfo) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "folder": str(found.folder),
        "bytes": found.nbytes,
        "problem": found.problem,
        "quantization": manifest.quantization if manifest else None,
        "target": manifest.target if manifest else None,
        "model_fingerprint": manifest.model_fingerprint if manifest else None,
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint if manifest else None,
    }


def _pair_json(pair: PairEntry) -> dict[str, Any]:
    drafter, target = ({"model": build.model.name, "quantization": build.quantization} for build in _builds(pair))
    return {"name": pair.name, "description": pair.description, "drafter": drafter, "target": target}
