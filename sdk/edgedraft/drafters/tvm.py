"""The drafter on a compiled model: 4-bit weights on this device's CPU, through TVM's runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from edgedraft.drafters.base import Candidates, Contrast, Drafter, DrafterInfo, Feed, SequenceId
from edgedraft.drafters.contrast import compare
from edgedraft.errors import CacheFull, DrafterError, InvalidInput
from edgedraft.runtime.compiled import CompiledModel

MAX_SEQUENCES: Final = 64
"""Branches and generations that may live at once."""


class TvmDrafter(Drafter):
    """Runs an artifact folder as a drafter.

    Args:
        model: The compiled model.
        kv_tokens: Tokens that the KV cache holds, all sequences together, a shared beginning counted once; None: twice
            the model's context, which two views of one generation fit in. What is not used takes no memory.
    """

    def __init__(self, model: CompiledModel, *, kv_tokens: int | None = None) -> None:
        self._model = model
        self._cache = model.new_cache(kv_tokens or 2 * model.config.context_window_size, sequences=MAX_SEQUENCES)
        self._info = DrafterInfo(
            name=f"{model.manifest.model} {model.manifest.quantization}",
            vocab_size=model.config.vocab_size,
            context_length=self._cache.context,
            tokenizer_fingerprint=model.manifest.tokenizer_fingerprint,
        )

    @classmethod
    def load(cls, folder: str | Path, *, threads: int | None = None, kv_tokens: int | None = None) -> Self:
        """Load an artifact folder made by `edgedraft models build`.

        Args:
            folder: The folder.
            threads: CPU threads to compute with; None takes all that this process may use.
            kv_tokens: Tokens that the KV cache holds; None takes twice the model's context.

        Raises:
            ModelNotFound: The folder is not there or only half made.
            ModelFormatError: A file is damaged, or the library is for another CPU or version.
            InvalidInput: A setting is out of range.
        """
        return cls(CompiledModel.load(Path(folder), threads=threads), kv_tokens=kv_tokens)

    @property
    def info(self) -> DrafterInfo:
        """Fixed facts about the model."""
        return self._info

    def new_sequence(self) -> SequenceId:
        """Start an empty sequence."""
        try:
            return self._cache.new_sequence()
        except CacheFull as error:
            raise DrafterError(str(error)) from error

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """Start a sequence that shares the first `length` tokens of another; nothing is copied."""
        try:
            return self._cache.fork(sequence, length)
        except CacheFull as error:
            raise DrafterError(str(error)) from error

    def step(self, feeds: Sequence[Feed], k: int) -> list[Candidates]:
        """Append tokens to sequences, all in one batch; see `Drafter.step`."""
        if not feeds:
            raise InvalidInput("feeds", "is empty", "feed at least one sequence")
        try:
            ids, probs = self._model.forward_top_k(self._cache, feeds, k)
        except CacheFull as error:
            raise DrafterError(str(error)) from error
        return [
            Candidates(tuple(row_ids), tuple(row_probs))
            for row_ids, row_probs in zip(ids.tolist(), probs.tolist(), strict=True)
        ]

    def contrast(self, private: Feed, public: Feed, k: int) -> Contrast:
        """Append tokens to the sequences of two views and compare what comes next; see `Drafter.contrast`."""
        try:
            logits = self._model.forward(self._cache, [private, public])
        except CacheFull as error:
            raise DrafterError(str(error)) from error
        return compare(logits[0], logits[1], k)

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """Cut a sequence back to its first `length` tokens."""
        self._cache.truncate(sequence, length)

    def free(self, sequence: SequenceId) -> None:
        """Forget a sequence."""
        self._cache.free(sequence)

    def close(self) -> None:
        """Forget everything; the memory goes with the last reference to the drafter."""
        del self._cache
        del self._model
