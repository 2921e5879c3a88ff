"""The q4f16_1 weight format: 4-bit integers in groups of 32 along the input, with one float16 scale a group.

Facts of the format from MLC-LLM's group quantization: symmetric, w ≈ (q − 7)·scale with q in 0…14 and
scale = max|w| / 7; eight values in a uint32, the first in the lowest bits. Where MLC computes in float16, this computes
in float32, so that a value exactly between two steps may round the other way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP = 32
LARGEST = 7
_PER_WORD = 8
_SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)
_BLOCK = 1 << 22  # weights handled at once, to bound the memory that float32 copies take


def quantize(weight: NDArray[np.floating[Any]]) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
    """Quantize a weight matrix.

    Args:
        weight: Shape [out, in], `in` a multiple of 32.

    Returns:
        Packed values, uint32 [out, in / 8], and scales, float16 [out, in / 32].

    Raises:
        ValueError: The shape does not fit.
    """
    if weight.ndim != 2 or weight.shape[1] % GROUP:
        raise ValueError(f"weight of shape {weight.shape}: [out, in] with in a multiple of {GROUP} is needed")
    rows, width = weight.shape
    packed = np.empty((rows, width // _PER_WORD), np.uint32)
    scales = np.empty((rows, width // GROUP), np.float16)
    step = max(1, _BLOCK // width)
    for top in range(0, rows, step):
        block = slice(top, min(top + step, rows))
        groups = weight[block].astype(np.float32).reshape(-1, width // GROUP, GROUP)
        scale = (np.abs(groups).max(axis=-1) / LARGEST).astype(np.float16)
        # A group too small for a float16 scale becomes zero: dividing by infinity puts every value on the offset.
        divisor = np.where(scale > 0, scale.astype(np.float32), np.inf)[..., None]
        values = np.floor(groups / divisor + (LARGEST + 0.5)).clip(0, 2 * LARGEST).astype(np.uint32)
        packed[block] = np.bitwise_or.reduce(values.reshape(-1, width // _PER_WORD, _PER_WORD) << _SHIFTS, axis=-1)
        scales[block] = scale
    return packed, scales


def dequantize(packed: NDArray[np.uint32], scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """Undo `quantize` up to its rounding: float32 [out, in]."""
    rows, words = packed.shape
    values = ((packed[..., None] >> _SHIFTS) & 0xF).astype(np.float32).reshape(rows, -1, GROUP) - LARGEST
    return (values * scales.astype(np.float32)[..., None]).reshape(rows, words * _PER_WORD)
