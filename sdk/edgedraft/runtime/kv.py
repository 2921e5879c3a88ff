"""The KV cache: a pool of slots, and sequences that are lists of slots; branching and cutting back copy nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import CacheFull, InvalidInput
from edgedraft.runtime.manifest import ModelConfig
from edgedraft.runtime.rotary import fill_rotary

SequenceId = NewType("SequenceId", int)
"""Names one token sequence of a cache; never used twice."""

Scalar = TypeVar("Scalar", bound=np.generic)
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]

_ALIGNMENT = 64  # bytes: a cache line, and what the kernels' vector loads expect


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens to append to one sequence.

    Attributes:
        sequence: The sequence that grows.
        tokens: At least one token id.
    """

    sequence: SequenceId
    tokens: Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Batch:
    """Feeds laid out token by token, as the kernels take them.

    Attributes:
        tokens: Token ids, [n].
        positions: Place of each in its sequence, [n]; it attends to the entries 0 to its own.
        slots: Where its keys and values go, [n].
        rows: Its sequence's row of the slot table, [n].
        ends: Index of the last token of each feed, [feeds].
    """

    tokens: Int32s
    positions: Int32s
    slots: Int32s
    rows: Int32s
    ends: NDArray[np.intp]


class KvCache:
    """Keys and values of many sequences, which may share their beginnings.

    A slot holds one token's keys and values in all layers. A sequence is a list of slots. `fork` shares slots,
    `truncate` and `free` give back the ones that no other sequence uses. Not safe for use by several threads at once.

    Args:
        config: Shape of the model.
        tokens: Slots in the pool: tokens of all sequences together, a shared beginning counted once.
        sequences: Sequences that may live at once.

    Raises:
        InvalidInput: A size is not positive.
    """

    def __init__(self, config: ModelConfig, tokens: int, sequences: int = 64) -> None:
        for name, value in (("tokens", tokens), ("sequences", sequences)):
            if value < 1:
                raise InvalidInput(name, f"is {value}", "give at least 1")
        self.config = config
        self.context = min(tokens, config.context_window_size)
        shape = (config.num_hidden_layers * config.num_key_value_heads, tokens, config.head_dim)
        self.keys = aligned_empty(shape, np.float32)
        self.values = aligned_empty(shape, np.float32)
        self.rotary = aligned_empty((self.context, config.head_dim), np.float32)
        fill_rotary(self.rotary, config)
        self.table: Int32s = aligned_empty((sequences, self.context), np.int32)
        self._users = np.zeros(tokens, np.int32)  # how many sequences hold a slot
        self._free = np.arange(tokens - 1, -1, -1, dtype=np.int32)  # a stack; its top is at _free_count
        self._free_count = tokens
        self._free_rows = list(range(sequences - 1, -1, -1))
        self._rows: dict[SequenceId, int] = {}
        self._lengths: dict[SequenceId, int] = {}
        self._next_id = 0

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return len(self._free)

    @property
    def free_tokens(self) -> int:
        """Slots that no sequence uses."""
        return self._free_count

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def new_sequence(self) -> SequenceId:
        """Start an empty sequence.

        Raises:
            CacheFull: As many sequences live as the cache was made for.
        """
        if not self._free_rows:
            raise CacheFull(
                f"all {self.table.shape[0]} sequences of the cache are in use; free one or make a larger cache"
            )
        sequence = SequenceId(self._next_id)
        self._next_id += 1
        self._rows[sequence] = self._free_rows.pop()
        self._lengths[sequence] = 0
        return sequence

    def length(self, sequence: SequenceId) -> int:
        """Tokens that a sequence holds.

        Raises:
            InvalidInput: No such sequence.
        """
        length = self._lengths.get(sequence)
        if length is None:
            raise InvalidInput("sequence", f"{sequence} is not in this cache", "use one that is not freed yet")
        return length

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """Start a sequence that shares the first `length` tokens of another.

        Raises:
            InvalidInput: No such sequence, or it is shorter.
            CacheFull: As many sequences live as the cache was made for.
        """
        self._check_length(sequence, length)
        branch = self.new_sequence()
        shared = self.table[self._rows[sequence], :length]
        self.table[self._rows[branch], :length] = shared
        self._users[shared] += 1
        self._lengths[branch] = length
        return branch

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """Cut a sequence back to its first `length` tokens.

        Raises:
            InvalidInput: No such sequence, or it is shorter.
        """
        self._check_length(sequence, length)
        dropped = self.table[self._rows[sequence], length : self._lengths[sequence]]
        self._users[dropped] -= 1
        unused = dropped[self._users[dropped] == 0][::-1]  # so that they are handed out again in ascending order
        self._free[self._free_count : self._free_count + len(unused)] = unused
        self._free_count += len(unused)
        self._lengths[sequence] = length

    def free(self, sequence: SequenceId) -> None:
        """Forget a sequence.

        Raises:
            InvalidInput: No such sequence.
        """
        self.truncate(sequence, 0)
        self._free_rows.append(self._rows.pop(sequence))
        del self._lengths[sequence]

    def extend(self, feeds: Sequence[Feed]) -> Batch:
        """Give slots to the tokens of feeds; `CompiledModel.forward` fills them.

        Args:
            feeds: At most one a sequence.

        Raises:
            InvalidInput: No feed, an empty one, a token id out of range, a sequence that is unknown, named twice or
                would outgrow the context. Nothing was changed.
            CacheFull: Not enough slots are free. Nothing was changed.
        """
        tokens = [self._check_feed(feed) for feed in feeds]
        if not tokens:
            raise InvalidInput("feeds", "is empty", "give at least one feed")
        if len({feed.sequence for feed in feeds}) < len(feeds):
            raise InvalidInput("feeds", "name a sequence twice", "put its tokens into one feed")
        counts = [len(part) for part in tokens]
        total = sum(counts)
        if total > self._free_count:
            raise CacheFull(
                f"{total} tokens do not fit: {self._free_count} of {len(self._free)} slots are free; "
                "free sequences or make a larger cache"
            )
        slots = self._free[self._free_count - total : self._free_count][::-1].copy()
        self._free_count -= total
        self._users[slots] = 1
        positions = np.empty(total, np.int32)
        start = 0
        for feed, count in zip(feeds, counts, strict=True):
            length, row = self._lengths[feed.sequence], self._rows[feed.sequence]
            self.table[row, length : length + count] = slots[start : start + count]
            positions[start : start + count] = np.arange(length, length + count)
            self._lengths[feed.sequence] = length + count
            start += count
        rows = np.repeat(np.array([self._rows[feed.sequence] for feed in feeds], np.int32), counts)
        return Batch(np.concatenate(tokens), positions, slots, rows, np.cumsum(counts) - 1)

    def _check_length(self, sequence: SequenceId, length: int) -> None:
        held = self.length(sequence)
        if not 0 <= length <= held:
            raise InvalidInput("length", f"is {length}, but the sequence holds {held} tokens", f"give 0 to {held}")

    def _check_feed(self, feed: Feed) -> Int32s:
        tokens = np.asarray(feed.tokens)
        if tokens.ndim != 1 or not tokens.size:
            raise InvalidInput(
                "feed.tokens", f"has the shape {tokens.shape}", "feed a flat list of at least one token id"
            )
        wanted = f"give whole numbers from 0 to {self.config.vocab_size - 1}"
        if tokens.dtype.kind not in "iu":
            raise InvalidInput("feed.tokens", f"holds values of the type {tokens.dtype}", wanted)
        low, high = tokens.min(), tokens.max()
        if low < 0 or high >= self.config.vocab_size:
            raise InvalidInput("feed.tokens", f"holds {low if low < 0 else high}", wanted)
        length = self.length(feed.sequence) + len(tokens)
        if length > self.context:
            raise InvalidInput(
                "feed.tokens", f"would make a sequence of {length} tokens", f"stay within the context of {self.context}"
            )
        return tokens.astype(np.int32)


def aligned_empty(shape: tuple[int, ...], dtype: type[Scalar]) -> NDArray[Scalar]:
    """An array like `numpy.empty`'s that starts at a multiple of 64 bytes."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
