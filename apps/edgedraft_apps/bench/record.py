"""Records traces: a real target's greedy answers, and what a real drafter would have drafted at each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedraft.errors import InvalidInput
from edgedraft.prompt import Prompt
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed, Float32s
from edgedraft.text import TextCodec
from edgedraft_apps.bench.prompts import BenchPrompt
from edgedraft_cloud.engines.trace_file import Trace, TraceFile, TraceHeader

TOP = 8
"""Choices of the drafter that are kept at each position."""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What to record.

    Attributes:
        drafter: Artifact folder of the drafter.
        target: Artifact folder of the target.
        max_tokens: Tokens of an answer at most.
        threads: Threads for the arithmetic; None picks a default.

    Raises:
        InvalidInput: A setting is out of range.
    """

    drafter: Path
    target: Path
    max_tokens: int = 128
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidInput("max_tokens", f"is {self.max_tokens}", "record at least one token")


class Recorder:
    """A pair of models that answers prompts for the record.

    Args:
        settings: What to record.
        machine: A description of where this is.

    Raises:
        ModelError: A folder cannot be used.
        InvalidInput: The two are no pair.
    """

    def __init__(self, settings: RecordSettings, machine: str) -> None:
        self._codec = TextCodec.load(settings.target)
        self._target, self._drafter = (
            CompiledModel.load(folder, threads=settings.threads) for folder in (settings.target, settings.drafter)
        )
        target, drafter = self._target.manifest, self._drafter.manifest
        if target.tokenizer_fingerprint != drafter.tokenizer_fingerprint:
            raise InvalidInput("drafter", "has another tokenizer than the target", "use a drafter of its family")
        self.header = TraceHeader(
            target=f"{target.model} {target.quantization}",
            target_fingerprint=target.model_fingerprint,
            drafter=f"{drafter.model} {drafter.quantization}",
            drafter_fingerprint=drafter.model_fingerprint,
            tokenizer_fingerprint=target.tokenizer_fingerprint,
            vocab_size=self._target.config.vocab_size,
            context_length=self._target.config.context_window_size,
            eos_token_ids=self._codec.eos_token_ids,
            max_tokens=settings.max_tokens,
            machine=machine,
        )

    def encode(self, prompt: BenchPrompt) -> tuple[int, ...]:
        """Token ids of a prompt, as a client would send them."""
        return tuple(self._codec.encode_chat(Prompt.of(prompt.text).as_dicts()))

    def record(self, prompt: Sequence[int], category: str) -> Trace:
        """Answer a prompt.

        Args:
            prompt: Token ids.
            category: Kind of the prompt.

        Raises:
            InvalidInput: It does not fit the context.
        """
        room = min(model.config.context_window_size for model in (self._target, self._drafter)) - len(prompt)
        if room < 1:
            raise InvalidInput("prompts", f"has one of {len(prompt)} tokens", "shorten it, or take another pair")
        tokens = self._answer(prompt, min(self.header.max_tokens, room))
        choices, confidence = choices_along(self._drafter, prompt, tokens)
        return Trace(tuple(prompt), tuple(tokens), choices, confidence, category)

    def _answer(self, prompt: Sequence[int], limit: int) -> list[int]:
        cache = self._target.new_cache(len(prompt) + limit, sequences=1)
        sequence = cache.new_sequence()
        tokens: list[int] = []
        feed = list(prompt)
        while len(tokens) < limit and not (tokens and tokens[-1] in self.header.eos_token_ids):
            logits = self._target.forward(cache, [Feed(sequence, feed)])
            feed = [int(np.argmax(logits[0]))]
            tokens += feed
        return tokens


def choices_along(
    drafter: CompiledModel, prompt: Sequence[int], tokens: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]:
    """What a drafter puts where a target has put `tokens`, best first, and its probabilities; both [tokens, TOP]."""
    cache = drafter.new_cache(len(prompt) + len(tokens), sequences=1)
    sequence = cache.new_sequence()
    if len(prompt) > 1:
        drafter.forward(cache, [Feed(sequence, prompt[:-1])])
    logits = drafter.forward(cache, [Feed(sequence, [prompt[-1], *tokens[:-1]])], logits="all")
    best = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
    probabilities = np.take_along_axis(_softmax(logits), best, axis=1)
    return tuple(map(tuple, best.tolist())), tuple(map(tuple, probabilities.tolist()))


def record(
    recorder: Recorder, prompts: Sequence[BenchPrompt], out: Path, progress: Callable[[str, int, int, str], None]
) -> TraceFile:
    """Record prompts into a file, which is put in place when it is whole.

    What an interrupted run has recorded of the same models is kept beside it and not made again.

    Args:
        recorder: The pair.
        prompts: What to ask; one that comes twice is recorded once.
        out: The file.
        progress: Told how far it is.

    Raises:
        InvalidInput: The file cannot be written, or a prompt is wrong.
    """
    part = out.with_name(f"{out.name}.part")
    wanted: dict[tuple[int, ...], str] = {}
    for prompt in prompts:
        wanted.setdefault(recorder.encode(prompt), prompt.category)
    done = [trace for trace in _kept(part, recorder.header) if wanted.pop(trace.prompt, None) is not None]
    total = len(done) + len(wanted)
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in (recorder.header.as_json(), *(trace.as_json() for trace in done)))
            for number, (ids, category) in enumerate(wanted.items(), len(done)):
                progress("record", number, total, "prompts")
                file.write(recorder.record(ids, category).as_json() + "\n")
                file.flush()
        progress("record", total, total, "prompts")
        traces = TraceFile.load(part)
        part.replace(out)
    except OSError as error:
        raise InvalidInput("out", f"{out} cannot be written ({error.strerror})", "choose another place") from error
    return traces


def _kept(part: Path, header: TraceHeader) -> list[Trace]:
    """What an interrupted run of the same models has left."""
    kept: list[Trace] = []
    if not part.exists():
        return kept
    lines = part.read_text(encoding="utf-8").splitlines()
    try:
        if not lines or TraceHeader.parse(lines[0]) != header:
            return kept
        for number, line in enumerate(lines[1:], 2):
            kept.append(Trace.parse(line, number, header))
    except InvalidInput:
        return kept  # the last line is only half written
    return kept


def _softmax(logits: Float32s) -> Float32s:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    total: Float32s = shifted / shifted.sum(axis=1, keepdims=True)
    return total
