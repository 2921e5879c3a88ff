"""What can be known of a target from its files, before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from edgedraft.errors import InvalidInput, ModelFormatError, ModelNotFound, ModelSourceError
from edgedraft.runtime.fingerprint import model_fingerprint, tokenizer_fingerprint

_WANTED: Final = ("*.json", "*.safetensors", "*.txt", "*.model")
_QUANTIZATION: Final = "q0f16"
"""What a model is that was built from these weights without quantizing them; the two have one fingerprint."""


@dataclass(frozen=True, slots=True)
class Target:
    """A folder of safetensors, as `edgedraft models build` makes it and as the hub has it.

    Attributes:
        folder: Where it is.
        name: What clients call it.
        model_fingerprint: Hex sha256 of the weights and their format.
        tokenizer_fingerprint: Hex sha256 of the tokenizer.
        vocab_size: Token ids lie in [0, vocab_size).
        context_length: Tokens that the model was made for.
        eos_token_ids: Tokens that end a text.
    """

    folder: Path
    name: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def find(cls, model: str) -> Self:
        """Read a target, fetched from the hub where it is no folder.

        Args:
            model: A folder, or an id on the Hugging Face hub.

        Raises:
            ModelNotFound: It is neither.
            ModelSourceError: The hub cannot be reached.
            ModelFormatError: A file is missing or damaged.
        """
        folder = Path(model).expanduser()
        if model and folder.is_dir():
            folder = folder.resolve()
            # Our own store keeps a model's safetensors in <name>/hf.
            return cls._read(folder, folder.parent.name if folder.name == "hf" else folder.name)
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", model):
            raise ModelNotFound(f"{model!r} is no folder; give one with safetensors, or a hub id such as org/name")
        return cls._read(_fetch(model), model)

    @classmethod
    def _read(cls, folder: Path, name: str) -> Self:
        config = _object(folder / "config.json")
        shape = config.get("text_config", config)
        path = folder / "generation_config.json"
        ends = (_object(path) if path.exists() else {}).get("eos_token_id", config.get("eos_token_id"))
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        try:
            return cls(
                folder=folder,
                name=name,
                model_fingerprint=model_fingerprint(_weights_sha256(folder), _QUANTIZATION),
                tokenizer_fingerprint=tokenizer_fingerprint(_object(folder / "tokenizer.json")),
                vocab_size=int(shape["vocab_size"]),
                context_length=int(shape["max_position_embeddings"]),
                eos_token_ids=tuple(int(token) for token in ends),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFormatError(f"{folder / 'config.json'}: {error!r}; fetch the model again") from error


def _fetch(model: str) -> Path:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise InvalidInput(
            "model", f"{model} is on the hub, and huggingface-hub is not installed", "pip install huggingface-hub"
        ) from error
    try:
        return Path(snapshot_download(model, allow_patterns=list(_WANTED)))
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFound(f"{model} is neither a folder nor a model on the hub that you may read") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise ModelSourceError(f"{model} cannot be fetched from the hub: {error}") from error


def _weights_sha256(folder: Path) -> str:
    """Hash of the weights; read from where it is on record, since a large model takes minutes to hash."""
    source = folder / "source.json"
    if source.exists():
        return str(_object(source)["weights_sha256"])
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelFormatError(f"{folder} holds no *.safetensors; fetch the model again")
    hashes = [_file_sha256(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _file_sha256(file: Path) -> str:
    name = file.resolve().name
    if re.fullmatch("[0-9a-f]{64}", name):  # the hub's cache names a file by its hash
        return name
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read ({error.strerror}); fetch the model again") from error
    except ValueError as error:
        raise ModelFormatError(f"{path} is no JSON: {error}; fetch the model again") from error
    if not isinstance(data, dict):
        raise ModelFormatError(f"{path} holds no JSON object; fetch the model again")
    return data
