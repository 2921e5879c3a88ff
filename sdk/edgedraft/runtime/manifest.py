"""What an artifact folder says of itself: the manifest and the shape of the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from edgedraft.errors import ModelFormatError, ModelNotFound

MANIFEST = "manifest.json"
CONFIG = "mlc-chat-config.json"
LIBRARY = "model.so"
SCHEMA = 1
ABI = "edgedraft-1/tvm-0.27"
"""Calling convention of `model.so`: the signatures of its functions, and the TVM release that they run on."""

ARCHITECTURES = ("llama", "qwen2")
QUANTIZATIONS = ("q4f16_1", "q0f16")

_REBUILD = "build the model again with `edgedraft models build`"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama or Qwen2 decoder, as the kernels and the runtime need it.

    Attributes:
        model_type: `llama` or `qwen2`; only the latter has biases on query, key and value.
        quantization: `q4f16_1` (4-bit weights) or `q0f16` (16-bit weights).
        hidden_size: Width of the residual stream.
        intermediate_size: Width between the two halves of the feed-forward layer.
        num_hidden_layers: Decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads; each serves the same number of query heads.
        head_dim: Width of a head.
        vocab_size: Token ids lie in [0, vocab_size).
        context_window_size: Tokens that one sequence can hold.
        rms_norm_eps: Added to the mean square in the norms.
        rope_theta: Base of the rotary embedding.
        rope_scaling: None, or the fields of Llama 3's scaling of the rotary frequencies.
        tie_word_embeddings: Whether the output head is the embedding matrix.
        eos_token_ids: Tokens that end a text.
    """

    model_type: str
    quantization: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    context_window_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `mlc-chat-config.json`.

        Args:
            folder: An artifact folder, complete or not.

        Raises:
            ModelNotFound: The folder or the file is not there.
            ModelFormatError: A field is missing, wrong, or asks for what is not supported.
        """
        path = folder / CONFIG
        data = _read_object(path)
        inner = data.get("model_config")
        if not isinstance(inner, dict):
            raise ModelFormatError(f"{path}: model_config is {type(inner).__name__}, not an object; {_REBUILD}")

        def number(name: str) -> int:
            value = inner.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ModelFormatError(f"{path}: {name} is {value!r}, not a positive whole number; {_REBUILD}")
            return value

        heads = number("num_attention_heads")
        hidden = number("hidden_size")
        model_type, quantization = data.get("model_type"), data.get("quantization")
        if model_type not in ARCHITECTURES:
            raise ModelFormatError(f"{path}: model_type {model_type!r} is not one of {', '.join(ARCHITECTURES)}")
        if quantization not in QUANTIZATIONS:
            raise ModelFormatError(f"{path}: quantization {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
        kv_heads = number("num_key_value_heads") if inner.get("num_key_value_heads") else heads
        if heads % kv_heads:
            raise ModelFormatError(f"{path}: {heads} heads cannot share {kv_heads} key-value heads evenly; {_REBUILD}")
        eos = data.get("eos_token_id", [])
        ids = eos if isinstance(eos, list) else [eos]
        if not all(isinstance(token, int) and token >= 0 for token in ids):
            raise ModelFormatError(f"{path}: eos_token_id is {eos!r}, not token ids; {_REBUILD}")
        scaling = inner.get("rope_scaling")
        if scaling is not None and (not isinstance(scaling, dict) or scaling.get("rope_type") != "llama3"):
            raise ModelFormatError(f"{path}: rope_scaling {scaling!r} is not supported; only Llama 3's is")
        return cls(
            model_type=model_type,
            quantization=quantization,
            hidden_size=hidden,
            intermediate_size=number("intermediate_size"),
            num_hidden_layers=number("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=number("head_dim") if inner.get("head_dim") else hidden // heads,
            vocab_size=number("vocab_size"),
            context_window_size=number("context_window_size"),
            rms_norm_eps=float(inner.get("rms_norm_eps", 1e-6)),
            rope_theta=float(inner.get("rope_theta") or inner.get("position_embedding_base") or 10000.0),
            rope_scaling=scaling,
            tie_word_embeddings=bool(inner.get("tie_word_embeddings", False)),
            eos_token_ids=tuple(ids),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """`manifest.json`: written last, so a folder that has one is complete.

    Attributes:
        model: Name of the model, e.g. `smollm2-135m-instruct`.
        architecture: As `ModelConfig.model_type`.
        quantization: As `ModelConfig.quantization`.
        target: Name of the target that the library was compiled for, e.g. `native`.
        features: CPU features that the library needs, in Linux's names, e.g. `avx2`.
        model_fingerprint: Hex sha256 of the weights before quantization, and the quantization.
        tokenizer_fingerprint: Hex sha256 of the tokenizer.
        licence: Licence of the weights, as an SPDX expression or a name.
        files: Hex sha256 of every other file of the folder, by name.
        builder: Hex sha256 of the code that converted and compiled the model, so that newer code builds it again.
        abi: See `ABI`.
        schema: Version of this file's layout.
    """

    model: str
    architecture: str
    quantization: str
    target: str
    features: tuple[str, ...]
    model_fingerprint: str
    tokenizer_fingerprint: str
    licence: str
    files: Mapping[str, str]
    builder: str
    abi: str = ABI
    schema: int = SCHEMA

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of an artifact folder.

        Raises:
            ModelNotFound: The folder is not there, or is only half made.
            ModelFormatError: The manifest is damaged, or of another version of Edgedraft or TVM.
        """
        path = folder / MANIFEST
        data = _read_object(path)
        if data.get("schema") != SCHEMA:
            raise ModelFormatError(f"{path}: schema {data.get('schema')!r} is not {SCHEMA}; {_REBUILD}")
        if data.get("abi") != ABI:
            raise ModelFormatError(f"{path}: compiled for {data.get('abi')!r}, this runtime is {ABI!r}; {_REBUILD}")
        texts = [field.name for field in fields(cls) if field.type == "str"]
        wrong = [name for name in texts if not isinstance(data.get(name), str)]
        files, features = data.get("files"), data.get("features")
        if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
            wrong.append("files")
        if not isinstance(features, list) or not all(isinstance(value, str) for value in features):
            wrong.append("features")
        if wrong:
            raise ModelFormatError(f"{path}: {', '.join(wrong)} missing or of the wrong type; {_REBUILD}")
        return cls(**{field.name: data[field.name] for field in fields(cls)} | {"features": tuple(features or ())})

    def save(self, folder: Path) -> None:
        """Write the manifest, whole or not at all."""
        path = folder / MANIFEST
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        part.replace(path)

    def verify(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Hash files of the folder and compare.

        Args:
            folder: The artifact folder.
            names: Files to look at; None takes all that the manifest lists.

        Raises:
            ModelFormatError: A file is missing, not listed, or not the one that was built.
        """
        for name in self.files if names is None else names:
            path, expected = folder / name, self.files.get(name)
            if not path.is_file():
                raise ModelFormatError(f"{path}: missing; {_REBUILD}")
            if hash_file(path) != expected:
                raise ModelFormatError(f"{path}: its sha256 is not the manifest's {expected}; {_REBUILD}")


def hash_file(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"{path.name} is missing, so it is only half made" if path.parent.is_dir() else "is not there"
        raise ModelNotFound(f"{path.parent}: {what}; {_REBUILD}") from error
    except ValueError as error:
        raise ModelFormatError(f"{path}: not JSON ({error}); {_REBUILD}") from error
    if not isinstance(data, dict):
        raise ModelFormatError(f"{path}: holds {type(data).__name__}, not an object; {_REBUILD}")
    return data
