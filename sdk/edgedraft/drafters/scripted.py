"""A drafter that follows a script instead of a model: for unit tests of what surrounds it, never for real drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedraft.drafters.base import Candidates, Contrast, Drafter, DrafterInfo, Feed, SequenceId
from edgedraft.drafters.contrast import compare_listed
from edgedraft.errors import DrafterError, InvalidInput

Script = Callable[[tuple[int, ...]], Sequence[int]]
"""From the tokens of a sequence, prompt included, to the next ones, best first."""


class ScriptedDrafter(Drafter):
    """Plays a script.

    Args:
        script: Says which tokens come next.
        vocab_size: Size of the vocabulary.
        context_length: Tokens a sequence holds.
        tokenizer_fingerprint: Of the tokenizer whose ids the script speaks.
        fail_at: Sequence length at which a step raises DrafterError, or None.
    """

    def __init__(
        self,
        script: Script,
        *,
        vocab_size: int,
        context_length: int = 1 << 20,
        tokenizer_fingerprint: str = "scripted",
        fail_at: int | None = None,
    ) -> None:
        self._script = script
        self._fail_at = fail_at
        self._info = DrafterInfo("scripted", vocab_size, context_length, tokenizer_fingerprint)
        self._sequences: dict[SequenceId, list[int]] = {}
        self._next = SequenceId(0)
        self.fed = 0

    @property
    def info(self) -> DrafterInfo:
        """Fixed facts; the name says that it is scripted."""
        return self._info

    def new_sequence(self) -> SequenceId:
        """Start an empty sequence."""
        self._next = SequenceId(self._next + 1)
        self._sequences[self._next] = []
        return self._next

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """Start a sequence with the first `length` tokens of another."""
        tokens = self._sequences[sequence]
        self._check_length(length, tokens)
        branch = self.new_sequence()
        self._sequences[branch] = tokens[:length]
        return branch

    def step(self, feeds: Sequence[Feed], k: int) -> list[Candidates]:
        """Append tokens and read the script."""
        for feed in feeds:
            if not feed.tokens:
                raise InvalidInput("feed.tokens", "is empty", "feed at least one token")
            length = len(self._sequences[feed.sequence]) + len(feed.tokens)
            if length > self._info.context_length:
                raise InvalidInput("feed.tokens", f"makes {length} tokens of {self._info.context_length}", "stop there")
            if self._fail_at is not None and length >= self._fail_at:
                raise DrafterError(f"the script fails at {self._fail_at} tokens")
        answers = []
        for feed in feeds:
            tokens = self._sequences[feed.sequence]
            tokens.extend(feed.tokens)
            self.fed += len(feed.tokens)
            ids = tuple(self._script(tuple(tokens)))[:k]
            answers.append(Candidates(ids, tuple(0.5**rank for rank in range(1, len(ids) + 1))))
        return answers

    def contrast(self, private: Feed, public: Feed, k: int) -> Contrast:
        """Append tokens and compare what the script says of each view."""
        own, other = self.step([private, public], self._info.vocab_size)
        return compare_listed(own, other, k)

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """Cut a sequence back."""
        self._check_length(length, self._sequences[sequence])
        del self._sequences[sequence][length:]

    def free(self, sequence: SequenceId) -> None:
        """Forget a sequence."""
        del self._sequences[sequence]

    def close(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()

    @staticmethod
    def _check_length(length: int, tokens: list[int]) -> None:
        if not 0 <= length <= len(tokens):
            raise InvalidInput("length", f"is {length}, the sequence has {len(tokens)} tokens", "cut within it")
