"""Artifact weights: names, shapes and bytes as MLC-LLM's tools and TVM's own loader know them."""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm.contrib import tvmjs

from edgedraft.errors import InvalidInput, ModelFormatError
from edgedraft.runtime.manifest import ModelConfig
from edgedraft_models.convert import convert_weights
from edgedraft_models.hf_source import convert_directory
from edgedraft_models.progress import silent
from edgedraft_models.quantize import dequantize
from edgedraft_models.tensor_cache import TensorCacheWriter

# hidden 128, inner 192, 4 heads and 2 key-value heads of 32, vocabulary 320: [out, in] of each matrix
LLAMA_LAYER = {
    "self_attn.qkv_proj": (256, 128),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_up_proj": (384, 128),
    "mlp.down_proj": (128, 192),
}
QWEN2_LAYER = {"self_attn.c_attn": (256, 128)} | {k: v for k, v in LLAMA_LAYER.items() if "qkv" not in k}
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")


@pytest.fixture
def artifact(tmp_path: Path, make_tiny: Callable[..., Any]) -> Callable[[str, str], Path]:
    def make(model_type: str, quantization: str) -> Path:
        hf, folder = tmp_path / "hf", tmp_path / "artifact"
        hf.mkdir()
        folder.mkdir()
        convert_directory(make_tiny(model_type).write_hf(tmp_path / "source"), hf, silent, "")
        convert_weights(hf, folder, quantization, silent, "")
        return folder

    return make


