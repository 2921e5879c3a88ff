"""A toy language: a deterministic target, a drafter that is right most of the time, and a server with both."""

import zlib
from dataclasses import dataclass

from edgedraft.client import Client
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.identity import Identity
from edgedraft.text import TextCodec
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft_cloud.engines.base import EngineInfo
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import RunningServer


def scripted_info(codec: TextCodec, **changes) -> EngineInfo:
    """The toy as an engine tells it; the room is set, so that nothing is measured."""
    facts = {
        "engine": "scripted",
        "model": "toy",
        "model_fingerprint": "f",
        "tokenizer_fingerprint": codec.fingerprint,
        "vocab_size": codec.vocab_size,
        "context_length": 200,
        "max_block": 8,
        "max_sessions": 4,
        "eos_token_ids": (2, 0),
        "room": 10_000,
    }
    return EngineInfo(**{**facts, **changes})


def toy_target(tokens: tuple[int, ...]) -> int:
    """A deterministic language: letters mostly, an end of text now and then."""
    value = zlib.crc32(repr(tokens[-6:]).encode())
    return 2 if value % 23 == 0 else 5 + value % 60


def toy_greedy(prompt: list[int], max_tokens: int) -> list[int]:
    out: list[int] = []
    while len(out) < max_tokens:
        out.append(toy_target((*prompt, *out)))
        if out[-1] == 2:
            break
    return out


def toy_draft(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Right most of the time."""
    right = toy_target(tokens)
    return (right if zlib.crc32(repr(tokens[-9:]).encode()) % 4 else right + 1, right)


@dataclass
class Bench:
    """A server with a scripted target over real mTLS, and what a client needs to reach it."""

    server: RunningServer
    engine: ScriptedEngine
    orchestrator: Orchestrator
    identity: Identity
    codec: TextCodec

    def transport(self, identity: Identity | None = None, port: int | None = None) -> GrpcTransport:
        return GrpcTransport(f"localhost:{port or self.server.port}", identity or self.identity)

    def client(self, *, transport: GrpcTransport | None = None, **settings) -> Client:
        drafter = ScriptedDrafter(
            toy_draft, vocab_size=self.codec.vocab_size, tokenizer_fingerprint=self.codec.fingerprint
        )
        verifier = transport or self.transport()
        return Client(drafter, verifier=verifier, codec=self.codec, **{"mode": "open", **settings})
