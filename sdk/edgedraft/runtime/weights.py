"""Weights in MLC-LLM's layout, mapped into memory, and the order in which the kernels know them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import ModelFormatError
from edgedraft.runtime.manifest import ModelConfig

INDEX = "tensor-cache.json"
_ALIGNMENT = 64  # bytes; what the kernels' vector loads expect
_REBUILD = "build the model again with `edgedraft models build`"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of one stored tensor."""

    shape: tuple[int, ...]
    dtype: str


def shared_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """The tensors that stand outside the layers, by name; the head is the embedding where the two are tied."""
    tensors = _matrix(config, "model.embed_tokens", config.vocab_size, config.hidden_size)
    tensors["model.norm.weight"] = _vector(config.hidden_size)
    if not config.tie_word_embeddings:
        tensors |= _matrix(config, "lm_head", config.vocab_size, config.hidden_size)
    return tensors


def layer_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """The tensors of one layer, by name after `model.layers.<number>.`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    qkv = heads + 2 * config.num_key_value_heads * config.head_dim
    qkv_name = "self_attn.c_attn" if config.model_type == "qwen2" else "self_attn.qkv_proj"
    tensors = {"input_layernorm.weight": _vector(hidden)} | _matrix(config, qkv_name, qkv, hidden)
    if config.model_type == "qwen2":
        tensors[f"{qkv_name}.bias"] = _vector(qkv)
    tensors |= _matrix(config, "self_attn.o_proj", hidden, heads)
    tensors["post_attention_layernorm.weight"] = _vector(hidden)
    tensors |= _matrix(config, "mlp.gate_up_proj", 2 * inner, hidden)
    return tensors | _matrix(config, "mlp.down_proj", hidden, inner)


def matrix_parts(config: ModelConfig, name: str) -> tuple[str, ...]:
    """Names of the tensors that make up one matrix: values and scales in 4 bits, the matrix itself in 16."""
    return (f"{name}.q_weight", f"{name}.q_scale") if config.quantization == "q4f16_1" else (f"{name}.weight",)


def scratch_widths(config: ModelConfig) -> tuple[int, int]:
    """Floats that a step needs for a token beside the residual stream: for results and inputs of the matrix products.

    4-bit weights want nine vectors of inputs for every eight; see the kernels.
    """
    heads = config.num_attention_heads * config.head_dim
    qkv = heads + 2 * config.num_key_value_heads * config.head_dim
    results = max(qkv, config.hidden_size, 2 * config.intermediate_size)
    inputs = max(heads, config.hidden_size, config.intermediate_size)
    return results, inputs * 9 // 8 if config.quantization == "q4f16_1" else inputs


def top_block(vocab_size: int) -> int:
    """How many neighbouring logits are summed up together when only the best are wanted."""
    return next(size for size in (64, 32, 16, 8) if vocab_size % size == 0)


def map_weights(folder: Path, config: ModelConfig) -> list[NDArray[Any]]:
    """Map all weights of an artifact folder into memory, read-only.

    Returns:
        The tensors of `shared_tensors`, then those of `layer_tensors` for each layer.

    Raises:
        ModelFormatError: A file is missing, damaged or cut short, or the tensors are not those of the config.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        stored: dict[str, NDArray[Any]] = {}
        for shard in index["records"]:
            data = np.memmap(folder / shard["dataPath"], np.uint8, "r")
            if data.nbytes != shard["nbytes"]:
                raise ModelFormatError(
                    f"{folder / shard['dataPath']}: {data.nbytes} bytes instead of {shard['nbytes']}; {_REBUILD}"
                )
            for record in shard["records"]:
                part = data[record["byteOffset"] : record["byteOffset"] + record["nbytes"]]
                stored[record["name"]] = part.view(record["dtype"]).reshape(record["shape"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFormatError(f"{folder / INDEX}: the weights cannot be read ({error}); {_REBUILD}") from error

    expected = shared_tensors(config)
    for layer in range(config.num_hidden_layers):
        expected |= {f"model.layers.{layer}.{name}": spec for name, spec in layer_tensors(config).items()}
    for name, spec in expected.items():
        tensor = stored.get(name)
        found = None if tensor is None else TensorSpec(tensor.shape, str(tensor.dtype))
        if found != spec:
            raise ModelFormatError(f"{folder / INDEX}: {name} is {found}, the config wants {spec}; {_REBUILD}")
    weights = [stored[name] for name in expected]
    if any(tensor.ctypes.data % _ALIGNMENT for tensor in weights):
        raise ModelFormatError(f"{folder / INDEX}: a tensor is not aligned to {_ALIGNMENT} bytes; {_REBUILD}")
    return weights


def _matrix(config: ModelConfig, name: str, rows: int, columns: int) -> dict[str, TensorSpec]:
    parts = matrix_parts(config, name)
    if len(parts) == 1:
        return {parts[0]: TensorSpec((rows, columns), "float16")}
    return {
        parts[0]: TensorSpec((rows, columns // 8), "uint32"),
        parts[1]: TensorSpec((rows, columns // 32), "float16"),
    }


def _vector(length: int) -> TensorSpec:
    return TensorSpec((length,), "float16")
