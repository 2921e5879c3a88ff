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

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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

    digest = write_float16(folder / SINGLE, shapes, read, lambda done: progress(stage, done, len(shapes), "tensors"))
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


def shard_names(index: Path) -> list[str]:
    """Names of the weight files that a `model.safetensors.index.json` lists.

    Raises:
        ModelFormatError: It is damaged, or names files outside its directory.
    """
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFormatError(f"{index}: not an index of safetensors ({error}); fetch it again") from error
    if outside:
        raise ModelFormatError(
            f"{index}: names {outside[0]!r}, which lies in another directory; do not trust this model"
        )
    return names


def _weight_files(source: Path) -> list[SafetensorsFile]:
    names = [SINGLE] if (source / SINGLE).is_file() else []
    if not names and (source / INDEX).is_file():
        names = shard_names(source / INDEX)
    missing = [name for name in names or [SINGLE] if not (source / name).is_file()]
    if missing:
        raise ModelFormatError(
            f"{source / missing[0]} is missing; a directory with {SINGLE}, or with {INDEX} and its shards, is needed "
            "(pytorch_model.bin is not read: it can run code)"
        )
    return [SafetensorsFile(source / name) for name in names]


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
