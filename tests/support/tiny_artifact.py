"""Artifact folders of tiny models with random weights, compiled for this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgedraft.runtime.manifest import CONFIG, Manifest, ModelConfig, hash_file
from edgedraft.runtime.weights import TensorSpec, layer_tensors, shared_tensors
from edgedraft_models.compile import compile_model
from edgedraft_models.targets import find_target
from edgedraft_models.tensor_cache import TensorCacheWriter


def write_weights(folder: Path, model_type: str, quantization: str, **changes: Any) -> Path:
    """Write config and weights, not the library, into an existing folder."""
    model = {
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 320,
        "context_window_size": 600,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": model_type == "llama",
    } | changes
    data = {"model_type": model_type, "quantization": quantization, "model_config": model}
    (folder / CONFIG).write_text(json.dumps(data))
    config = ModelConfig.load(folder)
    random = np.random.default_rng(7)
    with TensorCacheWriter(folder) as writer:
        for name, spec in shared_tensors(config).items():
            writer.add(name, _values(name, spec, random))
        for layer in range(config.num_hidden_layers):
            for name, spec in layer_tensors(config).items():
                writer.add(f"model.layers.{layer}.{name}", _values(name, spec, random))
    return folder


def finish(folder: Path) -> Path:
    """Compile the model of a folder and write its manifest."""
    compile_model(folder)
    config = ModelConfig.load(folder)
    Manifest(
        model="tiny",
        architecture=config.model_type,
        quantization=config.quantization,
        target="native",
        features=find_target("native").features,
        model_fingerprint="ab" * 32,
        tokenizer_fingerprint="cd" * 32,
        licence="Apache-2.0",
        files={path.name: hash_file(path) for path in folder.iterdir()},
        builder="",
    ).save(folder)
    return folder


def _values(name: str, spec: TensorSpec, random: np.random.Generator) -> np.ndarray:
    if spec.dtype == "uint32":
        return random.integers(0, 1 << 32, spec.shape, dtype=np.uint32)  # all sixteen values of four bits
    if name.endswith("q_scale"):
        return random.uniform(0.005, 0.03, spec.shape).astype(np.float16)
    offset = 1.0 if name.endswith("norm.weight") else 0.0
    return (random.normal(size=spec.shape) * 0.15 + offset).astype(np.float16)
