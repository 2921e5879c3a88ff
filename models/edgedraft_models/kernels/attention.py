"""Attention of one token and head over the slots of its sequence, in one pass, in the order of the sequence."""

from __future__ import annotations

from tvm.tirx import Cast, Ramp, Select, Shuffle, const
from tvm.tirx.script import builder as T

from edgedraft_models.kernels.simd import (
    LANES,
    Buffer,
    Expr,
    exp,
    fill,
    fma,
    hold,
    horizontal,
    horizontal_sum,
    lanes,
    let,
    local,
    splat,
    transpose,
    tree_sum,
)

_MASKED = -1e30  # a score that vanishes beside any real one


def attend(
    query: Buffer,
    token: Expr,
    query_start: Expr,
    table: Buffer,
    row: Expr,
    length: Expr,
    keys: Buffer,
    values: Buffer,
    line: Expr,
    outputs: Buffer,
    width: int,
) -> None:
    """Softmax of query·key, applied to the values; eight entries at a time with a running maximum (arXiv 1805.02867).

    Args:
        query: float32, one line a token, already divided by √width.
        token: Line of `query` and `outputs`.
        query_start: Where the head starts in both.
        table: int32 [sequences, context]: slots of each sequence.
        row: The sequence.
        length: Entries to attend to, at least 1.
        keys: float32 [lines, slots, width].
        values: Likewise.
        line: Of this layer and head.
        outputs: float32, one line a token.
        width: Of a head.
    """
    vectors = width // LANES
    mixed, maximum, total = local(vectors), local(1), local(1)
    fill(mixed, vectors)
    fill(maximum, 1, _MASKED)
    fill(total, 1)
    line = let(Cast("int64", line))
    with T.serial(0, T.truncdiv(length + LANES - 1, LANES)) as block:
        # Past the end the last entry stands in, with weight 0.
        slots = [let(Cast("int64", table[row, T.min(block * LANES + i, length - 1)])) for i in range(LANES)]

        def entry(cache: Buffer, slot: Expr, part: int) -> Expr:
            return cache[line, slot, lanes(const(part * LANES, "int64"))]

        products: list[Expr] = [splat(0.0)] * LANES
        for part in range(vectors):
            q = let(query[token, lanes(query_start + part * LANES)])
            products = [let(fma(q, entry(keys, slots[i], part), products[i])) for i in range(LANES)]
        inside = Ramp(block * LANES, 1, LANES) < splat(length)
        scores = hold(Select(inside, tree_sum(transpose(products)), splat(_MASKED)))

        old = hold(maximum[lanes(0)])
        new = hold(T.max(old, splat(horizontal(scores, T.max))))
        shrink = hold(exp(old - new))
        weights = hold(Select(inside, exp(scores - new), splat(0.0)))
        T.buffer_store(maximum, new, [lanes(0)])
        T.buffer_store(total, fma(total[lanes(0)], shrink, weights), [lanes(0)])
        spread = [let(splat(Shuffle([weights], [const(i, "int32")]))) for i in range(LANES)]
        for part in range(vectors):
            value = let(mixed[lanes(part * LANES)] * shrink)
            for i in range(LANES):
                value = let(fma(spread[i], entry(values, slots[i], part), value))
            T.buffer_store(mixed, value, [lanes(part * LANES)])
    share = hold(splat(const(1.0, "float32") / horizontal_sum(total[lanes(0)])))
    for part in range(vectors):
        value = mixed[lanes(part * LANES)] * share
        T.buffer_store(outputs, value, [token, lanes(query_start + part * LANES)])
