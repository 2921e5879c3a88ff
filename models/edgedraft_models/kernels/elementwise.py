"""What happens to one token's vector between the matrix products: embedding, norm, rotary embedding, SwiGLU."""

from __future__ import annotations

import math

from tvm.tirx import Cast, const
from tvm.tirx.script import builder as T

from edgedraft.runtime.manifest import ModelConfig
from edgedraft_models.kernels.linear import WeightFormat
from edgedraft_models.kernels.simd import (
    LANES,
    Buffer,
    Expr,
    exp,
    fill,
    fma,
    hold,
    horizontal_sum,
    lanes,
    let,
    local,
    splat,
    widen,
)


def add_and_norm(
    weights: WeightFormat,
    residual: Buffer,
    update: Buffer,
    source: Expr,
    scale: Buffer,
    epsilon: float,
    inputs: Buffer,
    token: Expr,
    width: int,
) -> None:
    """Add an update to the residual stream, and lay out its RMS norm (arXiv 1910.07467) for the next matrix product.

    Args:
        weights: Format of that matrix.
        residual: float32, one line a token; changed in place.
        update: float32, one line a token.
        source: Line of `residual` and `update`.
        scale: The norm's weight, float16 [width].
        epsilon: Added to the mean square.
        inputs: Takes the result.
        token: Line of `inputs`.
        width: Of the residual stream.
    """
    squares = local(1)
    fill(squares, 1)
    with T.serial(0, width // LANES) as i:
        here = [source, lanes(i * LANES)]
        value = hold(residual[here[0], here[1]] + update[here[0], here[1]])
        T.buffer_store(residual, value, here)
        T.buffer_store(squares, fma(value, value, squares[lanes(0)]), [lanes(0)])
    total = hold(horizontal_sum(squares[lanes(0)]))
    mean = fma(total, const(1 / width, "float32"), const(epsilon, "float32"))
    factor = hold(const(1.0, "float32") / T.sqrt(mean))

    def normed(start: Expr) -> Expr:
        return residual[source, lanes(start)] * splat(factor) * widen(scale[lanes(start)])

    weights.store_input(normed, inputs, token, width)


def embed(
    weights: WeightFormat, matrix: list[Buffer], word: Expr, residual: Buffer, update: Buffer, token: Expr, width: int
) -> None:
    """Start a token: an empty residual stream, and its embedding as the first update."""
    with T.serial(0, width // LANES) as i:
        here = [token, lanes(i * LANES)]
        T.buffer_store(residual, splat(0.0), here)
        T.buffer_store(update, weights.load_row(matrix, word, i * LANES), here)


def rotate_and_cache(
    config: ModelConfig,
    qkv: Buffer,
    bias: Buffer | None,
    rotary: Buffer,
    position: Expr,
    slot: Expr,
    keys: Buffer,
    values: Buffer,
    first_head: Expr,
    token: Expr,
) -> None:
    """Add the biases, turn query and key by their position, and put key and value into the cache.

    The rotary embedding of arXiv 2104.09864, with the two halves of a head as the pairs. The query stays in `qkv`,
    multiplied by 1 / √head_dim.

    Args:
        config: Shape of the model.
        qkv: float32, one line a token: query heads, key heads, value heads.
        bias: float16, or None.
        rotary: float32 [positions, head_dim]: cosines, then sines.
        position: The token's place in its sequence.
        slot: Where its key and value go.
        keys: float32 [layers · key heads, slots, head_dim].
        values: Likewise.
        first_head: Line of `keys` and `values` where this layer's heads start.
        token: Line of `qkv`.
    """
    width, half = config.head_dim, config.head_dim // 2

    def load(start: Expr) -> Expr:
        value = qkv[token, lanes(start)]
        return hold(value if bias is None else value + widen(bias[lanes(start)]))

    def turn(start: Expr, i: Expr) -> tuple[Expr, Expr]:
        first, second = load(start + i), load(start + half + i)
        cosine, sine = let(rotary[position, lanes(i)]), let(rotary[position, lanes(half + i)])
        return hold(fma(first, cosine, -let(second * sine))), hold(fma(second, cosine, let(first * sine)))

    with T.serial(0, config.num_attention_heads) as head, T.serial(0, half // LANES) as i:
        for part, value in enumerate(turn(head * width, i * LANES)):
            scaled = value * splat(1 / math.sqrt(width))
            T.buffer_store(qkv, scaled, [token, lanes(head * width + part * half + i * LANES)])
    key_start = config.num_attention_heads * width
    value_start = key_start + config.num_key_value_heads * width
    with T.serial(0, config.num_key_value_heads) as head:
        line = Cast("int64", first_head + head)
        with T.serial(0, half // LANES) as i:
            for part, value in enumerate(turn(key_start + head * width, i * LANES)):
                T.buffer_store(keys, value, [line, Cast("int64", slot), lanes(Cast("int64", part * half + i * LANES))])
        with T.serial(0, width // LANES) as i:
            value = load(value_start + head * width + i * LANES)
            T.buffer_store(values, value, [line, Cast("int64", slot), lanes(Cast("int64", i * LANES))])


def swiglu(weights: WeightFormat, gate_up: Buffer, inputs: Buffer, token: Expr, width: int) -> None:
    """Lay out silu(gate)·up (arXiv 2002.05202) for the next matrix product; `gate_up` holds one after the other."""

    def product(start: Expr) -> Expr:
        gate = let(gate_up[token, lanes(start)])
        silu = let(gate / (splat(1.0) + exp(-gate)))
        return silu * gate_up[token, lanes(start + width)]

    weights.store_input(product, inputs, token, width)
