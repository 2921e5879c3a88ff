"""What a model's config.json says, checked down to what the converter, the compiler and the reference can do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedraft.errors import ModelFormatError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True)
class HfConfig:
    """The shape of a decoder, in the words of Hugging Face's config.json.

    Attributes:
        model_type: `llama` or `qwen2`.
        head_dim: Width of one attention head.
        rope_scaling: None, or llama3's own scaling of the rotary frequencies.
        eos_token_ids: Every token that ends a generation.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to query, key and value have a bias: Qwen2 only."""
        return self.model_type == "qwen2"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors that such a model has in Hugging Face's layout ([out, in])."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            shapes[prefix + "input_layernorm.weight"] = (hidden,)
            for name, width in (("q", query), ("k", key), ("v", key)):
                shapes[f"{prefix}self_attn.{name}_proj.weight"] = (width, hidden)
                if self.qkv_bias:
                    shapes[f"{prefix}self_attn.{name}_proj.bias"] = (width,)
            shapes[prefix + "self_attn.o_proj.weight"] = (hidden, query)
            shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
            shapes[prefix + "mlp.gate_proj.weight"] = (inner, hidden)
            shapes[prefix + "mlp.up_proj.weight"] = (inner, hidden)
            shapes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """The config.json that transformers and vLLM load."""
        return {
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "torch_dtype": "float16",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(self.eos_token_ids) if len(self.eos_token_ids) > 1 else self.eos_token_ids[0],
            "pad_token_id": self.pad_token_id,
            **({"attention_bias": False, "mlp_bias": False} if self.model_type == "llama" else {}),
            **({"use_sliding_window": False} if self.model_type == "qwen2" else {}),
        }


def load_hf_config(folder: Path) -> HfConfig:
    """Read and check `config.json` (and the end-of-text tokens of `generation_config.json`, where there is one).

    Args:
        folder: A directory that transformers could load.

    Raises:
        ModelFormatError: A file is missing or damaged, or the model has a feature that is not supported.
    """
    data = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.exists():
        data["eos_token_id"] = _read_json(generation).get("eos_token_id") or data.get("eos_token_id")
    return parse_hf_config(data, folder / "config.json")


def parse_hf_config(data: dict[str, Any], origin: Path) -> HfConfig:
    """Check the fields of a config.json; `origin` is the file that error messages shall name.

    Raises:
        ModelFormatError: A field is missing or wrong, or the model has a feature that is not supported.
    """
    model_type = data.get("model_type")
    if model_type not in ARCHITECTURES:
        raise ModelFormatError(
            f"{origin}: model_type {model_type!r} is not supported; take one of {', '.join(ARCHITECTURES)}"
        )
    rope_theta, rope_scaling = _rope(data, origin)
    for field, supported in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("use_sliding_window", False),
        ("quantization_config", None),
    ):
        if data.get(field, supported) != supported:
            raise ModelFormatError(f"{origin}: {field} is {data[field]!r}; only {supported!r} is supported")

    heads = _positive(data, "num_attention_heads", origin)
    hidden = _positive(data, "hidden_size", origin)
    kv_heads = _positive(data, "num_key_value_heads", origin) if data.get("num_key_value_heads") else heads
    head_dim = _positive(data, "head_dim", origin) if data.get("head_dim") else hidden // heads
    if heads % kv_heads or head_dim % 2:
        raise ModelFormatError(f"{origin}: {heads} heads of width {head_dim} do not fit {kv_heads} key-value heads")
    eos = data.get("eos_token_id")
    if eos is None:
        raise ModelFormatError(f"{origin}: eos_token_id is missing; name the token that ends a text")
    return HfConfig(
        model_type=model_type,
        hidden_size=hidden,
        intermediate_size=_positive(data, "intermediate_size", origin),
        num_hidden_layers=_positive(data, "num_hidden_layers", origin),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_positive(data, "vocab_size", origin),
        max_position_embeddings=_positive(data, "max_position_embeddings", origin),
        rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        bos_token_id=data.get("bos_token_id"),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        pad_token_id=data.get("pad_token_id"),
    )


def _rope(data: dict[str, Any], origin: Path) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of the rotary embedding, from the old fields or from transformers 5's `rope_parameters`."""
    scaling: dict[str, Any] = dict(data.get("rope_parameters") or data.get("rope_scaling") or {})
    theta = float(scaling.pop("rope_theta", data.get("rope_theta", 10000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelFormatError(f"{origin}: rope scaling {kind!r} is not supported; only 'llama3' and none are")
    return theta, scaling


def _positive(data: dict[str, Any], field: str, origin: Path) -> int:
    value = data.get(field)
    if not isinstance(value, int) or value <= 0:
        raise ModelFormatError(f"{origin}: {field} is {value!r}; a positive whole number is needed")
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path} is missing; is this the directory of a model?") from error
    except ValueError as error:
        raise ModelFormatError(f"{path}: not JSON ({error}); fetch it again") from error
    if not isinstance(data, dict):
        raise ModelFormatError(f"{path}: a JSON object is needed")
    return data
