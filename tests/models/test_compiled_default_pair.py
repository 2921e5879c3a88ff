"""The default pair as it ships: real weights in both formats against the oracle, whole and in pieces."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed
from edgedraft_models.reference import Reference

TEXT = "The capital of France is Paris. def add(a, b):\n    return a + b\n" * 3


@pytest.mark.parametrize("role", ["drafter", "target"])
def test_real_weights(role, default_pair):
    folder = getattr(default_pair, role)
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    model = CompiledModel.load(folder, threads=1)
    cache = model.new_cache(300)
    whole = model.forward(cache, [Feed(cache.new_sequence(), tokens)], "all")
    np.testing.assert_allclose(whole, Reference.from_artifact(folder).logits(tokens), atol=1e-3, rtol=0)

    a, b = cache.new_sequence(), cache.new_sequence()
    half = len(tokens) // 2
    pieces, place = [], 0
    for size in (1, 2, 3, 5, 8, 1, len(tokens)):
        piece = tokens[place : place + size]
        feeds = [Feed(b, tokens[half + place : half + place + 2]), Feed(a, piece)]
        pieces.append(model.forward(cache, feeds, "all")[2:])
        place += len(piece)
    assert np.array_equal(np.concatenate(pieces), whole)
