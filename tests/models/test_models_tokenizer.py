"""Tokenizers rebuilt from GGUF fields: exact round trips, the models' own word rules, and special tokens."""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgedraft.errors import ModelFormatError
from edgedraft_models.gguf_tokenizer import GgufTokenizer

SAMPLES = (
    "",
    " ",
    "hello world",
    "  two  spaces, a\ttab and\r\na newline\n\n\n",
    "don't I'LL we've",
    "1234567890 3.14 ١٢٣ ⅷ",
    "def f(x):\n    return x**2  # Größe",
    "naïve café Ω 漢字かな交じり文 한국어 עברית العربية",
    "👩‍👩‍👧‍👦 🇨🇭 e\u0301 ﬁ",
    "\x00\x7f\ufeff\u200b",
)


def test_smollm2_round_trips(smollm2_hf: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_hf / "tokenizer.json"))
    for text in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_smollm2_splits_as_its_own_tokenizer(smollm2_hf: Path) -> None:
    """Ids that the model's authors' tokenizer gives, so that a rebuilt rule that merely round-trips is not enough."""
    tokenizer = Tokenizer.from_file(str(smollm2_hf / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>user\nHow much is 1234?<|im_end|>")
    assert encoded.tokens == [
        *("<|im_start|>", "user", "Ċ", "How", "Ġmuch", "Ġis", "Ġ", "1", "2", "3", "4", "?", "<|im_end|>"),
    ]
    assert (encoded.ids[0], encoded.ids[-1]) == (1, 2)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "user\nHow much is 1234?"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_any_text_round_trips_with_smollms_rule(text: str) -> None:
    tokenizer = SMOLLM.build()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_any_text_round_trips_up_to_nfc_with_qwen2s_rule(text: str) -> None:
    tokenizer = QWEN2.build()
    decoded = tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
    assert decoded == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("smollm", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "Ċ", "(", "ok", ")"]),
        ("qwen2", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "Ċ", "(ok", ")"]),
    ],
)
def test_words_are_split_by_the_models_rule(
    rule: str, words: list[str], make_tokenizer: Callable[[str], GgufTokenizer]
) -> None:
    split = make_tokenizer(rule).build().pre_tokenizer.pre_tokenize_str("I'll pay 12\n(ok)")
    assert [word for word, _ in split] == words


def test_ids_and_kinds_of_tokens_are_the_files(make_tokenizer: Callable[[str], GgufTokenizer]) -> None:
    fields = make_tokenizer("qwen2")
    tokenizer = fields.build()
    for token_id, (text, kind) in enumerate(zip(fields.tokens, fields.types, strict=True)):
        assert tokenizer.id_to_token(token_id) == (None if kind == 5 else text)
    ids = tokenizer.encode("<tool>hello<|im_end|>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool>hello"
    assert ids == [259, tokenizer.token_to_id("hello"), 258]


def test_saved_tokenizer_is_the_same(tmp_path: Path, make_tokenizer: Callable[[str], GgufTokenizer]) -> None:
    fields = make_tokenizer("smollm")
    fields.save(tmp_path, 512)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert all(loaded.encode(text).ids == fields.build().encode(text).ids for text in SAMPLES)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 512
    assert config["chat_template"] == fields.chat_template


def test_end_tokens_are_the_turns_and_the_texts(make_tokenizer: Callable[[str], GgufTokenizer]) -> None:
    assert make_tokenizer("smollm").eos_token_ids() == (258, 256)
    assert replace(make_tokenizer("smollm"), special_ids={"eos": 256}).eos_token_ids() == (256,)


GOOD = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.token_type": [1, 3],
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.eos_token_id": 1,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' with rule 'smollm' cannot be rebuilt.*safetensors"),
        ({"tokenizer.ggml.pre": "gpt-9"}, "rule 'gpt-9' cannot be rebuilt"),
        ({"tokenizer.ggml.pre": None}, "rule None cannot be rebuilt"),
        ({"tokenizer.ggml.eos_token_id": 2}, "eos token 2 lies outside the 2 tokens"),
        ({"tokenizer.ggml.eos_token_id": None}, "eos_token_id is missing"),
        ({"tokenizer.ggml.token_type": [1]}, "2 tokens have 1 types"),
        ({"tokenizer.ggml.merges": ["a b"]}, "merge 'a b' makes no token"),
    ],
)
def test_field_that_does_not_do_is_named(change: dict[str, object], message: str) -> None:
    assert GgufTokenizer.read(GOOD, Path("m.gguf")).special_ids == {"eos": 1}
    with pytest.raises(ModelFormatError, match=f"m.gguf: .*{message}"):
        GgufTokenizer.read({**GOOD, **change}, Path("m.gguf"))


@pytest.mark.parametrize("field", ["tokens", "token_type", "merges"])
def test_missing_list_is_named(field: str) -> None:
    fields = {key: value for key, value in GOOD.items() if key != f"tokenizer.ggml.{field}"}
    with pytest.raises(ModelFormatError, match=f"tokenizer.ggml.{field} is missing"):
        GgufTokenizer.read(fields, Path("m.gguf"))


def _tiny(rule: str) -> GgufTokenizer:
    from tokenizers import pre_tokenizers

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    return GgufTokenizer(rule, tokens, [1] * 256, [], {"eos": 0}, None)


SMOLLM, QWEN2 = _tiny("smollm"), _tiny("qwen2")
