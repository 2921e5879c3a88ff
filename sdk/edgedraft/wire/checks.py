"""Decode frames and check what can be checked without knowing the session.

The verifier turns `InvalidInput` into INVALID_ARGUMENT for that one session; the device turns a bad frame from the
verifier into `ProtocolError`. What depends on the session's state (epoch, position, window) is checked where the state
is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from edgedraft.errors import InvalidInput, ProtocolError
from edgedraft.wire import verify_pb2 as pb
from edgedraft.wire.method import MAX_FRAME_BYTES, PROTOCOL_VERSION
from edgedraft.wire.shaping import check_shaping

MAX_TEMPERATURE = 10.0
MAX_STOP_TOKENS = 64
MAX_RESUME_TOKEN = 64


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What one model on one verifier takes.

    Attributes:
        vocab_size: Token ids lie in [0, vocab_size).
        context_length: Prompt and generated tokens together, in tokens.
        max_block: Draft tokens in one frame.
    """

    vocab_size: int
    context_length: int
    max_block: int


def decode_client_frame(data: bytes) -> pb.ClientFrame:
    """Parse a frame from a device.

    Raises:
        InvalidInput: The frame is too large or no frame of this protocol.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise InvalidInput("frame", f"has {len(data)} bytes, the limit is {MAX_FRAME_BYTES}", "send less in one frame")
    try:
        return pb.ClientFrame.FromString(data)
    except DecodeError as error:
        raise InvalidInput("frame", "is no ClientFrame of edgedraft.v1", "use a client of this protocol") from error


def decode_server_frame(data: bytes) -> pb.ServerFrame:
    """Parse a frame from a verifier.

    Raises:
        ProtocolError: It is too large or no frame of this protocol.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"the verifier sent a frame of {len(data)} bytes, the limit is {MAX_FRAME_BYTES}")
    try:
        return pb.ServerFrame.FromString(data)
    except DecodeError as error:
        raise ProtocolError("the verifier sent a frame that is no ServerFrame of edgedraft.v1") from error


def decode_describe_response(data: bytes) -> pb.DescribeResponse:
    """Parse the answer to Describe.

    Raises:
        ProtocolError: It is no answer of this protocol.
    """
    try:
        return pb.DescribeResponse.FromString(data)
    except DecodeError as error:
        raise ProtocolError("the verifier's answer to Describe cannot be read") from error


