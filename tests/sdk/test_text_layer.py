"""Text: templates, special tokens that stay text, streaming, stop strings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput, ModelFormatError, ModelNotFound
from edgedraft.text import ChatTemplate, StopMatcher, StreamDecoder, TextCodec
from edgedraft.transcript import Transcript

IM_START, IM_END, TOOL_CALL = "<|im_start|>", "<|im_end|>", "<tool_call>"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
tricky = st.lists(
    st.sampled_from([IM_START, IM_END, TOOL_CALL, "<", "|", "<|im_", "end|>", " ", "\n", "a", "é", "🙂"])
).map("".join)


@given(texts)
def test_ordinary_chats_encode_as_the_rendered_template_does(codec, reference, text):
    if any(token in text for token in (IM_START, IM_END, "<|endoftext|>", TOOL_CALL)):
        return
    rendered = f"{IM_START}user\n{text}{IM_END}\n{IM_START}assistant\n"
    expected = reference.encode(rendered, add_special_tokens=False).ids
    assert codec.encode_chat([{"role": "user", "content": text}]) == expected


@given(tricky)
def test_special_tokens_typed_by_a_user_stay_text(codec, reference, text):
    ids = codec.encode_chat([{"role": "user", "content": text}])
    assert [ids.count(reference.token_to_id(token)) for token in (IM_START, IM_END, TOOL_CALL)] == [2, 1, 0]
    assert codec.decode(ids) == f"user\n{text}\nassistant\n"


@given(tricky)
def test_a_role_cannot_smuggle_special_tokens_either(codec, reference, role):
    ids = codec.encode_chat([{"role": role or "user", "content": "x"}])
    assert ids.count(reference.token_to_id(IM_END)) == 1


@given(tricky | texts)
def test_plain_text_round_trips_and_has_no_added_tokens(codec, reference, text):
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert not {reference.token_to_id(token) for token in (IM_START, IM_END, TOOL_CALL)} & set(ids)


def test_added_tokens_that_are_not_special_show_in_the_output(codec, reference):
    assert codec.decode([reference.token_to_id(TOOL_CALL)]) == TOOL_CALL
    assert codec.decode([reference.token_to_id(IM_END)]) == ""
    assert codec.decode([10**6]) == ""


@given(texts, st.data())
def test_streamed_pieces_join_to_the_whole_and_hold_no_half_character(codec, text, data):
    ids = codec.encode(text) if text else []
    decoder = StreamDecoder(codec.token_bytes)
    pieces = []
    for index, token in enumerate(ids):
        # A detour that is taken back must leave no trace.
        for detour in data.draw(st.lists(st.integers(3, 390), max_size=3)):
            decoder.push(detour)
        decoder.truncate(index)
        pieces.append(decoder.push(token))
        assert "\ufffd" not in pieces[-1] or "\ufffd" in text
        assert text.startswith("".join(pieces))
    assert "".join(pieces) + decoder.finish() == text
    assert decoder.text() == "".join(pieces)


@given(st.binary(max_size=30), st.integers(1, 5))
def test_any_bytes_stream_as_they_decode_at_once(data, size):
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    decoder = StreamDecoder(chunks.__getitem__)
    assert "".join(map(decoder.push, range(len(chunks)))) + decoder.finish() == data.decode("utf-8", "replace")


def cut_at_stop(text: str, stops: list[str]) -> str:
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - len(max(ending, key=len))]
    return text


@given(
    st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("ab.", max_size=4), max_size=12),
)
def test_stop_strings_match_across_any_split(stops, pieces):
    matcher = StopMatcher(stops)
    shown = ""
    whole = cut_at_stop("".join(pieces), stops)
    for piece in pieces:
        shown += matcher.push(piece)
        assert whole.startswith(shown)
    if not matcher.stopped:
        shown += matcher.finish()
    assert shown == whole
    assert matcher.stopped == (whole != "".join(pieces))


@pytest.mark.parametrize(("stops", "field"), [([""], "stop[0]"), (["x"] * 17, "stop"), (["x" * 257], "stop[0]")])
def test_bad_stop_strings_are_named(stops, field):
    with pytest.raises(InvalidInput) as caught:
        StopMatcher(stops)
    assert caught.value.field == field


def test_a_transcript_shows_drafts_verified_text_and_stops(codec):
    ids = codec.encode("blue sky")
    other = codec.encode("red")
    transcript = Transcript(codec.token_bytes, StopMatcher(["sky"]))
    assert "".join(map(transcript.draft, other)) == "red"
    assert transcript.settle(ids[:2]) + transcript.settle(ids[2:]) + transcript.finish() == "blue "
    assert transcript.stopped


def test_half_a_character_at_the_end_becomes_a_replacement(codec):
    halved = codec.encode("🙂")[:1]
    transcript = Transcript(codec.token_bytes, StopMatcher())
    assert transcript.settle(halved) == ""
    assert transcript.finish() == "\ufffd"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception('no system role') }}",
        "{{ messages.append(1) }}",
        "{{ undefined_function() }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_hostile_or_refusing_templates_end_in_a_clear_error(source):
    with pytest.raises(InvalidInput, match="chat template"):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_templates_have_what_models_expect():
    source = (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
        "{{ strftime_now('%Y')|length }}"
    )
    assert ChatTemplate(source).render([{"role": "é"}, {"role": "b"}]) == '{"role": "é"}4'


def test_broken_model_folders_are_named(tmp_path, model_folder):
    with pytest.raises(ModelNotFound, match="not there"):
        TextCodec.load(tmp_path / "nothing")
    for name in ("tokenizer.json", "tokenizer_config.json", "mlc-chat-config.json"):
        for path in model_folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / name).write_text("[1, 2")
        with pytest.raises(ModelFormatError, match=name):
            TextCodec.load(tmp_path)
    (tmp_path / "mlc-chat-config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% if %}"}))
    with pytest.raises(ModelFormatError, match="line 1"):
        TextCodec.load(tmp_path)


def test_a_model_without_a_template_takes_raw_text_only(tmp_path, model_folder):
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    codec = TextCodec.load(tmp_path)
    assert codec.encode("blue")
    with pytest.raises(InvalidInput, match="no"):
        codec.encode_chat([{"role": "user", "content": "x"}])


def test_text_that_is_no_unicode_is_refused(codec):
    with pytest.raises(InvalidInput, match="surrogate"):
        codec.encode("\ud83d")
    with pytest.raises(InvalidInput, match="pass a string"):
        codec.encode_chat([{"role": "user", "content": 3}])


def test_sentencepiece_style_tokenizers_stream_too(model_folder):
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 0,
                "content": "</s>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {"</s>": 0, "<0xC3>": 1, "<0xA9>": 2, "▁a": 3},
            "merges": [],
            "byte_fallback": True,
            "unk_token": None,
        },
    }
    codec = TextCodec(tokenizer, None, [0], "x")
    assert codec.decode([3, 1, 2, 0]) == " aé"
    decoder = StreamDecoder(codec.token_bytes)
    assert [decoder.push(token) for token in (3, 1, 2)] == [" a", "", "é"]
    with pytest.raises(ModelFormatError, match="WordPiece"):
        TextCodec({**tokenizer, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, None, [0], "x")
