"""GGUF files become the same model in Hugging Face's layout, or are refused with a reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgedraft.errors import ModelFormatError
from edgedraft_models.gguf_source import convert_gguf
from edgedraft_models.hf_config import load_hf_config
from edgedraft_models.progress import silent
from edgedraft_models.reference import Reference
from edgedraft_models.safetensors_file import SafetensorsFile


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_weights_are_the_models(model_type: str, tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny(model_type)
    convert_gguf(model.write_gguf(tmp_path / "m.gguf"), hf, silent, "")
    file = SafetensorsFile(hf / "model.safetensors")
    assert sorted(file.names()) == sorted(model.weights)
    for name, tensor in model.weights.items():
        assert np.array_equal(file.read(name), tensor), name


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_config_is_the_models(model_type: str, tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny(model_type, rms_norm_eps=1e-5)
    convert_gguf(model.write_gguf(tmp_path / "m.gguf"), hf, silent, "")
    config = json.loads((hf / "config.json").read_text())
    for field, value in model.config.items():
        if field not in ("torch_dtype", "eos_token_id"):
            assert config[field] == value, field
    assert config["torch_dtype"] == "float16"
    assert config["head_dim"] == 32
    assert load_hf_config(hf).eos_token_ids == (258, 256)
    tokenizer_config = json.loads((hf / "tokenizer_config.json").read_text())
    assert tokenizer_config["eos_token"] == "<|im_end|>"
    assert "add_generation_prompt" in tokenizer_config["chat_template"]


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16", "BF16"])
def test_quantized_weights_are_dequantized(kind: str, tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny("llama")
    convert_gguf(model.write_gguf(tmp_path / "m.gguf", quantize=kind), hf, silent, "")
    file = SafetensorsFile(hf / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    type_ = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(model.weights[name], type_), type_).astype(np.float16)
    assert np.array_equal(file.read(name), expected)
    assert np.abs(file.read(name) - model.weights[name]).max() < 0.03


def test_both_layouts_compute_the_same(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    """The rotary embedding of the two formats differs; a wrong row order would show here."""
    model = make_tiny("llama")
    convert_gguf(model.write_gguf(tmp_path / "m.gguf"), hf, silent, "")
    direct = model.write_hf(tmp_path / "direct")
    tokens = [1, 2, 3, 4, 5, 6]
    assert np.array_equal(Reference.from_hf(hf).logits(tokens), Reference.from_hf(direct).logits(tokens))


def test_progress_counts_tensors(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    reports: list[tuple[str, int, int, str]] = []
    path = make_tiny("llama").write_gguf(tmp_path / "m.gguf")
    convert_gguf(path, hf, lambda *report: reports.append(report), "convert it")
    assert reports == [("convert it", done, 20, "tensors") for done in range(1, 21)]


def test_missing_tensor_is_named(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    path = make_tiny("llama").write_gguf(tmp_path / "m.gguf", drop="blk.1.ffn_up.weight")
    with pytest.raises(ModelFormatError, match=r"missing \['blk.1.ffn_up.weight'\]"):
        convert_gguf(path, hf, silent, "")


def test_tensor_that_is_not_understood_is_named(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    path = make_tiny("llama").write_gguf(tmp_path / "m.gguf", extra="rope_freqs.weight")
    with pytest.raises(ModelFormatError, match=r"not understood \['rope_freqs.weight'\].*safetensors"):
        convert_gguf(path, hf, silent, "")


def test_other_architecture_is_refused(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny("llama")
    model.config["model_type"] = "gemma"
    path = model.write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelFormatError, match="'gemma' is not supported; take one of llama, qwen2"):
        convert_gguf(path, hf, silent, "")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model" * 100])
def test_garbage_is_refused(content: bytes, tmp_path: Path, hf: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelFormatError, match="fetch it again"):
        convert_gguf(tmp_path / "m.gguf", hf, silent, "")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_truncated_file_is_refused(share: float, tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    path = make_tiny("llama").write_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFormatError, match="fetch it again"):
        convert_gguf(path, hf, silent, "")
