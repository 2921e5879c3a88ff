"""The 4-bit format: its error bound, its layout, and its agreement with a plain scalar version."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from edgedraft_models import quantize as q

weights = hnp.arrays(
    np.float16,
    st.tuples(st.integers(1, 4), st.sampled_from([32, 64, 96])),
    elements=st.floats(-300, 300, width=16),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(weights)
def test_error_is_at_most_half_a_step(weight: NDArray[np.float16]) -> None:
    packed, scales = q.quantize(weight)
    restored = q.dequantize(packed, scales)
    exact = weight.astype(np.float64)
    step = np.repeat(np.abs(exact.reshape(len(weight), -1, q.GROUP)).max(-1) / q.LARGEST, q.GROUP, axis=1)
    # Half a step, and what rounding the scale itself to float16 adds at the far end.
    bound = step / 2 + np.maximum(q.LARGEST * step * 2.0**-11, q.LARGEST * 2.0**-24)
    assert (np.abs(restored - exact) <= bound * (1 + 1e-5)).all()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(weights)
def test_equals_the_scalar_version(weight: NDArray[np.float16]) -> None:
    packed, scales = q.quantize(weight)
    for row in range(len(weight)):
        for group in range(weight.shape[1] // 32):
            values = [float(x) for x in weight[row, group * 32 : group * 32 + 32]]
            scale = np.float16(np.float32(max(abs(x) for x in values)) / np.float32(7))
            assert scales[row, group] == scale
            for i, value in enumerate(values):
                word = int(packed[row, group * 4 + i // 8])
                expected = math.floor(np.float32(value) / np.float32(scale) + np.float32(7.5)) if scale else 7
                assert (word >> (4 * (i % 8))) & 15 == min(max(expected, 0), 14)


def test_layout_by_hand() -> None:
    weight = np.zeros((1, 32), np.float16)
    weight[0, 0], weight[0, 1], weight[0, 9] = 7, -7, 3
    packed, scales = q.quantize(weight)
    assert scales.tolist() == [[1.0]]
    assert [hex(word) for word in packed[0]] == ["0x7777770e", "0x777777a7", "0x77777777", "0x77777777"]
    assert packed.dtype == np.uint32
    assert scales.dtype == np.float16


def test_blocks_of_rows_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float16)
    whole = q.quantize(weight)
    monkeypatch.setattr(q, "_BLOCK", 64 * 7)
    assert all(np.array_equal(a, b) for a, b in zip(whole, q.quantize(weight), strict=True))


@pytest.mark.parametrize("shape", [(4, 31), (32,), (1, 2, 32)])
def test_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        q.quantize(np.zeros(shape, np.float16))
