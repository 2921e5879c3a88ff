"""Turn a GGUF file into a safetensors directory that transformers and vLLM load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import ModelFormatError
from edgedraft_models.gguf_tokenizer import GgufTokenizer
from edgedraft_models.hf_config import HfConfig, parse_hf_config
from edgedraft_models.progress import Progress
from edgedraft_models.safetensors_file import write_float16

_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def convert_gguf(path: Path, folder: Path, progress: Progress, stage: str) -> str:
    """Dequantize a Llama or Qwen2 GGUF into float16 safetensors, with config and tokenizer beside them.

    Args:
        path: The GGUF file.
        folder: An existing folder that takes the files.
        progress: Told after each tensor.
        stage: What to call this stage there.

    Returns:
        The sha256 of `model.safetensors`.

    Raises:
        ModelFormatError: The file is damaged, or of an architecture or tokenizer that is not supported.
    """
    try:
        reader = gguf.GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, OverflowError) as error:  # what the reader raises on broken files
        raise ModelFormatError(f"{path}: not a GGUF file that can be read ({error}); fetch it again") from error

    tokenizer = GgufTokenizer.read(fields, path)
    config = _config(fields, tokenizer, "output.weight" not in tensors, path)
    shapes = config.tensors()
    sources = {name: _gguf_name(name) for name in shapes}
    missing = sorted(set(sources.values()) - set(tensors))
    surplus = sorted(set(tensors) - set(sources.values()))
    if missing or surplus:
        raise ModelFormatError(
            f"{path}: the tensors are not those of a plain {config.model_type} model "
            f"(missing {missing[:3]}, not understood {surplus[:3]}); take the model as safetensors"
        )

    def read(name: str) -> NDArray[np.float32]:
        tensor = tensors[sources[name]]
        try:
            weight: NDArray[np.float32] = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelFormatError(
                f"{path}: {tensor.name} has type {tensor.tensor_type.name}, which cannot be read"
            ) from error
        if config.model_type == "llama" and weight.shape == shapes[name]:  # else the writer says what is wrong
            if name.endswith("q_proj.weight"):
                return _undo_rotary_permutation(weight, config.num_attention_heads)
            if name.endswith("k_proj.weight"):
                return _undo_rotary_permutation(weight, config.num_key_value_heads)
        return weight

    digest = write_float16(
        folder / "model.safetensors", shapes, read, lambda done: progress(stage, done, len(shapes), "tensors")
    )
    tokenizer.save(folder, config.max_position_embeddings)
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    generation = {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    return digest


def _config(fields: Mapping[str, Any], tokenizer: GgufTokenizer, tied: bool, path: Path) -> HfConfig:
    """The model's shape, from the metadata, through the same checks as a config.json."""
    architecture = fields.get("general.architecture")

    def field(name: str) -> Any:
        return fields.get(f"{architecture}.{name}")

    scaling = field("rope.scaling.type")
    eps, theta = field("attention.layer_norm_rms_epsilon"), field("rope.freq_base")
    data = {
        "model_type": architecture,
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length") or field("rope.dimension_count"),
        "vocab_size": len(tokenizer.tokens),
        "max_position_embeddings": field("context_length"),
        "rope_scaling": None if scaling in (None, "none") else {"rope_type": scaling},
        "tie_word_embeddings": tied,
        "bos_token_id": tokenizer.special_ids.get("bos"),
        "eos_token_id": list(tokenizer.eos_token_ids()),
        "pad_token_id": tokenizer.special_ids.get("padding"),
        # The file holds float32: the shortest decimal that means the same float32 is the number its author wrote.
        **({} if eps is None else {"rms_norm_eps": float(str(np.float32(eps)))}),
        **({} if theta is None else {"rope_theta": float(str(np.float32(theta)))}),
    }
    return parse_hf_config(data, path)


def _gguf_name(name: str) -> str:
    """GGUF's name of a tensor, e.g. `model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`."""
    if name in _OUTER:
        return _OUTER[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_INNER[module]}.{kind}"


def _undo_rotary_permutation(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put the rows of a query or key projection back in Hugging Face's order.

    Llama GGUFs interleave the two halves of each head (their rotary embedding turns neighbours); Hugging Face's rotary
    embedding turns element i with element i + head_dim / 2.
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)
