"""What the gateway and vLLM's process say to each other: plain lists and dictionaries, as msgpack carries them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from edgedraft.errors import InvalidInput
from edgedraft_cloud.engines.base import Outcome, Step, Work

ENDED: Final = "ended"
"""A work's session is not there: its context is full (or it was released meanwhile)."""

GIVEN: Final = "edgedraft_given"
"""The attribute of a step's plan in which the scheduler tells the workers, by session, which tokens are given."""

WorkMessage = tuple[str, list[int], list[bool]]
OutcomeMessage = tuple[str, list[int], int, int]


def pack_works(works: Iterable[Work]) -> list[WorkMessage]:
    """Works as the scheduler takes them: session, draft tokens, and which of these are given (empty: none)."""
    return [(work.session, list(work.tokens), list(work.given)) for work in works]


def pack_step(
    *,
    batch: int,
    outcomes: list[OutcomeMessage],
    ended: list[str],
    tokens: int,
    prompt_tokens: int,
    seconds: float,
    kv_used: float,
    evicted: int,
) -> dict[str, Any]:
    """A step as the scheduler reports it; an outcome is session, tokens, accepted and judged."""
    return {
        "batch": batch,
        "outcomes": outcomes,
        ENDED: ended,
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "seconds": seconds,
        "kv_used": kv_used,
        "evicted": evicted,
    }


def unpack_step(message: dict[str, Any]) -> Step:
    """The report of a step."""
    outcomes = [
        Outcome(session, tuple(tokens), accepted, judged) for session, tokens, accepted, judged in message["outcomes"]
    ]
    for session in message[ENDED]:
        error = InvalidInput("session", "its context is full", "begin a new one")
        outcomes.append(Outcome(session, (), 0, error=error))
    return Step(
        batch=message["batch"],
        outcomes=tuple(outcomes),
        tokens=message["tokens"],
        prompt_tokens=message["prompt_tokens"],
        seconds=message["seconds"],
        kv_used=message["kv_used"],
        evicted=message["evicted"],
    )
