"""The table of the rotary position embedding (arXiv 2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedraft.runtime.manifest import ModelConfig


def fill_rotary(table: NDArray[np.float32], config: ModelConfig) -> None:
    """Fill a table for positions 0, 1, ….

    Args:
        table: float32 [positions, head_dim]; takes the cosines, then the sines.
        config: Shape of the model.
    """
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
    if config.rope_scaling is not None:
        frequencies = _stretch(frequencies, config.rope_scaling)
    angles = np.outer(np.arange(len(table)), frequencies)
    np.cos(angles, out=table[:, :half], casting="same_kind")
    np.sin(angles, out=table[:, half:], casting="same_kind")


def _stretch(frequencies: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    """Llama 3's scaling (arXiv 2407.21783): slow frequencies divided by `factor`, fast ones kept, a blend between."""
    factor, low, high = (float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / factor)
