"""The wire between device and verifier: the schema, and the checks that every frame passes before it is used."""

from edgedraft.wire.checks import (
    FrameLimits,
    check_draft,
    check_open,
    decode_client_frame,
    decode_describe_response,
    decode_server_frame,
    given_bits,
    given_flags,
)
from edgedraft.wire.method import (
    DESCRIBE_METHOD,
    DEVICE_URI,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    SERVICE_NAME,
    VERIFY_METHOD,
)
from edgedraft.wire.shaping import Beat, BeatMaker, check_shaping, pad, span_end

__all__ = [
    "DESCRIBE_METHOD",
    "DEVICE_URI",
    "MAX_FRAME_BYTES",
    "PROTOCOL_VERSION",
    "SERVICE_NAME",
    "VERIFY_METHOD",
    "Beat",
    "BeatMaker",
    "FrameLimits",
    "check_draft",
    "check_open",
    "check_shaping",
    "decode_client_frame",
    "decode_describe_response",
    "decode_server_frame",
    "given_bits",
    "given_flags",
    "pad",
    "span_end",
]
