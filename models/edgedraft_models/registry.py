"""The names of models and pairs, and where each model comes from."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from edgedraft.errors import InvalidInput, ModelNotFound
from edgedraft.runtime.manifest import ARCHITECTURES, QUANTIZATIONS
from edgedraft_models.sources import HubSource, LocalSource, Source, WheelSource

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_Value = TypeVar("_Value", str, int)


@dataclass(frozen=True)
class ModelEntry:
    """A model.

    Attributes:
        name: Name of its folder in the store.
        sources: Where it can be had; the first is taken unless another kind is asked for.
        licence: An SPDX expression, or `unknown`.
        architecture: `llama` or `qwen2`, or None where only the files can tell.
        description: One line.
    """

    name: str
    sources: tuple[Source, ...]
    licence: str = "unknown"
    architecture: str | None = None
    description: str = ""

    def source(self, kind: str | None = None) -> Source:
        """The source of a kind, or the first.

        Raises:
            InvalidInput: The model has no such source.
        """
        for source in self.sources:
            if kind in (None, source.kind):
                return source
        kinds = ", ".join(source.kind for source in self.sources)
        raise InvalidInput("source", f"{self.name} cannot be had from {kind!r}", f"take one of: {kinds}")


@dataclass(frozen=True)
class Build:
    """A model in one quantization."""

    model: ModelEntry
    quantization: str


@dataclass(frozen=True)
class PairEntry:
    """A drafter and the target that it drafts for."""

    name: str
    drafter: Build
    target: Build
    description: str = ""


@dataclass(frozen=True)
class Registry:
    """Models and pairs by name."""

    models: Mapping[str, ModelEntry]
    pairs: Mapping[str, PairEntry]
    default_pair: str

    def model(self, reference: str) -> ModelEntry:
        """Find a model.

        Args:
            reference: A name in the registry, a path to a .gguf file or a safetensors directory, or an id on the
                Hugging Face hub (`owner/name`).

        Raises:
            ModelNotFound: It is none of these.
        """
        if reference in self.models:
            return self.models[reference]
        path = Path(reference).expanduser()
        if reference and path.exists():
            path = path.resolve()
            # Two directories of one name must not share a folder of the store.
            mark = hashlib.sha256(str(path).encode()).hexdigest()[:8]
            return ModelEntry(f"{_slug(path.stem if path.is_file() else path.name)}-{mark}", (LocalSource(path),))
        if _HUB_ID.fullmatch(reference) and not reference.endswith(".gguf"):
            return ModelEntry(_slug(reference.replace("/", "--")), (HubSource(reference),))
        raise ModelNotFound(
            f"{reference!r} is no model of the registry ({', '.join(self.models)}), no file or directory that is there "
            "and no id of the Hugging Face hub (owner/name)"
        )

    def pair(self, name: str | None = None) -> PairEntry:
        """Find a pair by name, or the default one.

        Raises:
            ModelNotFound: There is no pair of that name.
        """
        wanted = self.default_pair if name is None else name
        if wanted not in self.pairs:
            raise ModelNotFound(f"pair {wanted!r} is not in the registry; it has {', '.join(self.pairs)}")
        return self.pairs[wanted]

    def own_pair(self, drafter: str, target: str) -> PairEntry:
        """Make a pair of two references (see `model`), the drafter in 4 bits and the target in 16."""
        drafter_build, target_build = Build(self.model(drafter), "q4f16_1"), Build(self.model(target), "q0f16")
        return PairEntry(f"{drafter_build.model.name}--{target_build.model.name}", drafter_build, target_build)


def load_registry(own: Path | None = None) -> Registry:
    """Read the registry that comes with the package, and a user's own on top of it.

    Args:
        own: A TOML file in the same form; its models and pairs are added, or replace those of the same name.

    Raises:
        InvalidInput: The user's file cannot be read or a field of it is wrong.
    """
    built_in = files("edgedraft_models").joinpath("registry.toml").read_text(encoding="utf-8")
    data = tomllib.loads(built_in)
    if own is not None:
        try:
            added = tomllib.loads(own.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInput(
                str(own), f"cannot be read as TOML ({error})", "mend the file or name another"
            ) from error
        data = {
            "models": {**data["models"], **_Table(added, str(own)).mapping("models")},
            "pairs": {**data["pairs"], **_Table(added, str(own)).mapping("pairs")},
            "default_pair": added.get("default_pair", data["default_pair"]),
        }
    return _parse(_Table(data, str(own or "registry.toml")))


class _Table:
    """A TOML table that knows its place, so that errors can name it."""

    def __init__(self, data: Mapping[str, Any], place: str) -> None:
        self.data = data
        self.place = place

    def get(self, field: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        value = self.data.get(field, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidInput(f"{self.place}: {field}", f"is {value!r}", f"give a {kind.__name__}")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        value = self.data.get(field, {})
        if not isinstance(value, dict):
            raise InvalidInput(f"{self.place}: {field}", f"is {value!r}", f"make it a table, [{field}.name]")
        return value

    def tables(self, field: str) -> Iterator[tuple[str, _Table]]:
        for name, value in self.mapping(field).items():
            place = f"{self.place}: {field}.{name}"
            if not _NAME.fullmatch(name):
                raise InvalidInput(place, "has a name that cannot be a folder's", "use a-z, 0-9, '.', '_' and '-'")
            if not isinstance(value, dict):
                raise InvalidInput(place, f"is {value!r}", "make it a table")
            yield name, _Table(value, place)

    def one_of(self, field: str, choices: tuple[str, ...]) -> str:
        value = self.get(field, str)
        if value not in choices:
            raise InvalidInput(f"{self.place}: {field}", f"is {value!r}", f"take one of {', '.join(choices)}")
        return value


def _parse(root: _Table) -> Registry:
    models = {name: _model(name, table) for name, table in root.tables("models")}
    pairs = {
        name: PairEntry(
            name=name,
            drafter=_build(_Table(table.mapping("drafter"), f"{table.place}.drafter"), models),
            target=_build(_Table(table.mapping("target"), f"{table.place}.target"), models),
            description=table.get("description", str, ""),
        )
        for name, table in root.tables("pairs")
    }
    return Registry(models, pairs, default_pair=root.one_of("default_pair", tuple(pairs)))


def _model(name: str, table: _Table) -> ModelEntry:
    sources = table.data.get("sources")
    if not isinstance(sources, list) or not sources or not all(isinstance(source, dict) for source in sources):
        raise InvalidInput(f"{table.place}: sources", f"is {sources!r}", "give at least one [[models.name.sources]]")
    return ModelEntry(
        name=name,
        sources=tuple(_source(_Table(data, f"{table.place}.sources[{i}]")) for i, data in enumerate(sources)),
        licence=table.get("licence", str, "unknown"),
        architecture=table.one_of("architecture", ARCHITECTURES),
        description=table.get("description", str, ""),
    )


def _source(table: _Table) -> Source:
    kind = table.one_of("kind", ("wheels", "hub", "local"))
    if kind == "hub":
        return HubSource(table.get("repository", str), table.get("revision", str, "main"))
    if kind == "local":
        return LocalSource(Path(table.get("path", str)).expanduser().absolute())
    source = WheelSource(
        requirement=table.get("requirement", str),
        member=table.get("member", str),
        parts=table.get("parts", int),
        file=table.get("file", str),
        size=table.get("size", int),
        sha256=table.get("sha256", str),
    )
    if source.parts < 1 or source.size < 1:
        raise InvalidInput(table.place, f"has {source.parts} parts and {source.size} bytes", "give positive numbers")
    if not _SHA256.fullmatch(source.sha256):
        raise InvalidInput(f"{table.place}: sha256", f"is {source.sha256!r}", "give 64 lowercase hex digits")
    if Path(source.file).name != source.file:
        raise InvalidInput(f"{table.place}: file", f"is {source.file!r}", "give a plain file name")
    if source.requirement.startswith("-"):
        raise InvalidInput(f"{table.place}: requirement", f"is {source.requirement!r}", "give a package, not an option")
    for field in ("requirement", "member"):
        try:
            getattr(source, field).format(part=1)
        except (LookupError, ValueError, AttributeError) as error:
            cure = "use {part} or {part:02} for the number, and no other braces"
            raise InvalidInput(f"{table.place}: {field}", f"is {getattr(source, field)!r}", cure) from error
    return source


def _build(table: _Table, models: Mapping[str, ModelEntry]) -> Build:
    return Build(models[table.one_of("model", tuple(models))], table.one_of("quantization", QUANTIZATIONS))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:80] or "model"
