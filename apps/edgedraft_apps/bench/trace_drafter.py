"""A drafter that replays what a real one drafted, at a set speed; it stands for a device in load tests.

Where the record ends, i.e. off the target's path, nobody knows what the real drafter would have said. There this one
says something that the target rejects, which is what nearly always happens behind a wrong token.
"""

from __future__ import annotations

import random
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from edgedraft.drafters.base import Candidates, Contrast, Drafter, DrafterInfo, Feed, SequenceId
from edgedraft.drafters.contrast import compare_listed
from edgedraft.errors import InvalidInput
from edgedraft.text import TextCodec
from edgedraft_cloud.engines.trace import ANY_CONTEXT, ANY_FINGERPRINT, ANY_VOCAB, any_token
from edgedraft_cloud.engines.trace_file import Trace, TraceFile

_ANY_PROMPT_TOKENS: Final = 32
_OFF_PATH: Final = 0.5
"""Confidence in a token that is made up."""


class Material(ABC):
    """Prompts to ask, and what a drafter says to them.

    Attributes:
        vocab_size: Token ids lie in [0, vocab_size).
        context_length: Tokens of prompt and answer.
        fingerprint: Of the tokenizer.
        eos_token_ids: Tokens that end a text.
    """

    vocab_size: int
    context_length: int
    fingerprint: str
    eos_token_ids: tuple[int, ...] = ()

    @abstractmethod
    def prompt(self, number: int) -> list[int]:
        """Token ids of a prompt; any whole number names one."""

    @abstractmethod
    def length(self, number: int, most: int) -> int:
        """Tokens to ask for after that prompt, at most `most`."""

    @abstractmethod
    def draft(self, tokens: Sequence[int]) -> Candidates:
        """What the drafter puts after `tokens`, prompt included."""


class AnyMaterial(Material):
    """The counterpart of the trace engine's `any`: right with a set probability.

    Args:
        alpha: That probability.
        seed: Fixes where it errs.
    """

    def __init__(self, alpha: float, seed: int = 0) -> None:
        _check_alpha(alpha)
        self.vocab_size = ANY_VOCAB
        self.context_length = ANY_CONTEXT
        self.fingerprint = ANY_FINGERPRINT
        self._alpha = alpha
        self._seed = seed

    def prompt(self, number: int) -> list[int]:
        """A short prompt, a different one for each number."""
        return [(number + index) % ANY_VOCAB for index in range(_ANY_PROMPT_TOKENS)]

    def length(self, number: int, most: int) -> int:
        """As many as wanted, and as the context holds."""
        return min(most, self.context_length - _ANY_PROMPT_TOKENS)

    def draft(self, tokens: Sequence[int]) -> Candidates:
        """Right or wrong by a hash of the prompt and the position."""
        position = len(tokens)
        token = any_token(position)
        chance = zlib.crc32(b"%d.%d.%d" % (self._seed, tokens[0], position)) / 2**32
        if chance >= self._alpha:
            token = (token + 1) % ANY_VOCAB
        return Candidates((token,), (self._alpha,))


class RecordedMaterial(Material):
    """What a trace file holds.

    Args:
        file: The file.
        alpha: None leaves the drafter as it was. Else wrong first choices are made right, or right ones wrong, at
            random positions until this share is right.
        seed: Fixes which.
    """

    def __init__(self, file: TraceFile, alpha: float | None = None, seed: int = 0) -> None:
        traces = list(file.traces.values())
        self.traces = traces if alpha is None else at_acceptance_rate(traces, alpha, seed)
        self.vocab_size = file.header.vocab_size
        self.context_length = file.header.context_length
        self.fingerprint = file.header.tokenizer_fingerprint
        self.eos_token_ids = file.header.eos_token_ids
        self._by_length: dict[int, dict[tuple[int, ...], Trace]] = {}
        for trace in self.traces:
            self._by_length.setdefault(len(trace.prompt), {})[trace.prompt] = trace

    def prompt(self, number: int) -> list[int]:
        """One of the recorded prompts."""
        return list(self._trace(number).prompt)

    def length(self, number: int, most: int) -> int:
        """As many as were recorded."""
        return min(most, len(self._trace(number).tokens))

    def draft(self, tokens: Sequence[int]) -> Candidates:
        """What was recorded here, or off the path a token that the target does not put here."""
        trace = self._find(tokens)
        start = len(trace.prompt)
        place = len(tokens) - start
        if place < len(trace.tokens):
            if tuple(tokens[start:]) == trace.tokens[:place]:
                return Candidates(trace.choices[place], trace.confidence[place])
            return Candidates(((trace.tokens[place] + 1) % self.vocab_size,), (_OFF_PATH,))
        return Candidates((0,), (_OFF_PATH,))

    def _trace(self, number: int) -> Trace:
        return self.traces[number % len(self.traces)]

    def _find(self, tokens: Sequence[int]) -> Trace:
        for length, traces in self._by_length.items():
            trace = traces.get(tuple(tokens[:length]))
            if trace is not None:
                return trace
        raise InvalidInput("prompt", "is not in the trace", "ask what was recorded")


