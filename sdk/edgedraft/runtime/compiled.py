"""A compiled model: weights mapped from an artifact folder, and the forward pass over them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import InvalidInput, ModelFormatError
from edgedraft.runtime import library
from edgedraft.runtime.kv import Batch, Feed, Float32s, KvCache, aligned_empty
from edgedraft.runtime.manifest import CONFIG, LIBRARY, Manifest, ModelConfig
from edgedraft.runtime.weights import INDEX, map_weights, scratch_widths, top_block

_CHUNK = 256  # tokens in one call of the library; bounds the scratch memory
_LARGEST_K = 64
_DLTENSOR_WORDS = 6  # a DLTensor is 48 bytes on 64-bit machines, and its data pointer comes first


class CompiledModel:
    """A Llama or Qwen2 decoder, compiled for this machine's CPU.

    Batch-invariant: the logits after a token are the same bits whatever else is in the call and however the tokens
    before it were split over calls. Not safe for use by several threads at once; other Python threads run on while it
    computes.

    Attributes:
        config: Shape of the model.
        manifest: What the artifact folder says of itself.
    """

    def __init__(
        self, config: ModelConfig, manifest: Manifest, weights: Sequence[NDArray[Any]], functions: library.Library
    ) -> None:
        self.config = config
        self.manifest = manifest
        self._library = functions
        self._weights = weights  # keeps the mappings alive
        self._table = np.zeros((len(weights), _DLTENSOR_WORDS), np.uint64)
        self._table[:, 0] = [array.ctypes.data for array in weights]
        results_width, inputs_width = scratch_widths(config)
        self._tokens, self._positions, self._slots, self._rows, self._picks = (
            aligned_empty((_CHUNK,), np.int32) for _ in range(5)
        )
        self._index_tensors = [
            library.tensor(array) for array in (self._tokens, self._positions, self._slots, self._rows, self._picks)
        ]
        self._scratch = [
            library.tensor(aligned_empty((_CHUNK, width), np.float32))
            for width in (config.hidden_size, results_width, inputs_width)
        ]

    @classmethod
    def load(cls, folder: Path, *, threads: int | None = None, verify: bool = False) -> Self:
        """Load an artifact folder.

        Args:
            folder: Made by `edgedraft models build`.
            threads: CPU threads to compute with; None takes all that this process may use.
            verify: Hash the weights too and compare with the manifest; the small files always are.

        Raises:
            ModelNotFound: The folder is not there or only half made.
            ModelFormatError: A file is missing, damaged or of another model, or the library is for other versions or
                another CPU.
            InvalidInput: `threads` is not positive, or more than this process may use.
        """
        manifest = Manifest.load(folder)
        manifest.verify(folder, None if verify else (CONFIG, INDEX, LIBRARY))
        config = ModelConfig.load(folder)
        if (config.model_type, config.quantization) != (manifest.architecture, manifest.quantization):
            raise ModelFormatError(
                f"{folder}: the manifest is of a {manifest.architecture} in {manifest.quantization}, the config of a "
                f"{config.model_type} in {config.quantization}; build the model again with `edgedraft models build`"
            )
        weights = map_weights(folder, config)
        return cls(config, manifest, weights, library.Library(folder / LIBRARY, manifest.features, threads))

    def new_cache(self, tokens: int, sequences: int = 64) -> KvCache:
        """Make an empty KV cache for this model; see `KvCache`."""
        return KvCache(self.config, tokens, sequences)

    def forward(self, cache: KvCache, feeds: Sequence[Feed], logits: Literal["last", "all"] = "last") -> Float32s:
        """Append tokens to sequences, and compute what comes next.

        Args:
            cache: Of this model.
            feeds: At most one a sequence.
            logits: `last`: one row a feed, after its last token. `all`: one row a token, feed by feed.

        Returns:
            Logits, float32 [rows, vocab].

        Raises:
            InvalidInput: See `KvCache.extend`; nothing was changed.
            CacheFull: Not enough slots are free; nothing was changed.
        """
        if logits not in ("last", "all"):
            raise InvalidInput("logits", f"is {logits!r}", "give 'last' or 'all'")
        batch = self._extend(cache, feeds)
        return self._run(cache, batch, batch.ends if logits == "last" else np.arange(len(batch.tokens)))

    def forward_top_k(
        self, cache: KvCache, feeds: Sequence[Feed], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Like `forward(logits="last")`, for the `k` most probable next tokens only.

        Returns:
            Token ids and their probabilities under the softmax over the whole vocabulary, both [feeds, k], best first.

        Raises:
            InvalidInput: See `KvCache.extend`, or `k` is not in 1 to 64; nothing was changed.
            CacheFull: Not enough slots are free; nothing was changed.
        """
        size = top_block(self.config.vocab_size)
        blocks = self.config.vocab_size // size
        if not 1 <= k <= min(_LARGEST_K, self.config.vocab_size):
            raise InvalidInput("k", f"is {k}", f"give 1 to {min(_LARGEST_K, self.config.vocab_size)}")
        batch = self._extend(cache, feeds)
        logits = self._run(cache, batch, batch.ends)
        rows = len(logits)
        peaks, sums = (aligned_empty((rows, blocks), np.float32) for _ in range(2))
        self._library.top_blocks(rows, library.tensor(logits), library.tensor(peaks), library.tensor(sums))

        # The k largest logits lie in the k blocks with the largest peaks.
        each = np.arange(rows)[:, None]
        best = _largest(peaks, min(k, blocks))
        candidates = logits.reshape(rows, blocks, size)[each, best].reshape(rows, -1)
        places = _largest(candidates, k)
        places = places[each, np.argsort(-candidates[each, places], axis=1, kind="stable")]
        ids = best[each, places // size] * size + places % size
        peak = peaks.max(axis=1, keepdims=True).astype(np.float64)
        total = (sums * np.exp(peaks - peak)).sum(axis=1, keepdims=True)
        return ids, np.exp(candidates[each, places] - peak) / total

    def _extend(self, cache: KvCache, feeds: Sequence[Feed]) -> Batch:
        if cache.config != self.config:
            raise InvalidInput("cache", "was made for another model", "make one with this model's new_cache")
        return cache.extend(feeds)

    def _run(self, cache: KvCache, batch: Batch, picks: NDArray[np.intp]) -> Float32s:
        """Run a batch, chunk by chunk; returns the logits of the picked tokens, which are in ascending order."""
        logits = aligned_empty((len(picks), self.config.vocab_size), np.float32)
        cache_tensors = [library.tensor(array) for array in (cache.table, cache.keys, cache.values, cache.rotary)]
        table = ctypes.c_void_p(self._table.ctypes.data)
        done = 0
        for start in range(0, len(batch.tokens), _CHUNK):
            n = min(_CHUNK, len(batch.tokens) - start)
            for target, source in (
                (self._tokens, batch.tokens),
                (self._positions, batch.positions),
                (self._slots, batch.slots),
                (self._rows, batch.rows),
            ):
                target[:n] = source[start : start + n]
            m = int(np.searchsorted(picks, start + n)) - done
            self._picks[:m] = picks[done : done + m] - start
            rows = library.tensor(logits[done : done + m] if m else logits)
            self._library.step(n, m, table, *self._index_tensors, *cache_tensors, *self._scratch, rows)
            done += m
        return logits


def _largest(rows: Float32s, count: int) -> NDArray[np.intp]:
    """Where the `count` largest values of each row are, in no order."""
    return np.argpartition(rows, rows.shape[1] - count, axis=1)[:, -count:]
