"""What a drafter must offer; `tvm` and `scripted` implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from edgedraft.runtime.kv import Feed, SequenceId

__all__ = ["Candidates", "Contrast", "Drafter", "DrafterInfo", "Feed", "SequenceId"]


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What the rest of the SDK needs to know of a drafter.

    Attributes:
        name: For people, e.g. `smollm2-135m-instruct q4f16_1`.
        vocab_size: Token ids lie in [0, vocab_size).
        context_length: Tokens that one sequence can hold.
        tokenizer_fingerprint: Hex sha256; must equal the target's.
    """

    name: str
    vocab_size: int
    context_length: int
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """The most probable next tokens after a feed, best first.

    Attributes:
        ids: Token ids, at least one.
        probs: Their probabilities under the drafter (softmax at temperature 1, over the whole vocabulary).
    """

    ids: tuple[int, ...]
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Contrast:
    """What comes next under two views of the same text, and how far they are apart.

    Attributes:
        candidates: The most probable next tokens under the private view.
        public: Their probabilities under the public view.
        distance: Total variation of the two distributions over the whole vocabulary, ½ Σ |p − q|: 0 where the views
            agree, 1 where they have nothing in common.
    """

    candidates: Candidates
    public: tuple[float, ...]
    distance: float


class Drafter(ABC):
    """A small language model with a KV cache that can be cut back and branched.

    Not safe for use by several threads at once: the pipeline calls it from one thread.
    """

    @property
    @abstractmethod
    def info(self) -> DrafterInfo:
        """Fixed facts about the model."""

    @abstractmethod
    def new_sequence(self) -> SequenceId:
        """Start an empty sequence.

        Raises:
            DrafterError: No more sequences fit.
        """

    @abstractmethod
    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """Start a sequence that shares the first `length` tokens of another; nothing is copied.

        Raises:
            InvalidInput: `length` is more than the sequence holds.
        """

    @abstractmethod
    def step(self, feeds: Sequence[Feed], k: int) -> list[Candidates]:
        """Append tokens to sequences, all in one batch.

        It serves as prefill (one long feed), as catch-up (several tokens) and as a step over branches (one token each).

        Args:
            feeds: One feed a sequence at most.
            k: How many candidates to return a feed.

        Returns:
            The candidates after the last token of each feed, in the order of `feeds`.

        Raises:
            InvalidInput: An empty feed, a token id out of range, or a sequence beyond the context.
            DrafterError: The KV cache is full; nothing was appended.
        """

    @abstractmethod
    def contrast(self, private: Feed, public: Feed, k: int) -> Contrast:
        """Append tokens to the sequences of two views, in one batch, and compare what comes next under each.

        Args:
            private: Goes to the sequence that holds all that the device knows.
            public: Goes to the sequence that holds what the cloud sees.
            k: How many candidates of the private view to return.

        Raises:
            InvalidInput: As `step` does.
            DrafterError: The KV cache is full; nothing was appended.
        """

    @abstractmethod
    def truncate(self, sequence: SequenceId, length: int) -> None:
        """Cut a sequence back to its first `length` tokens.

        Raises:
            InvalidInput: `length` is more than the sequence holds.
        """

    @abstractmethod
    def free(self, sequence: SequenceId) -> None:
        """Forget a sequence."""

    @abstractmethod
    def close(self) -> None:
        """Give back the memory; the drafter is of no use afterwards."""
