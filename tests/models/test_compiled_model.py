"""Compiled models against the NumPy oracle, and the promise that a token's logits do not depend on its company."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_artifact import finish, write_weights

from edgedraft.drafters.contrast import compare
from edgedraft.drafters.tvm import TvmDrafter
from edgedraft.errors import CacheFull, DrafterError, InvalidInput, ModelFormatError, ModelNotFound
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed
from edgedraft.runtime.manifest import CONFIG, LIBRARY, MANIFEST, Manifest
from edgedraft_models.reference import Reference

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "llama q4": ("llama", "q4f16_1", {}),
    "llama q0, scaled rotary, own head": (
        "llama",
        "q0f16",
        {"rope_scaling": LLAMA3, "tie_word_embeddings": False, "head_dim": 16, "vocab_size": 328},
    ),
    "qwen2 q4, one key head": ("qwen2", "q4f16_1", {"num_key_value_heads": 1, "head_dim": 64}),
    "qwen2 q0": ("qwen2", "q0f16", {"intermediate_size": 96}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    made = {}
    for name, (model_type, quantization, changes) in KINDS.items():
        folder = tmp_path_factory.mktemp("artifact")
        made[name] = finish(write_weights(folder, model_type, quantization, **changes))
    return made


@pytest.fixture(scope="module")
def models(folders) -> dict[str, CompiledModel]:
    return {name: CompiledModel.load(folder, threads=1) for name, folder in folders.items()}


@pytest.fixture
def model(models) -> CompiledModel:
    return models["llama q4"]


@pytest.fixture
def folder(folders, tmp_path) -> Path:
    """A folder of its own to do harm in."""
    return shutil.copytree(folders["qwen2 q0"], tmp_path / "copy")


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, count).tolist()


def one_by_one(model: CompiledModel, tokens: list[int]) -> np.ndarray:
    """Plain decoding: one token a call, nobody else in the cache."""
    cache = model.new_cache(len(tokens))
    sequence = cache.new_sequence()
    return np.concatenate([model.forward(cache, [Feed(sequence, [token])]) for token in tokens])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_oracle(kind, models, folders):
    tokens = tokens_of(1, 90)
    expected = Reference.from_artifact(folders[kind]).logits(tokens)
    cache = models[kind].new_cache(100)
    found = models[kind].forward(cache, [Feed(cache.new_sequence(), tokens)], "all")
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_no_token_depends_on_its_company(kind, models, data):
    """Any split over calls, any mix with other sequences, shared beginnings, and rolled-back guesses: the same bits."""
    model = models[kind]
    start = tokens_of(2, data.draw(st.integers(1, 12), "shared"))
    tails = [tokens_of(3 + i, data.draw(st.integers(1, 12), "tail")) for i in range(data.draw(st.integers(1, 5)))]
    cache = model.new_cache(200, sequences=8)
    trunk = cache.new_sequence()
    beginning = model.forward(cache, [Feed(trunk, start)], "all")
    found = {i: [beginning] for i in range(len(tails))}
    branches = [cache.fork(trunk, len(start)) for _ in tails]
    left = dict(enumerate(tails))
    while left:
        if data.draw(st.booleans(), "guess"):
            guesser = data.draw(st.sampled_from(branches))
            length = cache.length(guesser)
            model.forward(cache, [Feed(guesser, tokens_of(99, data.draw(st.integers(1, 9))))])
            cache.truncate(guesser, length)
        chosen = data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True), "who")
        counts = [data.draw(st.integers(1, len(left[i])), "count") for i in chosen]
        feeds = [Feed(branches[i], left[i][:count]) for i, count in zip(chosen, counts, strict=True)]
        rows = np.split(model.forward(cache, feeds, "all"), np.cumsum(counts)[:-1])
        for i, count, part in zip(chosen, counts, rows, strict=True):
            found[i].append(part)
            left[i] = left[i][count:]
            if not left[i]:
                del left[i]
    for i, tail in enumerate(tails):
        assert np.array_equal(np.concatenate(found[i]), one_by_one(model, start + tail))


@pytest.mark.parametrize("kind", KINDS)
def test_more_threads_and_longer_feeds_than_a_chunk_change_no_bit(kind, models, folders):
    tokens = tokens_of(4, 530)
    expected = one_by_one(models[kind], tokens)
    for threads in (1, None):
        model = CompiledModel.load(folders[kind], threads=threads)
        cache = model.new_cache(600)
        other, sequence = cache.new_sequence(), cache.new_sequence()
        found = model.forward(cache, [Feed(other, tokens_of(5, 40)), Feed(sequence, tokens)], "all")
        assert np.array_equal(found[40:], expected)
        cache.truncate(sequence, 0)
        last = model.forward(cache, [Feed(sequence, tokens)])
        assert np.array_equal(last, expected[-1:])


def test_last_rows_come_feed_by_feed(model):
    cache = model.new_cache(100)
    a, b = cache.new_sequence(), cache.new_sequence()
    found = model.forward(cache, [Feed(b, [1, 2, 3]), Feed(a, [4])])
    assert np.array_equal(found, [one_by_one(model, [1, 2, 3])[-1], one_by_one(model, [4])[-1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 8, 64])
def test_top_k_is_the_softmax_of_the_logits(kind, k, models):
    model = models[kind]
    cache = model.new_cache(100)
    sequences = [cache.new_sequence() for _ in range(3)]
    feeds = [Feed(sequence, tokens_of(6 + sequence, 5)) for sequence in sequences]
    ids, probs = model.forward_top_k(cache, feeds, k)
    for sequence in sequences:
        cache.truncate(sequence, 0)
    logits = model.forward(cache, feeds).astype(np.float64)
    softmax = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    assert np.array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :k])
    np.testing.assert_allclose(probs, np.take_along_axis(softmax, ids, axis=1), rtol=1e-5)


def test_bad_calls_are_refused_and_change_nothing(model, models):
    cache = model.new_cache(8)
    sequence = cache.new_sequence()
    with pytest.raises(InvalidInput, match="'last' or 'all'"):
        model.forward(cache, [Feed(sequence, [1])], "some")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="give 1 to 64"):
        model.forward_top_k(cache, [Feed(sequence, [1])], 65)
    with pytest.raises(InvalidInput, match="0 to 319"):
        model.forward(cache, [Feed(sequence, [320])])
    with pytest.raises(InvalidInput, match="another model"):
        models["qwen2 q0"].forward(cache, [Feed(sequence, [1])])
    model.forward(cache, [Feed(sequence, [1] * 7)])
    with pytest.raises(CacheFull, match="2 tokens do not fit: 1 of 8"):
        model.forward(cache, [Feed(cache.new_sequence(), [1, 2])])
    assert (cache.length(sequence), cache.free_tokens) == (7, 1)


def test_other_threads_run_while_it_computes(model, monkeypatch):
    """The interpreter takes the lock away from nobody here, so the other thread gets it only where it is given up."""
    inside, ran_inside = False, False
    ready, asked = threading.Event(), threading.Event()
    compiled = model._library._step

    def step(*arguments: object) -> None:
        nonlocal inside
        inside = True
        compiled(*arguments)
        inside = False

    def other() -> None:
        nonlocal ran_inside
        while not asked.is_set():
            ready.wait()
            ready.clear()
            ran_inside = ran_inside or inside

    monkeypatch.setattr(model._library, "_step", step)
    cache = model.new_cache(300)
    sequence = cache.new_sequence()
    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        for _ in range(200):  # on a busy machine the other thread may be late for some
            ready.set()
            model.forward(cache, [Feed(sequence, tokens_of(8, 300))])
            cache.truncate(sequence, 0)
            if ran_inside:
                break
    finally:
        sys.setswitchinterval(interval)
        asked.set()
        ready.set()
        thread.join()
    assert ran_inside


def test_a_device_runs_it_without_the_compiler(folders):
    """In a process of its own, since this one has compiled."""
    code = """
