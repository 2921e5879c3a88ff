"""Recorded generations: what a real target said to each prompt, and what a real drafter would have drafted there.

A trace file is JSON Lines. Its first line says of which models it is; each further line holds one prompt:

```
{"format": "edgedraft-trace", "version": 1, "target": ..., "drafter": ..., "vocab_size": ..., ...}
{"prompt": [ids], "tokens": [ids], "choices": [[ids], ...], "confidence": [[probabilities], ...], "category": "..."}
```

`tokens` are the target's greedy ones. For each of them `choices` has the drafter's first choices, best first, *on the
target's path*. What it would draft elsewhere is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from edgedraft.errors import InvalidInput

FORMAT: Final = "edgedraft-trace"
VERSION: Final = 1
_CURE: Final = "make it with `edgedraft bench record`"


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """Of which models a trace file is.

    Attributes:
        target: The target's name and format.
        target_fingerprint: Hex sha256 of its weights and format.
        drafter: The drafter's name and format.
        drafter_fingerprint: Likewise.
        tokenizer_fingerprint: Hex sha256 of the tokenizer of both.
        vocab_size: Token ids lie in [0, vocab_size).
        context_length: Tokens of prompt and answer that the target holds.
        eos_token_ids: Tokens that end a text.
        max_tokens: Tokens after which recording stopped.
        machine: Where it was recorded.
    """

    target: str
    target_fingerprint: str
    drafter: str
    drafter_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    max_tokens: int
    machine: str

    def as_json(self) -> str:
        """The first line of a file."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read the first line of a file.

        Raises:
            InvalidInput: It is no such line.
        """
        data = _object(line, 1)
        if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise InvalidInput("trace", f"line 1 is no header of {FORMAT} version {VERSION}", _CURE)
        for name in ("vocab_size", "context_length", "max_tokens"):
            if not _is_whole(data.get(name)) or data[name] < 1:
                raise InvalidInput("trace", f"line 1: {name} is {data.get(name)!r}", _CURE)
        whole = ("vocab_size", "context_length", "max_tokens", "eos_token_ids")
        for name in (field.name for field in fields(cls) if field.name not in whole):
            if not isinstance(data.get(name), str):
                raise InvalidInput("trace", f"line 1: {name} is {data.get(name)!r}", _CURE)
        eos = _ids(data, "eos_token_ids", data["vocab_size"], 1)
        return cls(**{field.name: data[field.name] for field in fields(cls)} | {"eos_token_ids": eos})


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded generation.

    Attributes:
        prompt: Token ids.
        tokens: What the target puts after it, greedily.
        choices: The drafter's first choices at each position of `tokens`, best first.
        confidence: Its probabilities of them.
        category: Kind of the prompt, or empty.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    confidence: tuple[tuple[float, ...], ...]
    category: str = ""

    @property
    def right(self) -> int:
        """How many first choices are the target's."""
        return sum(choices[0] == token for choices, token in zip(self.choices, self.tokens, strict=True))

    def as_json(self) -> str:
        """A line of a file."""
        rounded = [[round(value, 5) for value in row] for row in self.confidence]
        return json.dumps({**asdict(self), "confidence": rounded}, separators=(",", ":"))

    @classmethod
    def parse(cls, line: str, number: int, header: TraceHeader) -> Self:
        """Read a line of a file.

        Args:
            line: The line.
            number: Its number, for messages.
            header: Of the file.

        Raises:
            InvalidInput: It is no such line.
        """
        data = _object(line, number)
        prompt, tokens = (_ids(data, name, header.vocab_size, number) for name in ("prompt", "tokens"))
        if not prompt or not tokens:
            raise InvalidInput("trace", f"line {number} has no prompt or no tokens", _CURE)
        rows, probabilities = data.get("choices"), data.get("confidence")
        for name, value in (("choices", rows), ("confidence", probabilities)):
            if not isinstance(value, list) or len(value) != len(tokens):
                raise InvalidInput("trace", f"line {number}: {name} has no entry for each of its tokens", _CURE)
        assert isinstance(rows, list)
        assert isinstance(probabilities, list)
        choices = tuple(_ids({"choices": row}, "choices", header.vocab_size, number) for row in rows)
        confidence = tuple(_floats(row, number) for row in probabilities)
        if any(not ids or len(ids) != len(probs) for ids, probs in zip(choices, confidence, strict=True)):
            raise InvalidInput("trace", f"line {number}: choices and confidence do not match", _CURE)
        return cls(prompt, tokens, choices, confidence, str(data.get("category", "")))


@dataclass(frozen=True, slots=True)
class TraceFile:
    """All of one file.

    Attributes:
        header: Of which models it is.
        traces: By prompt.
    """

    header: TraceHeader
    traces: Mapping[tuple[int, ...], Trace]

    @property
    def acceptance_rate(self) -> float:
        """α along the target's path: the share of positions where the drafter's first choice is the target's."""
        return sum(trace.right for trace in self.traces.values()) / sum(len(t.tokens) for t in self.traces.values())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            InvalidInput: It cannot be read, or a line of it is wrong.
        """
        header: TraceHeader | None = None
        traces: dict[tuple[int, ...], Trace] = {}
        for number, line in _lines(path):
            if header is None:
                header = TraceHeader.parse(
                    line,
                )
                continue
            trace = Trace.parse(line, number, header)
            if trace.prompt in traces:
                raise InvalidInput("trace", f"line {number} of {path} has the prompt of an earlier one", "remove it")
            traces[trace.prompt] = trace
        if header is None or not traces:
            raise InvalidInput("trace", f"{path} holds no trace", _CURE)
        return cls(header, traces)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from enumerate(file, 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("trace", f"{path} cannot be read ({error})", _CURE) from error


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInput("trace", f"line {number} is no JSON ({error})", _CURE) from error
    if not isinstance(data, dict):
        raise InvalidInput("trace", f"line {number} is no JSON object", _CURE)
    return data


def _ids(data: Mapping[str, Any], name: str, vocab_size: int, number: int) -> tuple[int, ...]:
    value = data.get(name)
    if not isinstance(value, list) or not all(_is_whole(each) and 0 <= each < vocab_size for each in value):
        raise InvalidInput("trace", f"line {number}: {name} are no token ids below {vocab_size}", _CURE)
    return tuple(value)


def _floats(value: Any, number: int) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(isinstance(each, float | int) and 0 <= each <= 1 for each in value):
        raise InvalidInput("trace", f"line {number}: confidence are no probabilities", _CURE)
    return tuple(float(each) for each in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
