"""Matrix products with stored weights: y = W·x for any number of tokens, each summed in the same order.

A tile computes a few rows of W for a few tokens: a value of W is unpacked once and used for all tokens of the tile, a
value of x for all rows. Whatever the tile, one product of a row and a token is always summed the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from tvm.tirx import Cast, Ramp, Shuffle, const
from tvm.tirx.script import builder as T

from edgedraft_models.kernels.simd import (
    LANES,
    Buffer,
    Expr,
    fill,
    fma,
    horizontal_sum,
    lanes,
    let,
    local,
    prefetch,
    splat,
    transpose,
    tree_sum,
    widen,
)

_TILES = {8: 1, 4: 2, 2: 4, 1: 4}  # tokens: rows; what sixteen vector registers can hold
_AHEAD_BYTES = 4608  # how far before its use a weight is asked for: a quarter faster than never, one token at a time


class WeightFormat(ABC):
    """How weights lie in memory, and how inputs are laid out to go with them."""

    granularity: ClassVar[int]
    """Inputs come in multiples of this."""

    @abstractmethod
    def input_width(self, columns: int) -> int:
        """Floats that the laid-out inputs of one token take."""

    @abstractmethod
    def store_input(self, source: Callable[[Expr], Expr], inputs: Buffer, token: Expr, columns: int) -> None:
        """Lay out one token's inputs; `source` gives the eight that start at an index."""

    @abstractmethod
    def load_row(self, matrix: Sequence[Buffer], row: Expr, start: Expr) -> Expr:
        """Eight neighbouring weights of a row."""

    @abstractmethod
    def accumulate(
        self, matrix: Sequence[Buffer], rows: Sequence[Expr], inputs: Buffer, tokens: Sequence[Expr], columns: int
    ) -> Buffer:
        """Products of rows and tokens as vectors that are still to be summed over their lanes, row by row."""