def check_open(message: pb.Open, limits: FrameLimits, tokenizer_fingerprint: str) -> None:
    """Check an `Open` against the model that would serve it.

    Args:
        message: The frame's body.
        limits: What the model takes.
        tokenizer_fingerprint: The target's, hex sha256.

    Raises:
        InvalidInput: Names the first field that is wrong.
    """
    if message.protocol != PROTOCOL_VERSION:
        raise InvalidInput(
            "open.protocol", f"is {message.protocol}, this verifier speaks {PROTOCOL_VERSION}", "update the older side"
        )
    if message.tokenizer_fingerprint != tokenizer_fingerprint:
        raise InvalidInput(
            "open.tokenizer_fingerprint",
            f"is {message.tokenizer_fingerprint[:12]!r}, the target's is {tokenizer_fingerprint[:12]!r}",
            "use a drafter whose tokenizer is the target's",
        )
    if message.mode not in (pb.MODE_SEALED, pb.MODE_CLOAKED, pb.MODE_OPEN):
        raise InvalidInput("open.mode", f"is {message.mode}", "set sealed, cloaked or open")
    if not message.prompt:
        raise InvalidInput("open.prompt", "is empty", "send at least one token")
    if len(message.prompt) >= limits.context_length:
        raise InvalidInput(
            "open.prompt",
            f"has {len(message.prompt)} tokens, the context holds {limits.context_length} with the answer",
            "shorten the prompt",
        )
    _check_ids("open.prompt", message.prompt, limits.vocab_size)
    _check_sampling(message.sampling)
    if message.limits.max_tokens < 1:
        raise InvalidInput("open.limits.max_tokens", "is 0", "ask for at least one token")
    if len(message.limits.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidInput(
            "open.limits.stop_token_ids",
            f"has {len(message.limits.stop_token_ids)} entries, the limit is {MAX_STOP_TOKENS}",
            "send fewer",
        )
    _check_ids("open.limits.stop_token_ids", message.limits.stop_token_ids, limits.vocab_size)
    if message.service_class not in pb.ServiceClass.values():
        raise InvalidInput("open.service_class", f"is {message.service_class}", "use interactive or background")
    check_shaping(message.shaping)
    _check_resume(message, limits)


def _check_resume(message: pb.Open, limits: FrameLimits) -> None:
    held = len(message.resume_tokens)
    if len(message.resume_token) > MAX_RESUME_TOKEN:
        raise InvalidInput(
            "open.resume_token",
            f"has {len(message.resume_token)} bytes, the limit is {MAX_RESUME_TOKEN}",
            "send the one of Opened",
        )
    if held and not message.resume_token:
        raise InvalidInput("open.resume_tokens", "are set without a resume_token", "send the token too")
    if message.resume_position != held:
        raise InvalidInput(
            "open.resume_position", f"is {message.resume_position}, resume_tokens has {held} entries", "send them all"
        )
    most = min(message.limits.max_tokens, limits.context_length - len(message.prompt))
    if held > most:
        raise InvalidInput(
            "open.resume_tokens", f"has {held} entries, the session ends at {most}", "open a new session"
        )
    _check_ids("open.resume_tokens", message.resume_tokens, limits.vocab_size)


def check_draft(message: pb.Draft, limits: FrameLimits) -> None:
    """Check what a `Draft` says by itself.

    Raises:
        InvalidInput: Names the first field that is wrong.
    """
    count = len(message.tokens)
    if not 1 <= count <= limits.max_block:
        raise InvalidInput("draft.tokens", f"has {count} tokens, a block holds 1 to {limits.max_block}", "split it")
    _check_ids("draft.tokens", message.tokens, limits.vocab_size)
    if message.block < 1:
        raise InvalidInput("draft.block", "is 0", "number blocks from 1")
    if message.given:
        if len(message.given) > (count + 7) // 8:
            raise InvalidInput(
                "draft.given", f"has {len(message.given)} bytes for {count} tokens", "send one bit a token"
            )
        if int.from_bytes(message.given, "little") >> count:
            raise InvalidInput("draft.given", f"has bits beyond its {count} tokens", "clear them")


def given_flags(message: pb.Draft) -> tuple[bool, ...]:
    """Whether each token of a checked block is given."""
    count = len(message.tokens)
    if not message.given:
        return (False,) * count
    bits = int.from_bytes(message.given, "little")
    return tuple(bool(bits >> i & 1) for i in range(count))


def given_bits(flags: Sequence[bool]) -> bytes:
    """Pack one flag a token; empty where none is set, so that plain drafts pay nothing."""
    bits = sum(1 << i for i, flag in enumerate(flags) if flag)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    if max(ids, default=0) < vocab_size:
        return
    for index, token in enumerate(ids):
        if token >= vocab_size:
            raise InvalidInput(
                f"{field}[{index}]",
                f"is {token}, the vocabulary has {vocab_size} ids",
                "use the tokenizer of the target",
            )


def _check_sampling(sampling: pb.Sampling) -> None:
    if not (math.isfinite(sampling.temperature) and 0 <= sampling.temperature <= MAX_TEMPERATURE):
        raise InvalidInput(
            "open.sampling.temperature", f"is {sampling.temperature}", f"use 0 (greedy) to {MAX_TEMPERATURE:g}"
        )
    if not (math.isfinite(sampling.top_p) and 0 <= sampling.top_p <= 1):
        raise InvalidInput("open.sampling.top_p", f"is {sampling.top_p}", "use more than 0 up to 1 (0 is off)")
