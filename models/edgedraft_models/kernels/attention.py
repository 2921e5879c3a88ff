"""Attention of one token and head over the slots of its sequence, in one pass, in the order of the sequence."""

from __future__ import annotations

from tvm.tirx import Cast, Ramp, Select, const
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
    tree,
    tree_sum,
)

_BLOCK = 32  # entries
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
    """Softmax of query·key, applied to the values, in one pass with a running maximum (arXiv 1805.02867).

    Takes 32 entries at a time, which is enough independent work to hide how long one exponential takes.

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
    mixed, maximum, total, scores = local(vectors), local(1), local(1), local(_BLOCK // LANES)
    fill(mixed, vectors)
    fill(maximum, 1, _MASKED)
    fill(total, 1)
    line = let(Cast("int64", line))

    def entry(cache: Buffer, slot: Expr, part: int) -> Expr:
        return cache[line, slot, lanes(const(part * LANES, "int64"))]

    with T.serial(0, T.truncdiv(length + _BLOCK - 1, _BLOCK)) as block:
        start = block * _BLOCK
        count = let(T.min(length - start, _BLOCK))

        fill(scores, _BLOCK // LANES, _MASKED)
        with T.serial(0, T.truncdiv(count + LANES - 1, LANES)) as eight:
            # Past the end the last entry stands in; its score is masked.
            places = [T.min(start + eight * LANES + i, length - 1) for i in range(LANES)]
            slots = [let(Cast("int64", table[row, place])) for place in places]
            products: list[Expr] = [splat(0.0)] * LANES
            for part in range(vectors):
                q = let(query[token, lanes(query_start + part * LANES)])
                products = [let(fma(q, entry(keys, slots[i], part), products[i])) for i in range(LANES)]
            inside = Ramp(eight * LANES, 1, LANES) < splat(count)
            found = Select(inside, tree_sum(transpose(products)), splat(_MASKED))
            T.buffer_store(scores, found, [lanes(eight * LANES)])

        groups = [lanes(first) for first in range(0, _BLOCK, LANES)]
        old = hold(maximum[lanes(0)])
        largest = hold(tree(T.max, [scores[group] for group in groups]))
        new = hold(T.max(old, splat(horizontal(largest, T.max))))
        shrink = hold(exp(old - new))
        weights = [hold(exp(scores[group] - new)) for group in groups]
        for group, weight in zip(groups, weights, strict=True):
            T.buffer_store(scores, weight, [group])
        T.buffer_store(maximum, new, [lanes(0)])
        T.buffer_store(total, fma(total[lanes(0)], shrink, tree_sum(weights)), [lanes(0)])

        for part in range(vectors):
            T.buffer_store(mixed, mixed[lanes(part * LANES)] * shrink, [lanes(part * LANES)])
        with T.serial(0, count) as i:
            slot = let(Cast("int64", table[row, start + i]))
            weight = let(splat(scores[i]))
            for part in range(vectors):
                at = lanes(part * LANES)
                T.buffer_store(mixed, fma(weight, entry(values, slot, part), mixed[at]), [at])

    share = hold(splat(const(1.0, "float32") / horizontal_sum(total[lanes(0)])))
    for part in range(vectors):
        value = mixed[lanes(part * LANES)] * share
        T.buffer_store(outputs, value, [token, lanes(query_start + part * LANES)])
