"""A compiled model: weights mapped from an artifact folder, and the forward pass over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from edgedraft.runtime.kv import Feed, Float32s, KvCache
from edgedraft.runtime.manifest import Manifest, ModelConfig


class CompiledModel:
    """A Llama or Qwen2 decoder, compiled for this machine's CPU.

    Batch-invariant: the logits after a token are the same bits whatever else is in the call and however the tokens before
    it were split over calls. Not safe for use by several threads at once; other Python threads run on while it computes.

    Attributes:
        config: Shape of the model.
        manifest: What the artifact folder says of itself.
    """

    config: ModelConfig
    manifest: Manifest

    @classmethod
    def load(cls, folder: Path, *, threads: int | None = None, verify: bool = False) -> Self:
        """Load an artifact folder.

        Args:
            folder: Made by `edgedraft models build`.
            threads: CPU threads to compute with; None takes all that this process may use.
            verify: Hash every file first and compare with the manifest.

        Raises:
            ModelNotFound: The folder is not there or only half made.
            ModelFormatError: A file is missing, damaged or of another model, or the library is for other versions or
                another CPU.
            InvalidInput: `threads` is not positive, or more than this process may use.
        """
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError
