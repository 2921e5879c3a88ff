"""Reading and writing safetensors, checked against the format's own library and against broken files."""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedraft.errors import ModelFormatError
from edgedraft_models.safetensors_file import SafetensorsFile, write_float16

shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(min_size=1, max_size=8), shapes, min_size=1, max_size=4))
def test_library_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, tuple[int, ...]]
) -> None:
    sizes.pop("__metadata__", None)
    path = tmp_path_factory.mktemp("st") / "a.safetensors"
    tensors = {name: np.random.default_rng(1).standard_normal(shape) for name, shape in sizes.items()}
    counts: list[int] = []
    digest = write_float16(path, sizes, lambda name: tensors[name], counts.append)
    read = safetensors.numpy.load_file(path)
    assert set(read) == set(tensors)
    assert all(np.array_equal(read[name], tensors[name].astype(np.float16)) for name in tensors)
    assert counts == list(range(1, len(sizes) + 1))
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    ours = SafetensorsFile(path)
    assert all(np.array_equal(ours.read(name), read[name]) and ours.shape(name) == sizes[name] for name in ours.names())


def test_reads_float32_of_the_library(tmp_path: Path) -> None:
    tensor = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    safetensors.numpy.save_file({"t": tensor}, tmp_path / "a.safetensors")
    assert np.array_equal(SafetensorsFile(tmp_path / "a.safetensors").read("t"), tensor)


def test_reads_bfloat16(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.0e38, 0.0], np.float32)  # all are exact in bfloat16 but the third
    _write(
        tmp_path / "a",
        {"t": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
        values.view("<u2")[1::2].tobytes(),
    )
    assert np.allclose(SafetensorsFile(tmp_path / "a").read("t"), values, rtol=2**-7)
    assert SafetensorsFile(tmp_path / "a").read("t")[1] == -2.5


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"\xff" * 16, struct.pack("<Q", 4) + b"{{{{", struct.pack("<Q", 999) + b"{}"]
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ModelFormatError, match="fetch it again"):
        SafetensorsFile(tmp_path / "a")


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a", {"t": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}}, b"\0" * 7)
    with pytest.raises(ModelFormatError, match="cut short"):
        SafetensorsFile(tmp_path / "a")


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {"shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": 4, "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": [4], "data_offsets": [0]},
        {"dtype": "F16", "shape": [-4], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": [4], "data_offsets": [8, 0]},
        {"dtype": "F16", "shape": [4], "data_offsets": ["0", "8"]},
    ],
)
def test_damaged_entry_is_refused(tmp_path: Path, entry: object) -> None:
    _write(tmp_path / "a", {"t": entry}, b"\0" * 8)
    with pytest.raises(ModelFormatError, match="header is damaged"):
        SafetensorsFile(tmp_path / "a")


def test_other_dtype_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a", {"t": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}}, b"\0" * 4)
    with pytest.raises(ModelFormatError, match=r"I8.*unquantized"):
        SafetensorsFile(tmp_path / "a").read("t")


def test_range_that_does_not_fit_the_shape_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a", {"t": {"dtype": "F16", "shape": [5], "data_offsets": [0, 8]}}, b"\0" * 8)
    with pytest.raises(ModelFormatError, match="8 bytes for shape"):
        SafetensorsFile(tmp_path / "a").read("t")


@pytest.mark.parametrize("value", [70000.0, np.inf, np.nan])
def test_value_beyond_float16_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(ModelFormatError, match="65504"):
        write_float16(tmp_path / "a", {"t": (1,)}, lambda _: np.array([value], np.float32), lambda _: None)


def test_wrong_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"shape \(2,\).*asks for \(3,\)"):
        write_float16(tmp_path / "a", {"t": (3,)}, lambda _: np.zeros(2, np.float32), lambda _: None)


def _write(path: Path, header: dict[str, object], body: bytes) -> None:
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body)