import sys
from pathlib import Path
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed
model = CompiledModel.load(Path(sys.argv[1]))
cache = model.new_cache(8)
model.forward_top_k(cache, [Feed(cache.new_sequence(), [1, 2, 3])], 4)
assert "tvm" not in sys.modules, "TVM's compiler was imported"
"""
    run = subprocess.run([sys.executable, "-c", code, folders["llama q4"]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_half_made_or_missing_folder(folder):
    (folder / MANIFEST).unlink()
    with pytest.raises(ModelNotFound, match="half made"):
        CompiledModel.load(folder)
    with pytest.raises(ModelNotFound, match="not there"):
        CompiledModel.load(folder / "none")


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_threads_are_checked(folder, threads):
    with pytest.raises(InvalidInput, match="threads"):
        CompiledModel.load(folder, threads=threads)


def resign(folder: Path, **changes: object) -> None:
    """Change the manifest as a builder could have written it."""
    made = Manifest.load(folder)
    Manifest(**{name: getattr(made, name) for name in made.__slots__} | changes).save(folder)


def test_a_library_for_another_cpu(folder):
    resign(folder, features=("avx2", "timetravel"))
    with pytest.raises(ModelFormatError, match=r"CPUs with .*timetravel, which this one lacks"):
        CompiledModel.load(folder)


def test_a_manifest_of_another_model(folder, folders):
    resign(folder, architecture="llama")
    with pytest.raises(ModelFormatError, match="the manifest is of a llama"):
        CompiledModel.load(folder)
    shutil.copy(folders["llama q4"] / MANIFEST, folder / MANIFEST)
    with pytest.raises(ModelFormatError, match="sha256"):
        CompiledModel.load(folder)


def test_a_changed_config(folder):
    (folder / CONFIG).write_text((folder / CONFIG).read_text().replace("10000.0", "20000.0"))
    with pytest.raises(ModelFormatError, match=r"mlc-chat-config\.json: its sha256"):
        CompiledModel.load(folder)


def test_a_shard_cut_short(folder):
    shard = folder / "params_shard_0.bin"
    shard.write_bytes(shard.read_bytes()[:-64])
    with pytest.raises(ModelFormatError, match=r"params_shard_0\.bin: \d+ bytes instead of"):
        CompiledModel.load(folder)
    shard.unlink()
    with pytest.raises(ModelFormatError, match="cannot be read"):
        CompiledModel.load(folder)


def test_a_flipped_bit_is_found_when_asked_for(folder):
    shard = folder / "params_shard_0.bin"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    CompiledModel.load(folder)
    with pytest.raises(ModelFormatError, match="sha256"):
        CompiledModel.load(folder, verify=True)


@pytest.mark.parametrize("content", [None, b"", b"not a library", "cut"])
def test_a_damaged_library(folder, content):
    library = folder / LIBRARY
    code = library.read_bytes()
    library.unlink()
    if content is not None:
        library.write_bytes(code[: len(code) // 20] if content == "cut" else content)
    with pytest.raises(ModelFormatError, match=r"model\.so: (missing|its sha256)"):
        CompiledModel.load(folder)


def test_the_drafter_says_what_it_is_and_what_comes_next(folders):
    drafter = TvmDrafter.load(folders["llama q4"], threads=1, kv_tokens=40)
    assert drafter.info.name == "tiny q4f16_1"
    assert (drafter.info.vocab_size, drafter.info.context_length) == (320, 40)
    trunk = drafter.new_sequence()
    (after,) = drafter.step([Feed(trunk, [1, 2, 3])], 4)
    branch = drafter.fork(trunk, 3)
    first, second = drafter.step([Feed(trunk, [after.ids[0]]), Feed(branch, [after.ids[1]])], 4)
    assert first != second
    drafter.truncate(trunk, 3)
    assert drafter.step([Feed(trunk, [after.ids[1]])], 4) == [second]
    with pytest.raises(DrafterError, match="do not fit"):
        drafter.step([Feed(branch, [1] * 36)], 1)
    drafter.free(branch)
    drafter.close()


def test_the_drafter_contrasts_two_views_in_one_batch(folders):
    drafter = TvmDrafter.load(folders["llama q4"], threads=1)
    model = CompiledModel.load(folders["llama q4"], threads=1)
    cache = model.new_cache(40)
    rows = model.forward(cache, [Feed(cache.new_sequence(), text) for text in ([1, 2, 3, 4], [1, 9])])
    private, public = drafter.new_sequence(), drafter.new_sequence()
    drafter.step([Feed(private, [1, 2])], 1)
    contrast = drafter.contrast(Feed(private, [3, 4]), Feed(public, [1, 9]), 5)
    assert contrast == compare(rows[0], rows[1], 5)
    (alone,) = drafter.step([Feed(drafter.new_sequence(), [1, 2, 3, 4])], 5)
    assert contrast.candidates.ids == alone.ids
    assert contrast.candidates.probs == pytest.approx(alone.probs, rel=1e-5)
    assert 0 < contrast.distance < 1
    small = TvmDrafter.load(folders["llama q4"], threads=1, kv_tokens=10)
    with pytest.raises(DrafterError, match="do not fit"):
        small.contrast(Feed(small.new_sequence(), [1] * 8), Feed(small.new_sequence(), [1] * 8), 1)
