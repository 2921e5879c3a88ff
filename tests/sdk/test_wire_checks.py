"""The wire: sizes, round trips, and a clear error for every field that can be wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgedraft.wire as wire_package
from edgedraft.core.draft import Block
from edgedraft.errors import InvalidInput, ProtocolError
from edgedraft.pipeline import encode_block
from edgedraft.wire import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    FrameLimits,
    check_draft,
    check_open,
    decode_client_frame,
    decode_describe_response,
    decode_server_frame,
    given_bits,
    given_flags,
)
from edgedraft.wire import verify_pb2 as pb

LIMITS = FrameLimits(vocab_size=1000, context_length=64, max_block=8)
FINGERPRINT = "ab" * 32


def good_open(**changes) -> pb.Open:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "tokenizer_fingerprint": FINGERPRINT,
        "mode": pb.MODE_OPEN,
        "prompt": [1, 2, 3],
        "limits": pb.Limits(max_tokens=10),
    }
    return pb.Open(**{**fields, **changes})


def test_a_draft_of_four_tokens_fits_in_32_bytes():
    # The largest ids of a 152k vocabulary, far into a long session.
    block = Block(epoch=100, position=16_000, number=16_000, tokens=(151_935,) * 4, parent=None)
    frame = pb.ClientFrame(draft=encode_block(block), settled=15_990)
    assert len(frame.SerializeToString()) <= 32


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 151_935), min_size=1, max_size=16),
    st.none() | st.integers(0, 2**32 - 1),
    st.data(),
)
def test_draft_frames_round_trip(epoch, position, tokens, parent, data):
    block = Block(epoch, position, 7, tuple(tokens), parent)
    flags = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    draft = encode_block(block)
    draft.given = given_bits(flags)
    back = decode_client_frame(pb.ClientFrame(draft=draft).SerializeToString()).draft
    assert (back.epoch, back.position, back.block, tuple(back.tokens)) == (epoch, position, 7, block.tokens)
    assert (back.parent if back.HasField("parent") else None) == parent
    assert given_flags(back) == tuple(flags)
    check_draft(back, FrameLimits(151_936, 64, 16))


def test_plain_drafts_pay_nothing_for_given():
    assert given_bits([False] * 8) == b""
    assert given_bits([True, False, True]) == b"\x05"


def test_good_frames_pass():
    check_open(good_open(), LIMITS, FINGERPRINT)
    check_draft(pb.Draft(block=1, tokens=[999] * 8, given=b"\xff"), LIMITS)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("open.protocol", {"protocol": 99}),
        ("open.tokenizer_fingerprint", {"tokenizer_fingerprint": "cd" * 32}),
        ("open.mode", {"mode": pb.MODE_UNSPECIFIED}),
        ("open.mode", {"mode": 17}),
        ("open.prompt", {"prompt": []}),
        ("open.prompt", {"prompt": [1] * 64}),
        ("open.prompt[1]", {"prompt": [1, 1000]}),
        ("open.sampling.temperature", {"sampling": pb.Sampling(temperature=-1)}),
        ("open.sampling.temperature", {"sampling": pb.Sampling(temperature=float("nan"))}),
        ("open.sampling.temperature", {"sampling": pb.Sampling(temperature=float("inf"))}),
        ("open.sampling.top_p", {"sampling": pb.Sampling(top_p=1.5)}),
        ("open.limits.max_tokens", {"limits": pb.Limits()}),
        ("open.limits.stop_token_ids", {"limits": pb.Limits(max_tokens=1, stop_token_ids=[1] * 65)}),
        ("open.limits.stop_token_ids[0]", {"limits": pb.Limits(max_tokens=1, stop_token_ids=[1000])}),
    ],
)
def test_a_bad_open_names_its_field(field, change):
    with pytest.raises(InvalidInput) as caught:
        check_open(good_open(**change), LIMITS, FINGERPRINT)
    assert caught.value.field == field
    assert caught.value.cure


@pytest.mark.parametrize(
    ("field", "draft"),
    [
        ("draft.tokens", pb.Draft(block=1)),
        ("draft.tokens", pb.Draft(block=1, tokens=[1] * 9)),
        ("draft.tokens[2]", pb.Draft(block=1, tokens=[1, 2, 1000])),
        ("draft.block", pb.Draft(tokens=[1])),
        ("draft.given", pb.Draft(block=1, tokens=[1], given=b"\x01\x01")),
        ("draft.given", pb.Draft(block=1, tokens=[1], given=b"\x02")),
    ],
)
def test_a_bad_draft_names_its_field(field, draft):
    with pytest.raises(InvalidInput) as caught:
        check_draft(draft, LIMITS)
    assert caught.value.field == field


def test_oversized_and_broken_frames_are_refused():
    large = b"\x7a" + b"\0" * MAX_FRAME_BYTES
    with pytest.raises(InvalidInput, match="bytes"):
        decode_client_frame(large)
    with pytest.raises(ProtocolError, match="bytes"):
        decode_server_frame(large)
    for broken in (b"\xff", b"\x0a\x05\x01"):
        with pytest.raises(InvalidInput, match="no ClientFrame"):
            decode_client_frame(broken)
        with pytest.raises(ProtocolError, match="no ServerFrame"):
            decode_server_frame(broken)
        with pytest.raises(ProtocolError, match="Describe"):
            decode_describe_response(broken)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_the_named_error(data):
    fields = []
    try:
        frame = decode_client_frame(data)
        check_open(frame.open, LIMITS, FINGERPRINT)
        check_draft(frame.draft, LIMITS)
    except InvalidInput as error:
        fields.append(error.field)
    assert all(field == "frame" or field.startswith(("open.", "draft.")) for field in fields)


def test_the_generated_code_is_that_of_the_schema():
    """Every field of the schema file is in the generated module and the other way round."""
    schema = Path(wire_package.__file__).with_name("verify.proto").read_text()
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        assert f"message {name} {{" in schema
        for field in message.fields:
            assert f" {field.name} = {field.number}" in schema
    assert schema.count("\nmessage ") == len(pb.DESCRIPTOR.message_types_by_name)
