"""The vector vocabulary of the kernels, run as compiled code."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from edgedraft.runtime.kv import aligned_empty
from edgedraft_models.kernels.simd import LANES, exp, horizontal_sum, lanes, transpose, tree_sum
from edgedraft_models.targets import find_target


def compiled(body: Callable[[Any, Any], None], length: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from one array of floats to another."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("run")
        source, target = (T.match_buffer(T.arg(name, T.handle()), (length,)) for name in ("source", "target"))
        body(source, target)
    module = tvm.tirx.build(tvm.IRModule({"run": builder.get()}), target=tvm.target.Target(find_target("native").llvm))
    run = module["run"]

    def call(values: np.ndarray) -> np.ndarray:
        source, target = aligned_empty((length,), np.float32), aligned_empty((length,), np.float32)
        source[:] = values
        run(tvm_ffi.from_dlpack(source), tvm_ffi.from_dlpack(target))
        return target

    return call


def _exp(source: Any, target: Any) -> None:
    with T.serial(0, 1024) as i:
        T.buffer_store(target, exp(source[lanes(i * LANES)]), [lanes(i * LANES)])


def _transpose(source: Any, target: Any) -> None:
    for i, row in enumerate(transpose([source[lanes(i * LANES)] for i in range(LANES)])):
        T.buffer_store(target, row, [lanes(i * LANES)])


def _sums(source: Any, target: Any) -> None:
    T.buffer_store(target, horizontal_sum(source[lanes(0)]), [0])
    T.buffer_store(target, horizontal_sum(tree_sum([source[lanes(8 * i)] for i in range(4)])), [1])


EXP, TRANSPOSE, SUMS = compiled(_exp, 8192), compiled(_transpose, 64), compiled(_sums, 32)


def test_exp_is_right_to_a_few_units_in_the_last_place():
    values = np.linspace(-87, 88, 8192).astype(np.float32)
    exact = np.exp(values.astype(np.float64))
    assert np.abs(EXP(values) / exact - 1).max() < 3e-7
    assert EXP(np.zeros(8192, np.float32))[0] == 1.0


def test_exp_does_not_run_over_or_under():
    values = np.resize(np.array([-1e30, -200.0, -88.0, 89.0, 200.0, 1e30], np.float32), 8192)
    found = EXP(values)
    assert np.isfinite(found).all()
    assert (found[:3] < 1e-37).all()
    assert (found[3:6] > 1e38).all()


def test_transpose():
    matrix = np.arange(64, dtype=np.float32)
    assert np.array_equal(TRANSPOSE(matrix).reshape(8, 8), matrix.reshape(8, 8).T)


@given(arrays.arrays(np.float32, 32, elements=st.floats(-1e3, 1e3, width=32)))
def test_sums_go_by_halves(values):
    def by_halves(vector: np.ndarray) -> np.float32:
        while len(vector) > 1:
            vector = vector[: len(vector) // 2] + vector[len(vector) // 2 :]
        return vector[0]

    a, b, c, d = values.reshape(4, 8)
    assert list(SUMS(values)[:2]) == [by_halves(a), by_halves((a + b) + (c + d))]
