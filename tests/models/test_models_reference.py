"""The NumPy forward pass, against what transformers computes and on the real default model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedraft_models.convert import convert_weights
from edgedraft_models.hf_source import convert_directory
from edgedraft_models.progress import silent
from edgedraft_models.quantize import dequantize, quantize
from edgedraft_models.reference import Reference

GOLDEN = json.loads((Path(__file__).parent / "data" / "transformers_logits.json").read_text())["cases"]


@pytest.fixture
def tiny_hf(tmp_path: Path, make_tiny: Callable[..., Any]) -> Callable[..., Path]:
    def make(model_type: str, **changes: Any) -> Path:
        hf = tmp_path / "hf"
        hf.mkdir()
        convert_directory(make_tiny(model_type, **changes).write_hf(tmp_path / "source"), hf, silent, "")
        return hf

    return make


@pytest.mark.parametrize("case", GOLDEN)
def test_equals_transformers(case: str, tiny_hf: Callable[..., Path]) -> None:
    golden = GOLDEN[case]
    logits = Reference.from_hf(tiny_hf(golden["model_type"], **golden["config"])).logits(golden["tokens"])
    assert logits.shape == (len(golden["tokens"]), 320)
    np.testing.assert_allclose(logits[:, :: golden["every"]], golden["logits"], atol=1e-4)


def test_golden_cases_differ() -> None:
    """The scaled rotary embedding must show in the figures, or its case would test nothing."""
    assert not np.allclose(GOLDEN["llama"]["logits"], GOLDEN["llama3"]["logits"], atol=1e-2)


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_artifact_in_16_bits_is_the_same_model(model_type: str, tmp_path: Path, tiny_hf: Callable[..., Path]) -> None:
    hf = tiny_hf(model_type)
    convert_weights(hf, tmp_path, "q0f16", silent, "")
    tokens = [3, 1, 4, 1, 5, 256]
    assert np.array_equal(Reference.from_artifact(tmp_path).logits(tokens), Reference.from_hf(hf).logits(tokens))


def test_artifact_in_4_bits_is_the_quantized_model(
    tmp_path: Path, tiny_hf: Callable[..., Path], make_tiny: Callable[..., Any]
) -> None:
    tokens = [3, 1, 4, 1, 5, 256]
    exact_hf = tiny_hf("qwen2")
    convert_weights(exact_hf, tmp_path, "q4f16_1", silent, "")
    # The same rounding, done before the model is fused: groups run along the input, so fusing rows changes nothing.
    rounded = make_tiny("qwen2")
    for name, tensor in rounded.weights.items():
        if tensor.ndim == 2:
            rounded.weights[name] = dequantize(*quantize(tensor.astype(np.float16)))
    rounded_hf = tmp_path / "rounded"
    rounded_hf.mkdir()
    convert_directory(rounded.write_hf(tmp_path / "rounded source", dtype="F32"), rounded_hf, silent, "")

    found = Reference.from_artifact(tmp_path).logits(tokens)
    np.testing.assert_allclose(found, Reference.from_hf(rounded_hf).logits(tokens), atol=5e-3)  # float16 on the way
    assert np.abs(found - Reference.from_hf(exact_hf).logits(tokens)).max() > 0.1


def test_later_tokens_change_nothing_before(tiny_hf: Callable[..., Path]) -> None:
    reference = Reference.from_hf(tiny_hf("llama"))
    np.testing.assert_allclose(reference.logits([7, 8, 9, 10])[:2], reference.logits([7, 8])[:2], atol=1e-5)


def test_the_default_model_knows_paris(smollm2_hf: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_hf / "tokenizer.json"))
    tokens = tokenizer.encode("The Eiffel Tower stands in the city of").ids
    best = int(Reference.from_hf(smollm2_hf).logits(tokens)[-1].argmax())
    assert tokenizer.decode([best]) == " Paris"
