"""The oracle: a plain NumPy forward pass in float32 that compiled models are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedraft.runtime.manifest import ModelConfig
from edgedraft.runtime.weights import layer_tensors, map_weights, shared_tensors
from edgedraft_models.convert import fused_tensors, shape_of
from edgedraft_models.hf_config import load_hf_config
from edgedraft_models.quantize import dequantize

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Reference:
    """A Llama or Qwen2 decoder that runs on the weights as they are stored, dequantized.

    Attributes:
        config: The model's shape.
        weight: Gives the float32 tensor of MLC's name, matrices as [out, in].
    """

    config: ModelConfig
    weight: Callable[[str], Array]

    @classmethod
    def from_artifact(cls, folder: Path) -> Reference:
        """Run on the weights of an artifact folder, complete or not.

        Raises:
            ModelNotFound: The folder is not there.
            ModelFormatError: The config or the weights are damaged.
        """
        config = ModelConfig.load(folder)
        layers = range(config.num_hidden_layers)
        names = [
            *shared_tensors(config),
            *(f"model.layers.{i}.{name}" for i in layers for name in layer_tensors(config)),
        ]
        tensors = dict(zip(names, map_weights(folder, config), strict=True))

        def weight(name: str) -> Array:
            base = name.removesuffix(".weight")
            if base + ".q_weight" in tensors:
                return dequantize(tensors[base + ".q_weight"], tensors[base + ".q_scale"])
            return tensors[name].astype(np.float32)

        return cls(config, weight)

    @classmethod
    def from_hf(cls, folder: Path) -> Reference:
        """Run on the float16 weights of a safetensors directory of the store; they are all read at once.

        Raises:
            ModelFormatError: The directory is incomplete or damaged.
        """
        config = load_hf_config(folder)
        tensors: Mapping[str, NDArray[Any]] = dict(fused_tensors(folder, config))
        return cls(shape_of(config, "q0f16"), lambda name: tensors[name].astype(np.float32))

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits after each token of a text, float32 [len(tokens), vocab]."""
        config, weight = self.config, self.weight
        embedding = weight("model.embed_tokens.weight")
        hidden: Array = embedding[np.asarray(tokens)]
        cos, sin = rotary_table(config, len(tokens))
        mask = np.triu(np.full((len(tokens), len(tokens)), -np.inf, np.float32), k=1)
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            normed = self._norm(hidden, weight(prefix + "input_layernorm.weight"))
            hidden = hidden + self._attention(prefix + "self_attn.", normed, cos, sin, mask)
            normed = self._norm(hidden, weight(prefix + "post_attention_layernorm.weight"))
            gate, up = np.split(normed @ weight(prefix + "mlp.gate_up_proj.weight").T, 2, axis=-1)
            with np.errstate(over="ignore"):  # exp(-gate) = inf makes the right zero
                activated = gate / (1 + np.exp(-gate)) * up
            hidden = hidden + activated @ weight(prefix + "mlp.down_proj.weight").T
        hidden = self._norm(hidden, weight("model.norm.weight"))
        head = embedding if config.tie_word_embeddings else weight("lm_head.weight")
        return np.asarray(hidden @ head.T, np.float32)

    def _norm(self, hidden: Array, scale: Array) -> Array:
        mean_square = np.square(hidden).mean(axis=-1, keepdims=True)
        normed: Array = hidden / np.sqrt(mean_square + np.float32(self.config.rms_norm_eps)) * scale
        return normed

    def _attention(self, prefix: str, hidden: Array, cos: Array, sin: Array, mask: Array) -> Array:
        config = self.config
        heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        if config.model_type == "qwen2":
            qkv = hidden @ self.weight(prefix + "c_attn.weight").T + self.weight(prefix + "c_attn.bias")
        else:
            qkv = hidden @ self.weight(prefix + "qkv_proj.weight").T
        split = qkv.reshape(len(hidden), heads + 2 * kv_heads, width).swapaxes(0, 1)  # [head, token, width]
        query = _rotate(split[:heads], cos, sin)
        key = np.repeat(_rotate(split[heads : heads + kv_heads], cos, sin), heads // kv_heads, axis=0)
        value = np.repeat(split[heads + kv_heads :], heads // kv_heads, axis=0)
        scores = query @ key.swapaxes(1, 2) / np.float32(math.sqrt(width)) + mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ value
        return np.asarray(
            mixed.swapaxes(0, 1).reshape(len(hidden), heads * width) @ self.weight(prefix + "o_proj.weight").T
        )


def rotary_table(config: ModelConfig, length: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotary embedding, each [length, head_dim / 2].

    Llama 3's scaling (arXiv 2407.21783; the formula is that of transformers' `rope_type: llama3`) leaves fast
    frequencies as they are, divides slow ones by `factor` and blends between the two.
    """
    frequency = config.rope_theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    if config.rope_scaling is not None:
        factor, low, high, original = (
            float(config.rope_scaling[name])
            for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        )
        turns = original * frequency / (2 * math.pi)
        fast = np.clip((turns - low) / (high - low), 0, 1)
        frequency = fast * frequency + (1 - fast) * frequency / factor
    angle = np.arange(length)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _rotate(heads: Array, cos: Array, sin: Array) -> Array:
    """Turn element i of each head together with element i + head_dim / 2."""
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
