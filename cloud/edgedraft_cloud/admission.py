"""Turns a checked `Open` into a session, or refuses it before anything is changed."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire import FrameLimits, check_open
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import EngineInfo, Sampling
from edgedraft_cloud.session import Session, SessionLimits

MOST_QUOTED: Final = 64
"""Letters of a name that an error tells again."""


def check_request(message: pb.Open, info: EngineInfo, modes: Collection[pb.Mode]) -> None:
    """Check an `Open` against what is served.

    Raises:
        InvalidInput: Names the first field that is wrong.
    """
    check_open(message, _frames(info), info.tokenizer_fingerprint)
    if message.model and message.model != info.model:
        raise InvalidInput(
            "open.model", f"is {_quoted(message.model)}, this verifier serves {info.model!r}", "ask for that"
        )
    if message.mode not in modes:
        served = ", ".join(pb.Mode.Name(mode) for mode in modes)
        raise InvalidInput(
            "open.mode", f"is {pb.Mode.Name(message.mode)}, this verifier serves {served}", "use one of these"
        )


def new_session(message: pb.Open, info: EngineInfo, *, window: int, run_ahead: int) -> Session:
    """The session that a checked `Open` asks for; one that was lost goes on from the tokens that the device holds."""
    stops = set(message.limits.stop_token_ids)
    if not message.limits.ignore_eos:
        stops.update(info.eos_token_ids)
    return Session(
        id=secrets.token_hex(8),
        limits=SessionLimits(
            frames=_frames(info),
            max_tokens=message.limits.max_tokens,
            context_room=info.context_length - len(message.prompt),
            stop_tokens=frozenset(stops),
            window=window,
            run_ahead=run_ahead,
            may_give=message.mode == pb.MODE_SEALED,
        ),
        prompt=tuple(message.prompt),
        restored=tuple(message.resume_tokens) if message.resume_token else None,
    )


def sampling_of(message: pb.Sampling) -> Sampling:
    """How the target chooses, as a checked message says."""
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        seed=message.seed if message.HasField("seed") else None,
    )


def _quoted(name: str) -> str:
    return repr(name) if len(name) <= MOST_QUOTED else f"{name[:MOST_QUOTED]!r}..."


def _frames(info: EngineInfo) -> FrameLimits:
    return FrameLimits(info.vocab_size, info.context_length, info.max_block)