class TraceDrafter(Drafter):
    """Replays material at a set speed.

    Args:
        material: What to say.
        step_seconds: How long a step takes.
        sleep: Waits that long; the drafter's thread is blocked meanwhile, as it is by a real model.
    """

    def __init__(
        self, material: Material, step_seconds: float = 0.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._material = material
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._info = DrafterInfo("trace", material.vocab_size, material.context_length, material.fingerprint)
        self._sequences: dict[SequenceId, list[int]] = {}
        self._next = SequenceId(0)

    @property
    def info(self) -> DrafterInfo:
        """Fixed facts."""
        return self._info

    def new_sequence(self) -> SequenceId:
        """Start an empty sequence."""
        self._next = SequenceId(self._next + 1)
        self._sequences[self._next] = []
        return self._next

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """Start a sequence with the first `length` tokens of another."""
        branch = self.new_sequence()
        self._sequences[branch] = self._sequences[sequence][:length]
        return branch

    def step(self, feeds: Sequence[Feed], k: int) -> list[Candidates]:
        """Append tokens and look up what was drafted there."""
        self._sleep(self._step_seconds)
        answers = []
        for feed in feeds:
            tokens = self._sequences[feed.sequence]
            tokens.extend(int(token) for token in feed.tokens)
            found = self._material.draft(tokens)
            answers.append(Candidates(found.ids[:k], found.probs[:k]))
        return answers

    def contrast(self, private: Feed, public: Feed, k: int) -> Contrast:
        """Append tokens and compare what was drafted in each view."""
        own, other = self.step([private, public], self._material.vocab_size)
        return compare_listed(own, other, k)

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """Cut a sequence back."""
        del self._sequences[sequence][length:]

    def free(self, sequence: SequenceId) -> None:
        """Forget a sequence."""
        del self._sequences[sequence]

    def close(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()


class TraceCodec(TextCodec):
    """In place of a tokenizer: the text of a prompt is the number of one of the material's, and every token a letter.

    Args:
        material: Has the prompts.
    """

    def __init__(self, material: Material) -> None:
        self._material = material
        self.eos_token_ids = material.eos_token_ids
        self.fingerprint = material.fingerprint
        self.token_bytes = cache(_letter)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._material.vocab_size

    def encode(self, text: str) -> list[int]:
        """The prompt of that number."""
        return self._material.prompt(int(text))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt whose number the last message is."""
        return self.encode(messages[-1]["content"])


def at_acceptance_rate(traces: Sequence[Trace], alpha: float, seed: int) -> list[Trace]:
    """The same traces with first choices changed at random positions until a share of `alpha` of them is right.

    Args:
        traces: As recorded.
        alpha: The share, 0 to 1.
        seed: Fixes which positions.

    Raises:
        InvalidInput: `alpha` is out of range.
    """
    _check_alpha(alpha)
    places = [(index, place) for index, trace in enumerate(traces) for place in range(len(trace.tokens))]
    right = {(i, p) for i, p in places if traces[i].choices[p][0] == traces[i].tokens[p]}
    excess = len(right) - round(alpha * len(places))
    pool = [place for place in places if (place in right) == (excess > 0)]
    change = set(random.Random(seed).sample(pool, abs(excess)))
    return [
        replace(
            trace,
            choices=tuple(
                _flipped(ids, trace.tokens[place]) if (index, place) in change else ids
                for place, ids in enumerate(trace.choices)
            ),
        )
        for index, trace in enumerate(traces)
    ]


def _flipped(ids: tuple[int, ...], token: int) -> tuple[int, ...]:
    """A wrong first choice becomes the token, a right one a wrong one; as many choices as before."""
    if ids[0] != token:
        return (token, *(each for each in ids if each != token))[: len(ids)]
    return (*ids[1:], ids[0]) if len(ids) > 1 else (token ^ 1,)


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise InvalidInput("alpha", f"is {alpha}", "use 0 to 1")


def _letter(token: int) -> bytes:
    return b"x"
