"""How the next token is chosen and when a generation ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire.checks import MAX_STOP_TOKENS, MAX_TEMPERATURE

_TOKEN_IDS: Final = 2**32
"""Token ids lie below; each model has far fewer."""


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
        _check_whole("max_tokens", self.max_tokens)
        if self.max_tokens < 1:
            raise InvalidInput("max_tokens", f"is {self.max_tokens}", "ask for at least one token")
        _check_real("temperature", self.temperature)
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise InvalidInput("temperature", f"is {self.temperature}", f"use 0 (greedy) to {MAX_TEMPERATURE:g}")
        _check_real("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise InvalidInput("top_p", f"is {self.top_p}", "use more than 0 up to 1 (1 is off)")
        _check_whole("top_k", self.top_k)
        if not 0 <= self.top_k < 2**31:
            raise InvalidInput("top_k", f"is {self.top_k}", "use 0 (off) to 2**31 - 1")
        if self.seed is not None:
            _check_whole("seed", self.seed)
            if not 0 <= self.seed < 2**64:
                raise InvalidInput("seed", f"is {self.seed}", "use 0 to 2**64 - 1")
        self._check_stops()
        if not isinstance(self.ignore_eos, bool):
            raise InvalidInput("ignore_eos", f"is {type(self.ignore_eos).__name__}", "pass True or False")

    def _check_stops(self) -> None:
        if isinstance(self.stop, str):
            raise InvalidInput("stop", "is one string", "pass a tuple of strings")
        for name in ("stop", "stop_token_ids"):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or isinstance(values, bytes):
                raise InvalidInput(name, f"is {type(values).__name__}", "pass a tuple, () for none")
            object.__setattr__(self, name, tuple(values))
        for index, stop in enumerate(self.stop):
            if not isinstance(stop, str):
                raise InvalidInput(f"stop[{index}]", f"is {type(stop).__name__}", "pass a string")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise InvalidInput(
                "stop_token_ids",
                f"has {len(self.stop_token_ids)} entries, the limit is {MAX_STOP_TOKENS}",
                "pass fewer",
            )
        for index, token in enumerate(self.stop_token_ids):
            _check_whole(f"stop_token_ids[{index}]", token)
            if not 0 <= token < _TOKEN_IDS:
                raise InvalidInput(
                    f"stop_token_ids[{index}]", f"is {token}", "use a token id of the model, 0 to 2**32 - 1"
                )


def _check_whole(field: str, value: object) -> None:
    # True and False are whole numbers to Python.
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InvalidInput(field, f"is {type(value).__name__}", "pass a whole number")


def _check_real(field: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidInput(field, f"is {type(value).__name__}", "pass a number")
