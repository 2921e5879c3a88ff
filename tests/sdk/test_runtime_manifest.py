"""What an artifact folder says of itself: read back as written, and refused with a reason where it cannot be right."""

import json
from dataclasses import replace

import pytest

from edgedraft.errors import ModelFormatError, ModelNotFound
from edgedraft.runtime.cpu import missing_features
from edgedraft.runtime.manifest import CONFIG, MANIFEST, Manifest, ModelConfig, hash_file

MODEL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "context_window_size": 512,
    "rms_norm_eps": 1e-5,
    "position_embedding_base": 10000.0,
    "tie_word_embeddings": True,
}
MADE = Manifest(
    model="toy",
    architecture="llama",
    quantization="q0f16",
    target="native",
    features=("avx2", "fma"),
    model_fingerprint="ab" * 32,
    tokenizer_fingerprint="cd" * 32,
    licence="Apache-2.0",
    files={},
    builder="ef" * 32,
)


@pytest.fixture
def folder(tmp_path):
    def write(**changes):
        inner = MODEL | changes.pop("model_config", {})
        data = {"model_type": "llama", "quantization": "q0f16", "model_config": inner} | changes
        (tmp_path / CONFIG).write_text(json.dumps(data))
        return tmp_path

    return write


def test_a_config_is_read_with_its_defaults(folder):
    config = ModelConfig.load(folder(model_config={"num_key_value_heads": None, "head_dim": None}))
    assert (config.num_key_value_heads, config.head_dim, config.rope_scaling) == (4, 16, None)
    assert config.rope_theta == 10000.0
    assert config.eos_token_ids == ()
    assert ModelConfig.load(folder(eos_token_id=2)).eos_token_ids == (2,)
    assert ModelConfig.load(folder(model_config={"rope_theta": 5e5})).rope_theta == 5e5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not one of llama, qwen2"),
        ({"quantization": "q3f16_0"}, "quantization 'q3f16_0' is not one of q4f16_1, q0f16"),
        ({"eos_token_id": ["</s>"]}, r"eos_token_id is \['</s>'\], not token ids"),
        ({"model_config": {"hidden_size": 0}}, "hidden_size is 0, not a positive whole number"),
        ({"model_config": {"vocab_size": "many"}}, "vocab_size is 'many'"),
        ({"model_config": {"num_hidden_layers": True}}, "num_hidden_layers is True"),
        ({"model_config": {"num_key_value_heads": 3}}, "4 heads cannot share 3"),
        ({"model_config": {"rope_scaling": {"rope_type": "yarn"}}}, "only Llama 3's is"),
    ],
)
def test_a_config_that_the_kernels_cannot_serve_is_refused(folder, changes, message):
    with pytest.raises(ModelFormatError, match=message):
        ModelConfig.load(folder(**changes))


def test_a_config_that_is_no_object_is_refused(folder):
    path = folder()
    (path / CONFIG).write_text("[]")
    with pytest.raises(ModelFormatError, match="holds list, not an object"):
        ModelConfig.load(path)
    (path / CONFIG).write_text('{"model_config": 3}')
    with pytest.raises(ModelFormatError, match="model_config is int, not an object"):
        ModelConfig.load(path)


def test_a_manifest_is_read_back_as_it_was_written(tmp_path):
    made = replace(MADE, files={"a": "12" * 32})
    made.save(tmp_path)
    assert Manifest.load(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 99}, "schema 99 is not 1"),
        ({"abi": "edgedraft-1/tvm-0.20"}, "compiled for 'edgedraft-1/tvm-0.20'"),
        ({"model": 3}, "model missing or of the wrong type"),
        ({"licence": None}, "licence missing"),
        ({"files": ["a"]}, "files missing"),
        ({"features": "avx2"}, "features missing"),
    ],
)
def test_a_damaged_or_foreign_manifest_is_refused(tmp_path, changes, message):
    MADE.save(tmp_path)
    data = json.loads((tmp_path / MANIFEST).read_text()) | changes
    (tmp_path / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(ModelFormatError, match=message):
        Manifest.load(tmp_path)


def test_a_folder_without_a_manifest_is_half_made_or_not_there(tmp_path):
    with pytest.raises(ModelNotFound, match="only half made"):
        Manifest.load(tmp_path)
    with pytest.raises(ModelNotFound, match="is not there"):
        Manifest.load(tmp_path / "none")
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ModelFormatError, match="not JSON"):
        Manifest.load(tmp_path)


def test_hashes_find_a_missing_a_changed_and_an_unlisted_file(tmp_path):
    (tmp_path / "a").write_bytes(b"weights")
    made = replace(MADE, files={"a": hash_file(tmp_path / "a")})
    made.verify(tmp_path)
    with pytest.raises(ModelFormatError, match="missing"):
        made.verify(tmp_path, ["b"])
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(ModelFormatError, match="sha256"):
        made.verify(tmp_path, ["b"])
    (tmp_path / "a").write_bytes(b"weight.")
    made.verify(tmp_path, [])
    with pytest.raises(ModelFormatError, match="sha256"):
        made.verify(tmp_path)


def test_features_that_no_cpu_has_are_missing():
    assert missing_features(()) == []
    assert missing_features(["timetravel"]) == ["timetravel"]
