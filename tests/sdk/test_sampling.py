"""The settings of a generation: what is no number, no text or out of range is told by its field, at once."""

import math

import pytest

from edgedraft.errors import InvalidInput
from edgedraft.sampling import SamplingParams

WRONG = {
    "max_tokens": [0, -1, 5.5, 5.0, True, "5", None, [5], math.nan],
    "temperature": [-0.1, 10.5, math.nan, math.inf, 10**400, True, "0", None, 1j],
    "top_p": [0, 1.1, -1, math.nan, True, "1", None],
    "top_k": [-1, 2**31, 2.5, False, "2", None],
    "seed": [-1, 2**64, 1.5, True, "1"],
    "stop": [None, "a", b"a", 5, {"a"}, (1,), ("a", None), (b"a",)],
    "stop_token_ids": [None, 5, "5", b"5", [1.5], (-1,), (2**33,), (2**32,), (True,), ("1",), (None,), range(65)],
    "ignore_eos": [None, 0, 1, "yes"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in WRONG for value in WRONG[field]])
def test_what_is_wrong_is_told_by_its_field(field, value):
    with pytest.raises(InvalidInput) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field.partition("[")[0] == field


def test_the_edges_are_allowed():
    params = SamplingParams(
        max_tokens=1,
        temperature=10,
        top_p=1,
        top_k=2**31 - 1,
        seed=2**64 - 1,
        stop=["a", "b"],
        stop_token_ids=[0, 2**32 - 1],
        ignore_eos=True,
    )
    # Frozen, so that a list which the app goes on to change does not change it.
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (0, 2**32 - 1)
    assert hash(params) == hash(params)
    assert SamplingParams(seed=0, temperature=0.5, top_k=0) == SamplingParams(seed=0, temperature=0.5)


def test_whole_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    params = SamplingParams(max_tokens=numpy.int64(3), temperature=numpy.float32(0.5), stop_token_ids=(numpy.int32(7),))
    assert (params.max_tokens, params.temperature, params.stop_token_ids) == (3, 0.5, (7,))