def load_with_tvm(folder: Path) -> dict[str, NDArray[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the loader leaves its files to the garbage collector
        tensors, _ = tvmjs.load_tensor_cache(str(folder), tvm.cpu())
    return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_names_shapes_and_types_in_16_bits(model_type: str, artifact: Callable[[str, str], Path]) -> None:
    tensors = load_with_tvm(artifact(model_type, "q0f16"))
    expected = {"model.embed_tokens.weight": (320, 128), "model.norm.weight": (128,)}
    if model_type == "qwen2":
        expected["lm_head.weight"] = (320, 128)
    for layer in (0, 1):
        for name, shape in (LLAMA_LAYER if model_type == "llama" else QWEN2_LAYER).items():
            expected[f"model.layers.{layer}.{name}.weight"] = shape
        if model_type == "qwen2":
            expected[f"model.layers.{layer}.self_attn.c_attn.bias"] = (256,)
        expected |= {f"model.layers.{layer}.{norm}": (128,) for norm in NORMS}
    assert {name: tensor.shape for name, tensor in tensors.items()} == expected
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float16)}


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_names_shapes_and_types_in_4_bits(model_type: str, artifact: Callable[[str, str], Path]) -> None:
    tensors = load_with_tvm(artifact(model_type, "q4f16_1"))
    matrices = {"model.embed_tokens": (320, 128)}
    if model_type == "qwen2":
        matrices["lm_head"] = (320, 128)
    for layer in (0, 1):
        for name, shape in (LLAMA_LAYER if model_type == "llama" else QWEN2_LAYER).items():
            matrices[f"model.layers.{layer}.{name}"] = shape
    for name, (rows, columns) in matrices.items():
        values, scales = tensors.pop(f"{name}.q_weight"), tensors.pop(f"{name}.q_scale")
        assert (values.shape, values.dtype) == ((rows, columns // 8), np.dtype(np.uint32))
        assert (scales.shape, scales.dtype) == ((rows, columns // 32), np.dtype(np.float16))
    assert all(tensor.ndim == 1 and tensor.dtype == np.float16 for tensor in tensors.values())
    assert len(tensors) == 5 + (2 if model_type == "qwen2" else 0)


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_values_are_the_models(
    model_type: str, artifact: Callable[[str, str], Path], make_tiny: Callable[..., Any]
) -> None:
    source = make_tiny(model_type).weights
    stored = load_with_tvm(artifact(model_type, "q4f16_1"))
    qkv = "qkv_proj" if model_type == "llama" else "c_attn"
    for ours, parts in (
        (f"self_attn.{qkv}", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
        ("mlp.down_proj", ("mlp.down_proj",)),
    ):
        name = f"model.layers.1.{ours}"
        exact = np.concatenate([source[f"model.layers.1.{part}.weight"] for part in parts])
        scales = stored[f"{name}.q_scale"]
        step = np.repeat(scales.astype(np.float32), 32, axis=1)
        assert (np.abs(dequantize(stored[f"{name}.q_weight"], scales) - exact) <= 0.51 * step).all()
    if model_type == "qwen2":
        bias = np.concatenate([source[f"model.layers.1.self_attn.{part}_proj.bias"] for part in "qkv"])
        assert np.array_equal(stored["model.layers.1.self_attn.c_attn.bias"], bias.astype(np.float16))


def test_every_tensor_is_aligned_and_every_shard_hashed(artifact: Callable[[str, str], Path]) -> None:
    folder = artifact("qwen2", "q4f16_1")
    index = json.loads((folder / "tensor-cache.json").read_text())
    for shard in index["records"]:
        data = (folder / shard["dataPath"]).read_bytes()
        assert len(data) == shard["nbytes"]
        assert hashlib.md5(data, usedforsecurity=False).hexdigest() == shard["md5sum"]
        assert all(record["byteOffset"] % 64 == 0 for record in shard["records"])


def test_large_tensors_start_shards_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedraft_models.tensor_cache._SHARD_LIMIT", 256)
    tensors = {f"t{i}": np.full(size, i, np.float16) for i, size in enumerate((100, 20, 300, 10, 10))}
    with TensorCacheWriter(tmp_path) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    index = json.loads((tmp_path / "tensor-cache.json").read_text())
    assert [[record["name"] for record in shard["records"]] for shard in index["records"]] == [
        ["t0"],
        ["t1"],
        ["t2"],
        ["t3", "t4"],
    ]
    assert all(np.array_equal(load_with_tvm(tmp_path)[name], tensor) for name, tensor in tensors.items())


def test_an_error_leaves_no_index(tmp_path: Path) -> None:
    def interrupted() -> None:
        with TensorCacheWriter(tmp_path) as writer:
            writer.add("t", np.zeros(4, np.float16))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / "tensor-cache.json").exists()


@pytest.mark.parametrize(("model_type", "theta"), [("llama", "position_embedding_base"), ("qwen2", "rope_theta")])
def test_config_has_mlcs_fields(model_type: str, theta: str, artifact: Callable[[str, str], Path]) -> None:
    folder = artifact(model_type, "q4f16_1")
    data = json.loads((folder / "mlc-chat-config.json").read_text())
    assert data["model_type"] == model_type
    assert data["quantization"] == "q4f16_1"
    assert data["model_config"][theta] == 10000.0
    assert data["eos_token_id"] == [258, 256]
    assert (data["vocab_size"], data["context_window_size"]) == (320, 512)
    assert all((folder / name).is_file() for name in data["tokenizer_files"])
    shape = ModelConfig.load(folder)
    assert (shape.head_dim, shape.num_key_value_heads, shape.rope_theta) == (32, 2, 10000.0)
    assert shape.tie_word_embeddings == (model_type == "llama")


def test_unknown_quantization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"q3.*take one of q4f16_1, q0f16"):
        convert_weights(tmp_path, tmp_path, "q3", silent, "")


def test_width_that_groups_do_not_divide_is_refused(tmp_path: Path, make_tiny: Callable[..., Any]) -> None:
    hf = tmp_path / "hf"
    hf.mkdir()
    convert_directory(make_tiny(intermediate_size=200).write_hf(tmp_path / "source"), hf, silent, "")
    with pytest.raises(ModelFormatError, match=r"200 inputs.*multiple of 32; build it as q0f16"):
        convert_weights(hf, tmp_path, "q4f16_1", silent, "")
