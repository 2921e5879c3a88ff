"""Hostile, faulty or newer verifiers in memory: the client says what is wrong and sends no more."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_verifier import FINISHED, VOCAB, answer, client_of, description, opened, verdict, verifier

from edgedraft.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    VerifierUnavailable,
)
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import verify_pb2 as pb


async def test_a_well_behaved_verifier_in_memory_is_believed(codec):
    assert await answer(codec, opened(), verdict(0, 70, 71), verdict(1, 71, 72), FINISHED) == codec.decode([70, 71, 72])


HOSTILE = {
    "only 0 positions are settled": [opened(), verdict(1, 70)],
    "contradicts": [opened(), verdict(0, 70, 71), verdict(0, 70, 72)],
    "settles 11 of 10 tokens": [opened(), verdict(0, *[70] * 11)],
    "no ServerFrame": [opened(), b"\xff\xff\xff"],
    "the limit is": [opened(), b"\0" * (1 << 20)],
    "window of 0": [opened(window=0)],
    "a window of 0": [opened(), verdict(0, 70, window=0)],
    "unknown reason": [opened(), pb.ServerFrame(finished=pb.Finished())],
    "an unknown reason": [opened(), pb.ServerFrame(finished=pb.Finished(reason=99))],
    r"unknown reason \(3\)": [opened(), pb.ServerFrame(finished=pb.Finished(reason=pb.Finished.REASON_CLOSED))],
    f"token {VOCAB}, the vocabulary has {VOCAB}": [opened(), verdict(0, 70, VOCAB)],
    "token 4294967295, the vocabulary": [opened(), verdict(0, 2**32 - 1)],
}


@pytest.mark.parametrize("words", HOSTILE)
async def test_a_verifier_that_breaks_the_protocol_is_found_out(codec, words):
    with pytest.raises(ProtocolError, match=words):
        await answer(codec, *HOSTILE[words], FINISHED)


async def test_a_verdict_at_an_impossible_position_is_found_out(codec):
    with pytest.raises(ProtocolError, match="positions are settled"):
        await answer(codec, opened(), verdict(2**32 - 1, 70), FINISHED)


@pytest.mark.parametrize("frames", [[], [opened()], [opened(), verdict(0, 70)]])
async def test_a_stream_that_ends_early_is_no_answer(codec, frames):
    with pytest.raises(VerifierUnavailable, match="ended the stream before the answer was complete"):
        await answer(codec, *frames)


async def test_a_verifier_that_goes_away_says_so(codec):
    with pytest.raises(VerifierUnavailable, match="shutting down"):
        await answer(codec, opened(), pb.ServerFrame(go_away=pb.GoAway()))


async def test_frames_of_a_later_version_are_passed_over(codec):
    assert await answer(codec, opened(), b"", b"\xaa\x06\x00", verdict(0, 70), FINISHED) == codec.decode([70])


async def test_what_was_settled_before_a_fault_stays_readable(codec):
    async with client_of(codec, verifier(codec, opened(), verdict(0, 70, 71), verdict(9, 1))) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=20))
        with pytest.raises(ProtocolError):
            await generation
        assert generation.text == codec.decode([70, 71])
        assert generation.finish_reason is None
        with pytest.raises(ProtocolError):
            await generation


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    frames=st.lists(
        st.binary(max_size=20)
        | st.builds(
            lambda *arguments: verdict(*arguments).SerializeToString(), st.integers(0, 4), st.integers(0, VOCAB + 1)
        ),
        max_size=12,
    )
)
async def test_no_bytes_raise_anything_but_protocol_and_verifier_errors(codec, frames):
    try:
        await answer(codec, opened(), *frames)
    except (ProtocolError, VerifierUnavailable):
        return


# ---------------------------------------------------------------- Describe


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"tokenizer_fingerprint": "0"}, InvalidInput, "another tokenizer than the target 'toy'"),
        ({"max_window": 0}, ProtocolError, "a limit of 0"),
        ({"max_block": 0}, ProtocolError, "a limit of 0"),
        ({"context_length": 0}, ProtocolError, "a limit of 0"),
        ({"context_length": 4}, InvalidInput, "the context holds 4"),
    ],
)
async def test_a_target_that_does_not_fit_is_refused_before_anything_is_sent(codec, changes, error, words):
    async def serve(peer) -> None:
        raise AssertionError("a stream was opened")

    async with client_of(codec, MemoryTransport(serve, description(codec, **changes))) as client:
        with pytest.raises(error, match=words):
            await client.generate("sky")


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        (b"\xff\xff", "cannot be read"),
        (b"", "speaks protocol 0"),
        (pb.DescribeResponse(protocol=99).SerializeToString(), "speaks protocol 99"),
    ],
)
async def test_an_answer_to_describe_that_is_none_is_told(codec, answered, words):
    async with client_of(codec, MemoryTransport(lambda peer: asyncio.sleep(0), answered)) as client:
        with pytest.raises(ProtocolError, match=words):
            await client.connect()


async def test_a_model_that_is_not_served_is_named(codec):
    async with client_of(codec, verifier(codec), model="gpt") as client:
        with pytest.raises(InvalidInput, match=r"'gpt', the verifier serves \['toy'\]") as caught:
            await client.generate("sky")
        assert caught.value.field == "model"
    async with client_of(codec, MemoryTransport(lambda peer: asyncio.sleep(0), b"\x08\x01")) as client:
        with pytest.raises(InvalidInput, match=r"serves \[\]"):
            await client.connect()


async def test_a_refusal_keeps_its_retry_time(codec):
    async def refuse(peer) -> None:
        await peer.receive()
        raise Overloaded("full", 1.5)

    async with client_of(codec, MemoryTransport(refuse, description(codec))) as client:
        with pytest.raises(Overloaded) as caught:
            await client.generate("sky")
    assert caught.value.retry_after == 1.5
