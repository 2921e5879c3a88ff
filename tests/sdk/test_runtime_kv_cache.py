"""The KV cache's bookkeeping: sharing, cutting back, running full, and that no live slot is ever handed out again."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edgedraft.errors import CacheFull, InvalidInput
from edgedraft.runtime.kv import Feed, KvCache, SequenceId, aligned_empty
from edgedraft.runtime.manifest import ModelConfig

CONFIG = ModelConfig(
    model_type="llama",
    quantization="q0f16",
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    vocab_size=50,
    context_window_size=12,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    eos_token_ids=(),
)
TOKENS, SEQUENCES = 20, 4


def make(tokens: int = TOKENS, sequences: int = SEQUENCES) -> KvCache:
    return KvCache(CONFIG, tokens, sequences)


class Bookkeeping(RuleBasedStateMachine):
    """Against a model in which a sequence is the list of stamps that its slots were written with."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = make()
        self.expected: dict[SequenceId, list[int]] = {}
        self.written = np.full(TOKENS, -1)  # what stands in each slot
        self.stamp = 0

    @property
    def used(self) -> int:
        return len({stamp for stamps in self.expected.values() for stamp in stamps})

    @rule(target=sequences)
    def new(self):
        if len(self.expected) == SEQUENCES:
            with pytest.raises(CacheFull, match="all 4 sequences"):
                self.cache.new_sequence()
            return None
        sequence = self.cache.new_sequence()
        assert sequence not in self.expected
        self.expected[sequence] = []
        return sequence

    @rule(target=sequences, sequence=sequences, length=st.integers(0, 12))
    def fork(self, sequence, length):
        stamps = self.expected.get(sequence)
        if stamps is None or length > len(stamps):
            with pytest.raises(InvalidInput):
                self.cache.fork(sequence, length)
            return None
        if len(self.expected) == SEQUENCES:
            with pytest.raises(CacheFull):
                self.cache.fork(sequence, length)
            return None
        branch = self.cache.fork(sequence, length)
        self.expected[branch] = stamps[:length]
        return branch

    @rule(sequence=sequences, length=st.integers(0, 12))
    def truncate(self, sequence, length):
        stamps = self.expected.get(sequence)
        if stamps is None or length > len(stamps):
            with pytest.raises(InvalidInput):
                self.cache.truncate(sequence, length)
        else:
            self.cache.truncate(sequence, length)
            del stamps[length:]

    @rule(sequence=consumes(sequences))
    def free(self, sequence):
        if sequence in self.expected:
            self.cache.free(sequence)
            del self.expected[sequence]

    @rule(data=st.data(), counts=st.lists(st.integers(1, 9), min_size=1, max_size=SEQUENCES))
    def extend(self, data, counts):
        live = sorted(self.expected)
        if not live:
            return
        chosen = data.draw(st.permutations(live))[: len(counts)]
        feeds = [Feed(sequence, [1] * count) for sequence, count in zip(chosen, counts, strict=False)]
        if any(len(self.expected[feed.sequence]) + len(feed.tokens) > 12 for feed in feeds):
            with pytest.raises(InvalidInput, match="context of 12"):
                self.cache.extend(feeds)
        elif sum(len(feed.tokens) for feed in feeds) > TOKENS - self.used:
            with pytest.raises(CacheFull, match="do not fit"):
                self.cache.extend(feeds)
        else:
            batch = self.cache.extend(feeds)
            place = 0
            for feed in feeds:
                stamps = self.expected[feed.sequence]
                for _ in feed.tokens:
                    assert batch.positions[place] == len(stamps)
                    self.written[batch.slots[place]] = self.stamp
                    stamps.append(self.stamp)
                    self.stamp += 1
                    place += 1
            assert list(batch.ends) == list(np.cumsum([len(feed.tokens) for feed in feeds]) - 1)
            for sequence, row in zip([f.sequence for f in feeds for _ in f.tokens], batch.rows, strict=True):
                length = len(self.expected[sequence])
                assert list(self.written[self.cache.table[row, :length]]) == self.expected[sequence]

    @invariant()
    def nothing_is_lost(self):
        assert self.cache.free_tokens == TOKENS - self.used
        assert {sequence: self.cache.length(sequence) for sequence in self.expected} == {
            sequence: len(stamps) for sequence, stamps in self.expected.items()
        }


Bookkeeping.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBookkeeping = Bookkeeping.TestCase


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "at least one token"),
        ([[1, 2]], "flat list"),
        ([50], "holds 50; give whole numbers from 0 to 49"),
        ([3, -1], "holds -1"),
        ([1.0], "float64"),
        ([True], "bool"),
        ([1 << 70], "object"),
    ],
)
def test_a_bad_feed_is_refused_and_changes_nothing(tokens, message):
    cache = make()
    good, bad = cache.new_sequence(), cache.new_sequence()
    with pytest.raises(InvalidInput, match=message):
        cache.extend([Feed(good, [1]), Feed(bad, tokens)])
    assert cache.free_tokens == TOKENS
    assert cache.length(good) == 0


def test_feeds_must_name_each_sequence_once():
    cache = make()
    sequence = cache.new_sequence()
    with pytest.raises(InvalidInput, match="twice"):
        cache.extend([Feed(sequence, [1]), Feed(sequence, [2])])
    with pytest.raises(InvalidInput, match="at least one feed"):
        cache.extend([])
    assert cache.length(sequence) == 0


def test_a_freed_sequence_is_unknown_and_its_id_does_not_come_back():
    cache = make()
    gone = cache.new_sequence()
    cache.free(gone)
    assert cache.new_sequence() != gone
    for use in (cache.length, cache.free, lambda s: cache.truncate(s, 0), lambda s: cache.extend([Feed(s, [1])])):
        with pytest.raises(InvalidInput, match="not freed yet"):
            use(gone)


@pytest.mark.parametrize(("tokens", "sequences"), [(0, 1), (1, 0), (-5, 1)])
def test_sizes_must_be_positive(tokens, sequences):
    with pytest.raises(InvalidInput, match="at least 1"):
        make(tokens, sequences)


def test_a_small_pool_bounds_the_context():
    assert make(tokens=5).context == 5
    assert make(tokens=500).context == CONFIG.context_window_size


def test_memory_is_aligned_for_vector_loads():
    for size in range(1, 40):
        array = aligned_empty((size, 3), np.int32)
        assert array.ctypes.data % 64 == 0
        assert array.shape == (size, 3)
