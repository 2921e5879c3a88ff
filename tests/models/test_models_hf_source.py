"""Safetensors directories: what is read, how weights are cast, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedraft.errors import ModelFormatError
from edgedraft_models.hf_config import load_hf_config, parse_hf_config
from edgedraft_models.hf_source import convert_directory
from edgedraft_models.progress import silent
from edgedraft_models.safetensors_file import SafetensorsFile


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("dtype", "shards"), [("F16", 1), ("F32", 3), ("BF16", 2)])
def test_any_dtype_and_shards_become_one_float16_file(
    dtype: str, shards: int, tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]
) -> None:
    model = make_tiny("qwen2")
    convert_directory(model.write_hf(tmp_path / "source", dtype=dtype, shards=shards), hf, silent, "")
    file = SafetensorsFile(hf / "model.safetensors")
    assert list(file.names()) == list(model.weights)
    for name, tensor in model.weights.items():
        if dtype == "BF16":
            tensor = (tensor.view(np.uint32) >> 16 << 16).view(np.float32)
        assert np.array_equal(file.read(name), tensor.astype(np.float16))
    assert json.loads((hf / "config.json").read_text()) == {**model.config, "torch_dtype": "float16"}
    assert load_hf_config(hf).eos_token_ids == (258, 256)


def test_template_in_a_file_of_its_own_is_taken_along(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    source = make_tiny().write_hf(tmp_path / "source")
    config = json.loads((source / "tokenizer_config.json").read_text())
    template = config.pop("chat_template")
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    (source / "chat_template.jinja").write_text(template)
    convert_directory(source, hf, silent, "")
    assert json.loads((hf / "tokenizer_config.json").read_text())["chat_template"] == template


def test_head_that_is_stored_though_tied_is_left_out(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny("llama")
    model.weights["lm_head.weight"] = model.weights["model.embed_tokens.weight"]
    convert_directory(model.write_hf(tmp_path / "source"), hf, silent, "")
    assert "lm_head.weight" not in list(SafetensorsFile(hf / "model.safetensors").names())


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_missing_file_is_named(missing: str, tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    source = make_tiny().write_hf(tmp_path / "source")
    (source / missing).unlink()
    with pytest.raises(ModelFormatError, match=missing):
        convert_directory(source, hf, silent, "")


def test_missing_shard_is_named(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    source = make_tiny().write_hf(tmp_path / "source", shards=2)
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"model-00002-of-00002\.safetensors is missing"):
        convert_directory(source, hf, silent, "")


def test_missing_tensor_is_named(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny()
    del model.weights["model.norm.weight"]
    with pytest.raises(ModelFormatError, match=r"1 tensors are missing, e.g. model\.norm\.weight"):
        convert_directory(model.write_hf(tmp_path / "source"), hf, silent, "")


def test_damaged_index_is_refused(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    source = make_tiny().write_hf(tmp_path / "source", shards=2)
    (source / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ModelFormatError, match="not an index"):
        convert_directory(source, hf, silent, "")


def test_index_that_leads_outside_is_refused(tmp_path: Path, hf: Path, make_tiny: Callable[..., Any]) -> None:
    source = make_tiny().write_hf(tmp_path / "source", shards=2)
    (source / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    with pytest.raises(ModelFormatError, match="another directory"):
        convert_directory(source, hf, silent, "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
        ({"num_key_value_heads": 3}, "4 heads .* do not fit 3"),
        ({"rope_scaling": {"type": "yarn"}}, "'yarn' is not supported"),
        ({"eos_token_id": None}, "eos_token_id is missing"),
    ],
)
def test_config_that_is_not_supported_names_the_field(
    change: dict[str, Any], message: str, make_tiny: Callable[..., Any]
) -> None:
    config = make_tiny().config
    parse_hf_config(config, Path("config.json"))
    with pytest.raises(ModelFormatError, match=rf"^config\.json: .*{message}"):
        parse_hf_config({**config, **change}, Path("config.json"))


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 3e5, "rope_type": "default"}}, 3e5, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 5e5, 8.0),
    ],
)
def test_rotary_fields_of_old_and_new_transformers(
    fields: dict[str, Any], theta: float, scaling: float | None, make_tiny: Callable[..., Any]
) -> None:
    config = make_tiny().config
    del config["rope_theta"]
    parsed = parse_hf_config({**config, **fields}, Path("config.json"))
    assert parsed.rope_theta == theta
    assert (parsed.rope_scaling or {}).get("factor") == scaling


def test_config_survives_its_own_json(make_tiny: Callable[..., Any]) -> None:
    for model_type in ("llama", "qwen2"):
        config = parse_hf_config(make_tiny(model_type).config, Path("a"))
        assert parse_hf_config(config.to_json(), Path("b")) == config


def test_json_that_is_damaged_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"config\.json: not JSON"):
        load_hf_config(tmp_path)
