"""Read and write safetensors one tensor at a time, so that memory holds a tensor and not a model.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, a JSON header that
gives dtype, shape and byte range of every tensor, then the bytes. Unlike the library's NumPy face this reads bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import ModelFormatError
from edgedraft_models.store import require_space

_READABLE: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "BF16": np.dtype("<u2")}
_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies in the file: `begin` and `end` count from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """The tensors of one file, memory-mapped.

    Args:
        path: A safetensors file.

    Raises:
        ModelFormatError: The file is not safetensors, or shorter than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, _HEADER_LIMIT):
                raise ModelFormatError(
                    f"{path}: not a safetensors file (header of {length} bytes in {size}); fetch it again"
                )
            try:
                header = json.loads(file.read(length))
                header.pop("__metadata__", None)
                self._entries = {name: _parse_entry(entry, 8 + length) for name, entry in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelFormatError(
                    f"{path}: the safetensors header is damaged ({error}); fetch it again"
                ) from error
        end = max((entry.end for entry in self._entries.values()), default=0)
        if end > size:
            raise ModelFormatError(f"{path}: cut short, {size} bytes of {end}; fetch it again")

    def names(self) -> Iterator[str]:
        """Names of all tensors in the file."""
        return iter(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self._entries[name].shape

    def read(self, name: str) -> NDArray[np.floating[Any]]:
        """Read one tensor: float16 and float32 as they are, bfloat16 widened to float32.

        Raises:
            ModelFormatError: The dtype is none of these, or the byte range does not fit the shape.
        """
        entry = self._entries[name]
        dtype = _READABLE.get(entry.dtype)
        if dtype is None:
            raise ModelFormatError(
                f"{self.path}: tensor {name} is {entry.dtype}; only {', '.join(_READABLE)} can be read: "
                "take the model's unquantized weights"
            )
        if entry.end - entry.begin != math.prod(entry.shape) * dtype.itemsize:
            raise ModelFormatError(
                f"{self.path}: {name} has {entry.end - entry.begin} bytes for shape {entry.shape}; fetch it again"
            )
        if entry.begin == entry.end:
            return np.zeros(entry.shape, np.float32)
        raw: NDArray[Any] = np.memmap(self.path, dtype, "r", offset=entry.begin, shape=entry.shape)
        if entry.dtype == "BF16":
            widened: NDArray[np.float32] = (raw.astype(np.uint32) << 16).view(np.float32)
            return widened
        return raw


def _parse_entry(data: Mapping[str, Any], start: int) -> _Entry:
    begin, end = data["data_offsets"]
    shape = tuple(data["shape"])
    if not all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape)) or end < begin:
        raise ValueError(f"shape {shape} at {begin} to {end}")
    return _Entry(str(data["dtype"]), shape, start + begin, start + end)


def write_float16(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], NDArray[np.floating[Any]]],
    on_tensor: Callable[[int], None],
) -> str:
    """Write tensors as float16, one after the other.

    Args:
        path: The file to make.
        shapes: Names and shapes in the order in which they shall lie in the file.
        read: Gives the tensor of a name, in any float dtype; called once for each, in that order.
        on_tensor: Called after each tensor with the number written so far.

    Returns:
        The sha256 of the file, lowercase hex.

    Raises:
        ModelFormatError: A tensor has another shape than announced or values that float16 cannot hold.
        DiskFull: The file does not fit on the disk.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    require_space(path, offset)

    digest = hashlib.sha256()
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            file.write(data)
            digest.update(data)

        put(len(encoded).to_bytes(8, "little"))
        put(encoded)
        for count, (name, shape) in enumerate(shapes.items(), start=1):
            tensor = read(name)
            if tensor.shape != shape:
                raise ModelFormatError(f"tensor {name} has shape {tensor.shape}, the model's config asks for {shape}")
            with np.errstate(over="ignore"):
                half = np.ascontiguousarray(tensor, dtype="<f2")
            if not np.isfinite(half).all():
                raise ModelFormatError(f"tensor {name} has values that float16 cannot hold (limit 65504)")
            put(half.data.cast("B"))
            on_tensor(count)
    return digest.hexdigest()
