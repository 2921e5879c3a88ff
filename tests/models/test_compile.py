"""Compiling: targets, shapes that the kernels cannot serve, linkers, and nothing left behind by a failure."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_artifact import write_weights

from edgedraft.errors import CompileError, ModelFormatError, ModelNotFound
from edgedraft.runtime.cpu import missing_features
from edgedraft.runtime.library import Library
from edgedraft.runtime.manifest import CONFIG, LIBRARY, ModelConfig
from edgedraft_models import compile as compiling
from edgedraft_models import targets
from edgedraft_models.compile import check_shape, compile_model, link
from edgedraft_models.targets import find_target


@pytest.fixture
def folder(tmp_path):
    return write_weights(tmp_path, "llama", "q0f16")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_compiled_folder_gains_the_library_alone_and_progress_goes_up(folder):
    before, told = names(folder), []
    compile_model(folder, target="x86-64-v3", progress=lambda stage, share: told.append(share))
    assert names(folder) == sorted([*before, LIBRARY])
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
    if not missing_features(find_target("x86-64-v3").features):
        Library(folder / LIBRARY, find_target("x86-64-v3").features, 1)


def test_native_needs_no_more_than_this_machine_has():
    assert missing_features(find_target("native").features) == []


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (targets._V3_FEATURES, targets._V3_FEATURES),
        (
            targets._V3_FEATURES + targets._AVX512_FEATURES,
            targets._V3_FEATURES + targets._AVX512_FEATURES,
        ),
        ((*targets._V3_FEATURES, "avx512f"), targets._V3_FEATURES),
    ],
)
def test_native_takes_wider_vectors_only_where_all_of_them_are_there(features, expected, monkeypatch):
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(targets, "_host_features", lambda: set(features))
    assert find_target("native").features == expected


def test_machines_that_cannot_be_served(monkeypatch):
    with pytest.raises(CompileError, match="'riscv' is not known; take native or x86-64-v3"):
        find_target("riscv")
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(targets, "_host_features", lambda: {"avx2", "fma"})
    with pytest.raises(CompileError, match="lacks bmi2, f16c, movbe"):
        find_target("native")
    monkeypatch.setattr(targets.platform, "machine", lambda: "riscv64")
    with pytest.raises(CompileError, match="Linux on riscv64 is not supported"):
        find_target("native")


@pytest.mark.parametrize(
    ("quantization", "changes", "message"),
    [
        ("q4f16_1", {"hidden_size": 96}, "hidden_size is 96; .* multiple of 64; build it as q0f16"),
        ("q4f16_1", {"intermediate_size": 100}, "intermediate_size is 100"),
        ("q4f16_1", {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16}, "head_dim is 96"),
        ("q0f16", {"head_dim": 24, "num_attention_heads": 4}, "head_dim is 24; .* multiple of 16"),
        ("q0f16", {"vocab_size": 1001}, "vocab_size is 1001; .* multiple of 8"),
    ],
)
def test_shapes_that_the_kernels_cannot_serve(quantization, changes, message, folder):
    data = json.loads((folder / CONFIG).read_text())
    data["quantization"] = quantization
    data["model_config"] |= changes
    (folder / CONFIG).write_text(json.dumps(data))
    with pytest.raises(CompileError, match=message):
        check_shape(ModelConfig.load(folder))
    with pytest.raises(CompileError, match=message):
        compile_model(folder)


def test_no_config_and_a_damaged_one(tmp_path):
    with pytest.raises(ModelNotFound):
        compile_model(tmp_path)
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(ModelFormatError):
        compile_model(tmp_path)


def test_without_a_linker_the_error_says_what_to_install_and_the_folder_stays_as_it_was(folder, monkeypatch):
    (folder / LIBRARY).write_bytes(b"the old one")
    before = names(folder)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match="install gcc or clang, or `pip install ziglang`"):
        compile_model(folder)
    assert names(folder) == before
    assert (folder / LIBRARY).read_bytes() == b"the old one"


def test_linkers_are_taken_in_order(monkeypatch):
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/bin/{name}" if name in ("clang", "ld") else None)
    assert compiling._linker() == ["/bin/clang"]
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: object())
    assert compiling._linker() == [sys.executable, "-m", "ziglang", "cc"]


@pytest.mark.parametrize("linker", ["cc", "ld"])
def test_a_linker_that_fails_is_quoted(linker, tmp_path, monkeypatch):
    path = shutil.which(linker)
    if path is None:
        pytest.skip(f"{linker} is not on this machine")
    monkeypatch.setattr(compiling, "_linker", lambda: [path])
    with pytest.raises(CompileError, match=r"could not link out\.so: .*none\.o"):
        link(tmp_path / "none.o", tmp_path / "out.so")


def test_a_linker_that_hangs_is_given_up(tmp_path, monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(compiling, "_linker", lambda: ["ld"])
    monkeypatch.setattr(compiling.subprocess, "run", hang)
    with pytest.raises(CompileError, match="did not finish within 120 seconds"):
        link(tmp_path / "a.o", tmp_path / "a.so")
