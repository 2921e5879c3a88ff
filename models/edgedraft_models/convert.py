"""Turn a safetensors directory into the weights and the config of an artifact folder, in MLC-LLM's layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import InvalidInput, ModelFormatError
from edgedraft.runtime.manifest import CONFIG, QUANTIZATIONS, ModelConfig
from edgedraft_models.hf_config import HfConfig, load_hf_config
from edgedraft_models.progress import Progress
from edgedraft_models.quantize import GROUP, quantize
from edgedraft_models.safetensors_file import SafetensorsFile
from edgedraft_models.tensor_cache import TensorCacheWriter

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def convert_weights(hf: Path, folder: Path, quantization: str, progress: Progress, stage: str) -> None:
    """Write weights, `mlc-chat-config.json` and tokenizer into an artifact folder.

    Args:
        hf: A directory made by `edgedraft_models.hf_source` or `edgedraft_models.gguf_source`.
        folder: An existing folder that takes the files.
        quantization: `q4f16_1` or `q0f16`.
        progress: Told after each tensor.
        stage: What to call this stage there.

    Raises:
        InvalidInput: The quantization is not known.
        ModelFormatError: The model does not fit the quantization's groups.
    """
    if quantization not in QUANTIZATIONS:
        raise InvalidInput("quantization", f"{quantization!r} is not known", f"take one of {', '.join(QUANTIZATIONS)}")
    config = load_hf_config(hf)
    total = (2 if config.tie_word_embeddings else 3) + config.num_hidden_layers * (7 if config.qkv_bias else 6)
    with TensorCacheWriter(folder) as writer:
        for done, (name, tensor) in enumerate(fused_tensors(hf, config), start=1):
            if tensor.ndim == 2 and quantization == "q4f16_1":
                if tensor.shape[1] % GROUP:
                    raise ModelFormatError(
                        f"{name} takes {tensor.shape[1]} inputs, which is no multiple of {GROUP}; build it as q0f16"
                    )
                base = name.removesuffix(".weight")
                packed, scales = quantize(tensor)
                writer.add(base + ".q_weight", packed)
                writer.add(base + ".q_scale", scales)
            else:
                writer.add(name, tensor)
            progress(stage, done, total, "tensors")
    for file in _TOKENIZER_FILES:
        shutil.copyfile(hf / file, folder / file)
    tokenizer = json.loads((hf / "tokenizer.json").read_text(encoding="utf-8"))
    byte_fallback = bool(tokenizer.get("model", {}).get("byte_fallback"))
    text = json.dumps(mlc_config(config, quantization, byte_fallback), indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def fused_tensors(hf: Path, config: HfConfig) -> Iterator[tuple[str, NDArray[np.float16]]]:
    """All weights of a model under MLC's names, with query, key and value in one matrix, and gate and up in one.

    Args:
        hf: A directory with one float16 `model.safetensors`.
        config: Its config.

    Yields:
        Names and float16 tensors, matrices as [out, in].
    """
    file = SafetensorsFile(hf / "model.safetensors")

    def read(*names: str) -> NDArray[np.float16]:
        parts = [file.read(name).astype(np.float16, copy=False) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    qkv = "c_attn" if config.model_type == "qwen2" else "qkv_proj"
    yield "model.embed_tokens.weight", read("model.embed_tokens.weight")
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            yield f"{prefix}self_attn.{qkv}.{kind}", read(*(f"{prefix}self_attn.{x}_proj.{kind}" for x in "qkv"))
        yield prefix + "mlp.gate_up_proj.weight", read(*(f"{prefix}mlp.{x}_proj.weight" for x in ("gate", "up")))
        for name in ("self_attn.o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", read(f"{prefix}{name}.weight")
    yield "model.norm.weight", read("model.norm.weight")
    if not config.tie_word_embeddings:
        yield "lm_head.weight", read("lm_head.weight")


def shape_of(config: HfConfig, quantization: str) -> ModelConfig:
    """The runtime's view of a model that is still a safetensors directory."""
    return ModelConfig(
        model_type=config.model_type,
        quantization=quantization,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        context_window_size=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        rope_scaling=config.rope_scaling,
        tie_word_embeddings=config.tie_word_embeddings,
        eos_token_ids=tuple(config.eos_token_ids),
    )


def mlc_config(config: HfConfig, quantization: str, byte_fallback: bool) -> dict[str, Any]:
    """The content of `mlc-chat-config.json`: MLC-LLM's own fields but for `conv_template`.

    The chat template is the one in `tokenizer_config.json`.

    Args:
        config: The model's shape.
        quantization: `q4f16_1` or `q0f16`.
        byte_fallback: Whether the tokenizer spells rare bytes as `<0x41>`, as SentencePiece does, and not in
            byte-level characters.
    """
    rope = "rope_theta" if config.model_type == "qwen2" else "position_embedding_base"
    chunk = min(config.max_position_embeddings, 2048)
    return {
        "version": "0.1.0",
        "model_type": config.model_type,
        "quantization": quantization,
        "model_config": {
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_hidden_layers": config.num_hidden_layers,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_norm_eps,
            rope: config.rope_theta,
            **({"hidden_act": "silu"} if config.model_type == "qwen2" else {"rope_scaling": config.rope_scaling}),
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.tie_word_embeddings,
            "context_window_size": config.max_position_embeddings,
            "prefill_chunk_size": chunk,
            "tensor_parallel_shards": 1,
            "max_batch_size": 128,
        },
        "vocab_size": config.vocab_size,
        "context_window_size": config.max_position_embeddings,
        "sliding_window_size": -1,
        "prefill_chunk_size": chunk,
        "attention_sink_size": -1,
        "tensor_parallel_shards": 1,
        "tokenizer_files": list(_TOKENIZER_FILES),
        "tokenizer_info": {
            "token_postproc_method": "byte_fallback" if byte_fallback else "byte_level",
            "prepend_space_in_encode": byte_fallback,
            "strip_space_in_decode": byte_fallback,
        },
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": config.pad_token_id,
    }
