"""Write MLC-LLM's container for weights: tensor-cache.json beside params_shard_*.bin files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from edgedraft.runtime.weights import INDEX

ALIGNMENT = 64  # every tensor starts at a multiple, so that a memory-mapped shard feeds vector loads
_SHARD_LIMIT = 32 << 20  # bytes; a larger tensor gets a shard to itself


class TensorCacheWriter:
    """Writes tensors into shards and, when left without an error, the index.

    Args:
        folder: An existing folder that takes the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: list[dict[str, Any]] = []
        self._records: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._digest = hashlib.md5(usedforsecurity=False)
        self._offset = 0
        self._payload = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            if self._file is not None:
                self._file.close()
            return
        self._finish_shard()
        metadata = {"ParamSize": sum(len(shard["records"]) for shard in self._shards), "ParamBytes": self._payload}
        index = {"metadata": metadata, "records": self._shards}
        (self._folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")

    def add(self, name: str, tensor: NDArray[Any]) -> None:
        """Append one tensor, uint32 or float16."""
        data = np.ascontiguousarray(tensor).data.cast("B")
        padding = -self._offset % ALIGNMENT
        if self._file is not None and self._offset + padding + data.nbytes > _SHARD_LIMIT:
            self._finish_shard()
            padding = 0
        if self._file is None:
            self._file = (self._folder / f"params_shard_{len(self._shards)}.bin").open("wb")
        self._put(bytes(padding))
        self._records.append(
            {
                "name": name,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype),
                "format": "raw",
                "nbytes": data.nbytes,
                "byteOffset": self._offset,
            }
        )
        self._put(data)
        self._payload += data.nbytes

    def _put(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)

    def _finish_shard(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._shards.append(
            {
                "dataPath": Path(self._file.name).name,
                "format": "raw-shard",
                "nbytes": self._offset,
                "records": self._records,
                "md5sum": self._digest.hexdigest(),
            }
        )
        self._file, self._records, self._offset = None, [], 0
        self._digest = hashlib.md5(usedforsecurity=False)