class Float16(WeightFormat):
    """q0f16: float16 [rows, columns], widened on load; inputs as they are."""

    granularity = 32  # a cache line

    def input_width(self, columns: int) -> int:
        """One float a value."""
        return columns

    def store_input(self, source: Callable[[Expr], Expr], inputs: Buffer, token: Expr, columns: int) -> None:
        """Store the values in order."""
        with T.serial(0, columns // LANES) as i:
            T.buffer_store(inputs, source(i * LANES), [token, lanes(i * LANES)])

    def load_row(self, matrix: Sequence[Buffer], row: Expr, start: Expr) -> Expr:
        """Widen eight."""
        return widen(matrix[0][row, lanes(start)])

    def accumulate(
        self, matrix: Sequence[Buffer], rows: Sequence[Expr], inputs: Buffer, tokens: Sequence[Expr], columns: int
    ) -> Buffer:
        """One FMA for eight weights and a token."""
        sums = local(len(rows) * len(tokens))
        fill(sums, len(rows) * len(tokens))
        with T.serial(0, columns // self.granularity) as line:
            for row in rows:
                prefetch(matrix[0], row + _rows_ahead(2 * columns), line * self.granularity)
            for start in range(0, self.granularity, LANES):
                at = line * self.granularity + start
                values = [let(inputs[token, lanes(at)]) for token in tokens]
                for r, row in enumerate(rows):
                    weight = let(self.load_row(matrix, row, at))
                    for t, value in enumerate(values):
                        place = lanes((r * len(tokens) + t) * LANES)
                        T.buffer_store(sums, fma(weight, value, sums[place]), [place])
        return sums


class Int4(WeightFormat):
    """q4f16_1: eight 4-bit values q in a uint32, lowest bits first, and a float16 scale for 32; w = (q − 7)·scale.

    Works on blocks of 64 weights: one vector of eight words. Masking a word with 15·16^j leaves q·16^j of its j-th
    value, so the j-th values of all eight words are multiplied, unshifted, by inputs that carry the factor 16^−j.
    Powers of two cost no rounding. A ninth vector of inputs stands for the −7: minus seven times the sum of the inputs
    of each word.
    """

    granularity = 64
    _WORDS = 8  # in a block
    _VECTORS = 9  # of inputs for a block

    def input_width(self, columns: int) -> int:
        """Nine vectors for 64 values."""
        return columns // self.granularity * self._VECTORS * LANES

    def store_input(self, source: Callable[[Expr], Expr], inputs: Buffer, token: Expr, columns: int) -> None:
        """For each block, store the j-th inputs of all words together, for each j, and the vector for the −7."""
        with T.serial(0, columns // self.granularity) as block:
            words = [let(source(block * self.granularity + word * LANES)) for word in range(self._WORDS)]
            columns_of_words = transpose(words)
            for j, values in enumerate(columns_of_words):
                at = [token, lanes((block * self._VECTORS + j) * LANES)]
                T.buffer_store(inputs, values * splat(16.0**-j) if 0 < j < 7 else values, at)
            at = [token, lanes((block * self._VECTORS + 8) * LANES)]
            T.buffer_store(inputs, tree_sum(columns_of_words) * splat(-7.0), at)

    def load_row(self, matrix: Sequence[Buffer], row: Expr, start: Expr) -> Expr:
        """Unpack one word."""
        values, scales = matrix
        shifted = T.shift_right(splat(values[row, start // LANES]), Ramp(const(0, "uint32"), const(4, "uint32"), LANES))
        integers = T.reinterpret("int32x8", shifted & splat(15, "uint32")) - splat(7, "int32")
        return Cast("float32x8", integers) * splat(Cast("float32", scales[row, start // 32]))

    def accumulate(
        self, matrix: Sequence[Buffer], rows: Sequence[Expr], inputs: Buffer, tokens: Sequence[Expr], columns: int
    ) -> Buffer:
        """For a block, row and token: nine FMAs, the last one by the scale."""
        values, scales = matrix
        sums = local(len(rows) * len(tokens))
        fill(sums, len(rows) * len(tokens))
        with T.serial(0, columns // self.granularity) as block:

            def vector(token: Expr, number: int, block: Expr = block) -> Expr:
                return inputs[token, lanes((block * self._VECTORS + number) * LANES)]

            words = [let(values[row, lanes(block * self._WORDS)]) for row in rows]
            for row in rows:
                prefetch(values, row + _rows_ahead(columns // 2), block * self._WORDS)
            products = [[vector(token, 8) for token in tokens] for _ in rows]
            for j in range(LANES):
                xs = [let(vector(token, j)) for token in tokens]
                for r in range(len(rows)):
                    # The topmost value is shifted down: unshifted it would be read as a negative number.
                    bits = (
                        T.shift_right(words[r], splat(28, "uint32"))
                        if j == 7
                        else words[r] & splat(15 << 4 * j, "uint32")
                    )
                    weight = let(Cast("float32x8", T.reinterpret("int32x8", bits)))
                    products[r] = [let(fma(x, weight, product)) for x, product in zip(xs, products[r], strict=True)]
            for r, row in enumerate(rows):
                pair = let(scales[row, Ramp(block * 2, 1, 2)])
                spread = Shuffle([pair] * 4, [const(index, "int32") for index in (0, 0, 0, 0, 1, 1, 1, 1)])
                scale = let(widen(spread))
                for t in range(len(tokens)):
                    place = lanes((r * len(tokens) + t) * LANES)
                    T.buffer_store(sums, fma(products[r][t], scale, sums[place]), [place])
        return sums


def _rows_ahead(row_bytes: int) -> int:
    return -(-_AHEAD_BYTES // row_bytes)


FORMATS: dict[str, WeightFormat] = {"q4f16_1": Int4(), "q0f16": Float16()}
"""By the name of the quantization."""


def linear(
    weights: WeightFormat, matrix: Sequence[Buffer], inputs: Buffer, outputs: Buffer, n: Expr, rows: int, columns: int
) -> None:
    """Multiply a matrix with the inputs of `n` tokens; parallel over blocks of rows.

    Args:
        weights: Format of the matrix and of the inputs.
        matrix: [rows, columns] in that format.
        inputs: Laid out by `store_input`, one line a token.
        outputs: float32, one line of at least `rows` a token.
        n: Tokens.
        rows: A multiple of 4.
        columns: A multiple of the format's granularity.
    """
    block_rows = next(size for size in (16, 8, 4) if rows % size == 0)

    def tile(block: Expr, first: Expr, count: int) -> None:
        tokens = [first + t for t in range(count)]
        with T.serial(0, block_rows // _TILES[count]) as group:
            start = block * block_rows + group * _TILES[count]
            tile_rows = [start + r for r in range(_TILES[count])]
            sums = weights.accumulate(matrix, tile_rows, inputs, tokens, columns)
            for r, row in enumerate(tile_rows):
                for t, token in enumerate(tokens):
                    T.buffer_store(outputs, horizontal_sum(sums[lanes((r * count + t) * LANES)]), [token, row])

    with T.parallel(0, rows // block_rows) as block:
        with T.serial(0, n // 8) as eight:
            tile(block, eight * 8, 8)
        for count in (4, 2, 1):
            with T.If(T.bitwise_and(n, count) != 0), T.Then():
                tile(block, n // (2 * count) * (2 * count), count)
