"""The build: what it makes, what it does not do twice, and that an error or Ctrl-C leaves what was there."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedraft.errors import CompileError, DiskFull, InvalidInput, ModelFormatError, ModelNotFound
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed
from edgedraft.runtime.manifest import Manifest
from edgedraft.text import TextCodec
from edgedraft_models import (
    Build,
    ModelEntry,
    PairEntry,
    Registry,
    Store,
    build_hf,
    build_model,
    build_pair,
    info,
    load_registry,
)
from edgedraft_models.reference import Reference


class FakeCache:
    def new_sequence(self) -> int:
        return 0


class FakeModel:
    """Computes with the reference instead of a compiled library, off by `error`."""

    error = 0.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new_cache(self, tokens: int) -> FakeCache:
        return FakeCache()

    def forward(self, cache: FakeCache, feeds: Sequence[Feed], logits: str) -> Any:
        return Reference.from_artifact(self.folder).logits(feeds[0].tokens) + np.float32(self.error)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that makes no library; lists what was compiled."""
    done: list[str] = []

    def compile_model(folder: Path, *, target: str, progress: Callable[[str, float], None]) -> None:
        progress("code", 0.5)
        (folder / "model.so").write_bytes(b"library")
        progress("done", 1.0)
        done.append(json.loads((folder / "mlc-chat-config.json").read_text())["quantization"])

    monkeypatch.setattr("edgedraft_models.compile.compile_model", compile_model)
    monkeypatch.setattr(CompiledModel, "load", FakeModel)
    return done


@pytest.fixture
def registry() -> Registry:
    return load_registry()


@pytest.fixture
def build(tmp_path: Path, registry: Registry, make_tiny: Callable[..., Any]) -> Build:
    path = make_tiny().write_gguf(tmp_path / "tiny.gguf")
    return Build(registry.model(str(path)), "q4f16_1")


def state(home: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in home.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(home).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_artifact_folder_is_complete_and_says_what_it_is(store: Store, build: Build, compiled: list[str]) -> None:
    reports: list[tuple[str, int, int, str]] = []
    folder = build_model(store, build, progress=lambda *report: reports.append(report))
    assert folder == store.home / "models" / build.model.name / "q4f16_1-native"
    manifest = Manifest.load(folder)
    manifest.verify(folder)
    assert {path.name for path in folder.iterdir()} == {*manifest.files, "manifest.json"}
    assert {"model.so", "mlc-chat-config.json", "tensor-cache.json", "tokenizer.json"} <= set(manifest.files)
    assert (manifest.model, manifest.architecture, manifest.quantization) == (build.model.name, "llama", "q4f16_1")
    assert manifest.licence == "unknown"
    assert manifest.tokenizer_fingerprint == TextCodec.load(folder).fingerprint
    stages = list(dict.fromkeys(stage for stage, *_ in reports))
    name = build.model.name
    assert stages == [f"convert {name}", *(f"{verb} {name} q4f16_1" for verb in ("quantize", "compile", "check"))]
    assert all(0 <= done <= total for _, done, total, _ in reports)
    assert {stage for stage, done, total, _ in reports if done == total} == set(stages)


def test_nothing_is_done_twice(store: Store, build: Build, compiled: list[str]) -> None:
    build_model(store, build)
    before = state(store.home)
    reports: list[str] = []
    build_model(store, build, progress=lambda stage, *_: reports.append(stage))
    assert reports == []
    assert compiled == ["q4f16_1"]
    assert state(store.home) == before


def test_a_changed_model_is_built_again(
    store: Store, build: Build, compiled: list[str], tmp_path: Path, make_tiny: Callable[..., Any]
) -> None:
    first = Manifest.load(build_model(store, build))
    model = make_tiny()
    model.weights["model.norm.weight"] *= 2
    model.write_gguf(tmp_path / "tiny.gguf")
    second = Manifest.load(build_model(store, build))
    assert second.model_fingerprint != first.model_fingerprint
    assert second.tokenizer_fingerprint == first.tokenizer_fingerprint
    assert len(compiled) == 2


def test_newer_code_builds_again(
    store: Store, build: Build, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_model(store, build)
    monkeypatch.setattr("edgedraft_models.build._code_hash", lambda modules: "newer")
    problem = info(store, build.model).artifacts[0].problem
    assert problem is not None
    assert "built by another version" in problem
    assert build_model(store, build) == folder
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", ["manifest.json gone", "manifest.json garbage", "older schema"])
def test_a_damaged_folder_is_built_again(store: Store, build: Build, compiled: list[str], damage: str) -> None:
    manifest = build_model(store, build) / "manifest.json"
    if damage == "manifest.json gone":
        manifest.unlink()
    else:
        manifest.write_text("{" if "garbage" in damage else '{"schema": 0}')
    Manifest.load(build_model(store, build))
    assert len(compiled) == 2


@pytest.mark.parametrize("size", [None, 10])
@pytest.mark.parametrize("name", ["model.so", "params_shard_0.bin", "mlc-chat-config.json", "tokenizer.json"])
def test_a_file_that_is_missing_or_cut_short_is_built_again(
    store: Store, build: Build, compiled: list[str], name: str, size: int | None
) -> None:
    folder = build_model(store, build)
    damage(folder / name, size)
    assert name.split(".")[0] in str(info(store, build.model).artifacts[0].problem)
    build_model(store, build)
    Manifest.load(folder).verify(folder)
    assert info(store, build.model).artifacts[0].problem is None


@pytest.mark.parametrize("size", [None, 10])
def test_safetensors_that_are_missing_or_cut_short_are_made_again(
    store: Store, build: Build, compiled: list[str], size: int | None
) -> None:
    weights = build_hf(store, build.model) / "model.safetensors"
    before = weights.read_bytes()
    damage(weights, size)
    assert info(store, build.model).hf is None
    build_model(store, build)
    assert weights.read_bytes() == before


def damage(path: Path, size: int | None) -> None:
    """Cut a file short, or remove it."""
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-size])


