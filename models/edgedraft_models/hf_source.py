"""Bring a safetensors directory, as the hub has it, into the one form that the rest works with: one float16 file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import ModelFormatError
from edgedraft_models.hf_config import load_hf_config
from edgedraft_models.progress import Progress
from edgedraft_models.safetensors_file import SafetensorsFile, write_float16

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def convert_directory(source: Path, folder: Path, progress: Progress, stage: str) -> str:
    """Copy a model with its weights cast to float16.

    Args:
        source: Holds config.json, tokenizer.json and one or more safetensors files.
        folder: An existing folder that takes the files.
        progress: Told after each tensor.
        stage: What to call this stage there.

    Returns:
        The sha256 of `model.safetensors`.

    Raises:
        ModelFormatError: A file is missing or damaged, or the model is not supported.
    """
    config = load_hf_config(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (source / name).is_file():
            raise ModelFormatError(f"{source / name} is missing; save the tokenizer with transformers' save_pretrained")
    shapes = config.tensors()
    files = _weight_files(source)
    # Surplus tensors are fine: a tied head that is stored all the same, or a table of rotary frequencies.
    holder = {name: file for file in files for name in file.names()}
    missing = [name for name in shapes if name not in holder]
    if missing:
        raise ModelFormatError(
            f"{source}: {len(missing)} tensors are missing, e.g. {missing[0]}; fetch the model again"
        )

    def read(name: str) -> NDArray[np.floating[Any]]:
        return holder[name].read(name)

    digest = write_float16(folder / _SINGLE, shapes, read, lambda done: progress(stage, done, len(shapes), "tensors"))
    original = json.loads((source / "config.json").read_text(encoding="utf-8"))
    dtype = "dtype" if "dtype" in original else "torch_dtype"  # the name changed with transformers 5
    _write_json(folder / "config.json", {**original, dtype: "float16"})
    if (source / "generation_config.json").is_file():
        shutil.copyfile(source / "generation_config.json", folder / "generation_config.json")
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    tokenizer_config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = source / "chat_template.jinja"
    if template.is_file():  # newer models keep it in a file of its own
        tokenizer_config.setdefault("chat_template", template.read_text(encoding="utf-8"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    return digest


def _weight_files(source: Path) -> list[SafetensorsFile]:
    if (source / _SINGLE).is_file():
        return [SafetensorsFile(source / _SINGLE)]
    try:
        index = json.loads((source / _INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
        return [SafetensorsFile(source / name) for name in names]
    except FileNotFoundError as error:
        raise ModelFormatError(
            f"{source}: {Path(error.filename).name} is missing; a directory with {_SINGLE}, or with {_INDEX} and its "
            "shards, is needed (pytorch_model.bin is not read: it can run code)"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFormatError(f"{source / _INDEX}: not an index of safetensors ({error}); fetch it again") from error


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
