"""Vectors of eight floats in TIR: loads, arithmetic whose rounding is fixed, sums in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm.tirx import Broadcast, Cast, Ramp, Shuffle, const
from tvm.tirx.script import builder as T

Expr = Any
"""A TIR expression; TVM's Python package has no types."""

Buffer = Any

LANES = 8


def lanes(start: Expr) -> Expr:
    """Index of eight neighbours."""
    return Ramp(start, 1, LANES)


def splat(value: Expr, dtype: str = "float32") -> Expr:
    """A vector of one value."""
    return Broadcast(const(value, dtype) if isinstance(value, int | float) else value, LANES)


def let(value: Expr) -> Expr:
    """Give a value a name. TVM's simplifier may put it into its uses again."""
    return T.Bind(value)


def hold(value: Expr) -> Expr:
    """Compute a float or vector of floats now, and refer to it afterwards.

    It goes through a variable on the stack, which LLVM turns into a register and TVM's simplifier leaves alone. So it
    is the way to keep a value whose origin is about to be overwritten; and without it, chains of values that are each
    used several times (a polynomial, a softmax) would grow exponentially.
    """
    _, _, count = str(value.ty.dtype).partition("x")
    variable = T.alloc_buffer((int(count or 1),), "float32")
    index = Ramp(0, 1, int(count)) if count else 0
    T.buffer_store(variable, value, [index])
    return variable[index]


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a·b + c, rounded once; scalars or vectors."""
    return T.fma(a, b, c)


def widen(vector: Expr) -> Expr:
    """float16 to float32, eight lanes."""
    return Cast("float32x8", vector)


def prefetch(buffer: Buffer, row: Expr, column: Expr) -> None:
    """Ask for the cache line of an element; it need not exist."""
    read, keep, data = (const(flag, "int32") for flag in (0, 3, 1))
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", T.address_of(buffer[row, column]), read, keep, data))


def fill(buffer: Buffer, count: int, value: float = 0.0) -> None:
    """Set the first `count` vectors of a local buffer."""
    for i in range(count):
        T.buffer_store(buffer, splat(value), [lanes(i * LANES)])


def local(vectors: int) -> Buffer:
    """A buffer of vectors on the stack; it lives in registers where all indices are constants."""
    return T.alloc_buffer((vectors * LANES,), "float32")


def tree(combine: Callable[[Expr, Expr], Expr], values: Sequence[Expr]) -> Expr:
    """Combine values pairwise, neighbours first; their number is a power of two."""
    while len(values) > 1:
        values = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def tree_sum(values: Sequence[Expr]) -> Expr:
    """Sum pairwise."""
    return tree(lambda a, b: a + b, values)


def horizontal(vector: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """Combine the eight lanes of a vector, by halves."""
    for width in (4, 2):
        vector = let(combine(T.vectorlow(f"float32x{width}", vector), T.vectorhigh(f"float32x{width}", vector)))
    return combine(Shuffle([vector], [const(0, "int32")]), Shuffle([vector], [const(1, "int32")]))


def horizontal_sum(vector: Expr) -> Expr:
    """Sum of the eight lanes."""
    return horizontal(vector, lambda a, b: a + b)


def transpose(rows: Sequence[Expr]) -> list[Expr]:
    """Transpose 8 × 8: lane i of row j becomes lane j of row i."""
    result = list(rows)
    for stride in (4, 2, 1):
        for i in range(LANES):
            if i & stride:
                continue
            a, b = result[i], result[i + stride]
            low = [lane - stride + LANES if lane & stride else lane for lane in range(LANES)]
            high = [lane + LANES if lane & stride else lane + stride for lane in range(LANES)]
            result[i], result[i + stride] = let(_pick(a, b, low)), let(_pick(a, b, high))
    return result


def _pick(a: Expr, b: Expr, indices: Sequence[int]) -> Expr:
    return Shuffle([a, b], [const(index, "int32") for index in indices])


def exp(x: Expr) -> Expr:
    """e^x of a vector, to about two units in the last place; below −87 it is next to 0.

    Splits x = n·ln 2 + r with |r| ≤ ln 2 / 2, takes e^r by its Taylor series to the seventh power (error below 1e-8)
    and puts n into the exponent.
    """
    x = hold(T.max(T.min(x, splat(88.0)), splat(-87.0)))
    n = hold(T.nearbyint(x * splat(1 / math.log(2))))
    # ln 2 in two parts, the first short enough that n times it is exact.
    r = hold(fma(n, splat(-0.693359375), x))
    r = hold(fma(n, splat(0.693359375 - math.log(2)), r))
    result = splat(1 / math.factorial(7))
    for power in range(6, -1, -1):
        result = hold(fma(result, r, splat(1 / math.factorial(power))))
    exponent = T.shift_left(Cast("int32x8", n) + splat(127, "int32"), splat(23, "int32"))
    return result * T.reinterpret("float32x8", exponent)


def for_tokens(n: Expr, body: Callable[[Expr], None]) -> None:
    """Run something for each token: over the threads, but a single token at once, which is cheaper than waking them."""
    with T.If(n == 1):
        with T.Then():
            body(const(0, "int32"))
        with T.Else(), T.parallel(0, n) as token:
            body(token)