def test_precisions_have_fingerprints_of_their_own(store: Store, build: Build, compiled: list[str]) -> None:
    prints = {
        Manifest.load(build_model(store, replace(build, quantization=kind))).model_fingerprint
        for kind in ("q4f16_1", "q0f16")
    }
    assert len(prints) == 2


def test_a_folder_from_a_better_machine_is_built_again(store: Store, build: Build, compiled: list[str]) -> None:
    folder = build_model(store, build)
    replace(Manifest.load(folder), features=("no-such-feature",)).save(folder)
    assert "no-such-feature" not in Manifest.load(build_model(store, build)).features
    assert len(compiled) == 2


@pytest.mark.parametrize("stage", ["convert", "quantize", "compile", "check"])
def test_ctrl_c_keeps_what_was_there(
    store: Store, build: Build, compiled: list[str], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    build_model(store, build)
    before = state(store.home)
    monkeypatch.setattr("edgedraft_models.build._code_hash", lambda modules: "newer")

    def interrupt(what: str, *_: object) -> None:
        if what.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_model(store, build, progress=interrupt)
    after = state(store.home)
    assert {name for name in after if ".part" in name or ".old" in name} == set()
    artifact = {name: found for name, found in before.items() if "/q4f16_1-native/" in name}
    assert artifact.items() <= after.items()


@pytest.mark.parametrize("error", [1.0, float("nan")])
def test_a_library_that_computes_something_else_is_not_kept(
    store: Store, build: Build, compiled: list[str], monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    monkeypatch.setattr(FakeModel, "error", error)
    with pytest.raises(CompileError, match="differ from the reference by"):
        build_model(store, build)
    assert not store.artifact(build.model.name, "q4f16_1", "native").exists()


def test_other_targets_cannot_be_run_and_are_not(
    store: Store, build: Build, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "error", 1.0)
    assert build_model(store, build, target="x86-64-v3").name == "q4f16_1-x86-64-v3"


def test_unknown_quantization_is_refused_before_anything(store: Store, build: Build) -> None:
    with pytest.raises(InvalidInput, match="take one of q4f16_1, q0f16"):
        build_model(store, replace(build, quantization="q3"))
    assert not store.home.exists()


def test_too_little_room_for_the_weights(
    store: Store, build: Build, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_hf(store, build.model)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DiskFull, match="are free"):
        build_model(store, build)
    assert compiled == []


@pytest.mark.parametrize(("model_type", "quantization"), [("llama", "q4f16_1"), ("qwen2", "q0f16")])
def test_real_compiler_and_runtime_compute_what_the_reference_does(
    store: Store, registry: Registry, tmp_path: Path, make_tiny: Callable[..., Any], model_type: str, quantization: str
) -> None:
    source = make_tiny(model_type).write_hf(tmp_path / "source")
    folder = build_model(store, Build(registry.model(str(source)), quantization))
    tokens = [3, 1, 4, 1, 5, 256, 300]
    model = CompiledModel.load(folder, threads=1, verify=True)
    cache = model.new_cache(16)
    found = model.forward(cache, [Feed(cache.new_sequence(), tokens)], logits="all")
    np.testing.assert_allclose(found, Reference.from_artifact(folder).logits(tokens), atol=1e-3)


def test_pair_is_built_of_one_tokenizer(
    store: Store, registry: Registry, compiled: list[str], tmp_path: Path, make_tiny: Callable[..., Any]
) -> None:
    small = make_tiny("llama").write_gguf(tmp_path / "small.gguf")
    large = make_tiny("llama", num_hidden_layers=3).write_hf(tmp_path / "large")
    # The hub's form of the tokenizer may be laid out otherwise.
    tokenizer = json.loads((large / "tokenizer.json").read_text())
    (large / "tokenizer.json").write_text(json.dumps(tokenizer, indent=4, sort_keys=True))
    built = build_pair(store, registry.own_pair(str(small), str(large)))
    assert (built.drafter.name, built.target.name) == ("q4f16_1-native", "q0f16-native")
    assert compiled == ["q4f16_1", "q0f16"]


def test_pair_of_two_tokenizers_is_refused(
    store: Store, registry: Registry, compiled: list[str], tmp_path: Path, make_tiny: Callable[..., Any]
) -> None:
    drafter = make_tiny("llama").write_gguf(tmp_path / "a.gguf")
    target = make_tiny("qwen2").write_gguf(tmp_path / "b.gguf")
    pair: PairEntry = registry.own_pair(str(drafter), str(target))
    with pytest.raises(ModelFormatError, match=r"a-.* cannot draft for b-.*: their tokenizers differ"):
        build_pair(store, pair)


def test_registry_and_files_must_agree_on_the_architecture(store: Store, build: Build) -> None:
    with pytest.raises(ModelFormatError, match="is a llama model and the registry says qwen2"):
        build_hf(store, replace(build.model, architecture="qwen2"))
    assert not store.hf(build.model.name).exists()


def test_tokenizer_of_another_model_is_refused(
    store: Store, registry: Registry, tmp_path: Path, make_tiny: Callable[..., Any]
) -> None:
    folder = make_tiny(vocab_size=264).write_hf(tmp_path / "m")
    with pytest.raises(ModelFormatError, match=r"has token 269, the model has 264 tokens"):
        build_hf(store, registry.model(str(folder)))


def test_tokenizer_that_is_damaged_is_refused(
    store: Store, registry: Registry, tmp_path: Path, make_tiny: Callable[..., Any]
) -> None:
    folder = make_tiny().write_hf(tmp_path / "m")
    (folder / "tokenizer.json").write_text('{"model": {"type": "none"}}')
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json cannot be read"):
        build_hf(store, registry.model(str(folder)))


def test_model_that_went_away(store: Store, build: Build, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").unlink()
    with pytest.raises(ModelNotFound, match=r"tiny\.gguf is not there"):
        build_hf(store, build.model)


def test_info_before_and_after(store: Store, build: Build, compiled: list[str]) -> None:
    empty = info(store, build.model)
    assert (empty.hf, empty.provenance, empty.artifacts, empty.downloads) == (None, None, (), 0)
    assert not store.home.exists()
    folder = build_model(store, build)
    (store.model(build.model.name) / "q0f16-native").mkdir()
    found = info(store, build.model)
    assert found.hf == store.hf(build.model.name)
    assert found.provenance is not None
    assert found.provenance.origin["kind"] == "local"
    half, whole = found.artifacts
    assert whole.folder == folder
    assert whole.problem is None
    assert whole.nbytes == sum(path.stat().st_size for path in folder.iterdir())
    assert half.manifest is None
    assert "half made" in str(half.problem)


def test_the_source_used_before_is_kept_unless_one_is_asked_for(
    store: Store, registry: Registry, tmp_path: Path, make_tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"first": "llama", "second": "qwen2"}
    sources = tuple(
        replace(registry.model(str(make_tiny(kinds[kind]).write_hf(tmp_path / kind))).source(), kind=kind)
        for kind in kinds
    )
    model = ModelEntry("m", sources)

    def made(source: str | None) -> str:
        folder = build_hf(store, model, source=source)
        return str(json.loads((folder / "config.json").read_text())["model_type"])

    assert made(None) == "llama"
    assert made("second") == "qwen2"
    assert made(None) == "qwen2"
    monkeypatch.setattr("edgedraft_models.build._code_hash", lambda modules: "newer")
    assert made(None) == "qwen2"
    assert made("first") == "llama"
