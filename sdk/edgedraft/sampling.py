"""How the next token is chosen and when a generation ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedraft.errors import InvalidInput
from edgedraft.wire.checks import MAX_STOP_TOKENS, MAX_TEMPERATURE


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of one generation.

    Attributes:
        max_tokens: Tokens to generate at most; the end of the context ends it earlier.
        temperature: 0 is greedy: the target's most probable token each time.
        top_p: Sample from the smallest set of tokens with this much probability; 1 is off.
        top_k: Sample from this many most probable tokens; 0 is off.
        seed: Fixes the draws; the distribution is promised, not the same draws on another version.
        stop: Texts that end the answer; they are not part of it.
        stop_token_ids: Tokens that end the answer, besides the model's own.
        ignore_eos: Go on behind the model's end-of-text tokens.

    Raises:
        InvalidInput: Names the field that is wrong.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidInput("max_tokens", f"is {self.max_tokens}", "ask for at least one token")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE):
            raise InvalidInput("temperature", f"is {self.temperature}", f"use 0 (greedy) to {MAX_TEMPERATURE:g}")
        if not (math.isfinite(self.top_p) and 0 < self.top_p <= 1):
            raise InvalidInput("top_p", f"is {self.top_p}", "use more than 0 up to 1 (1 is off)")
        if not 0 <= self.top_k < 2**31:
            raise InvalidInput("top_k", f"is {self.top_k}", "use 0 (off) or more")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InvalidInput("seed", f"is {self.seed}", "use 0 to 2**64 - 1")
        if isinstance(self.stop, str):
            raise InvalidInput("stop", "is one string", "pass a tuple of strings")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise InvalidInput(
                "stop_token_ids",
                f"has {len(self.stop_token_ids)} entries, the limit is {MAX_STOP_TOKENS}",
                "pass fewer",
            )
