"""An engine that only replays what a target once said, with a step time that is set: for timing, never correctness.

It has no model. It is there to load the gateway with more sessions than a small machine could verify, and to try out
the speeds of other hardware with real tokens. `EngineInfo.engine` is `trace`, and the model's name says "replayed".
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final, Self

from edgedraft.errors import InvalidInput, Overloaded
from edgedraft_cloud.config import ServerConfig
from edgedraft_cloud.engines.base import Engine, EngineInfo, Outcome, Sampling, SessionId, Step, Work
from edgedraft_cloud.engines.trace_file import TraceFile
from edgedraft_cloud.step_times import Roofline

ANY_PROMPT: Final = "any"
"""In place of a trace file: every prompt is answered, with `any_token`."""
ANY_VOCAB: Final = 32_000
ANY_CONTEXT: Final = 8192
ANY_FINGERPRINT: Final = hashlib.sha256(b"edgedraft trace engine, any prompt").hexdigest()
"""Stands for the tokenizer and the model that `any` does not have."""
RETRY_AFTER: Final = 2.0
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(?:\+(\d+(?:\.\d+)?)@(\d+))?")
_MAX_MS: Final = 60_000.0


def any_token(position: int) -> int:
    """The token that `any` puts at a position of the whole sequence, prompt included; a fixed, arbitrary function."""
    return (position * 2_654_435_761 >> 8) % ANY_VOCAB


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes.

    Attributes:
        roofline: Over the rows of the step: draft tokens and one more a session; prompts are read in no time.
        jitter: Up to this share is added at random.

    Raises:
        InvalidInput: The jitter is out of range.
    """

    roofline: Roofline
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 1:
            raise InvalidInput("jitter", f"is {self.jitter}", "use 0 to 1")

    @classmethod
    def parse(cls, text: str, jitter: float = 0.0) -> Self:
        """Read `base` or `base+per_row@knee`, in milliseconds: `30`, or `30+0.5@64`.

        Raises:
            InvalidInput: It is written otherwise, or longer than a minute.
        """
        match = _TIME.fullmatch(text.strip())
        if match is None:
            raise InvalidInput("verify_ms", f"is {text!r}", "write `base` or `base+per_token@knee`, e.g. `30+0.5@64`")
        base, slope = float(match[1]), float(match[2] or 0)
        if max(base, slope) > _MAX_MS:
            raise InvalidInput("verify_ms", f"is {text!r}", f"use at most {_MAX_MS:g} ms")
        return cls(Roofline(base / 1000, slope / 1000, float(match[3] or 0)), jitter)

    def seconds(self, rows: int, draw: float = 0.0) -> float:
        """Time of a step.

        Args:
            rows: See above.
            draw: In [0, 1), for the jitter.
        """
        return self.roofline.seconds(rows) * (1 + self.jitter * draw)


@dataclass(slots=True, eq=False)
class _Replay:
    """A session since it was opened: the token at each position of what it generates, and how far it is."""

    at: Callable[[int], int]
    position: int = 0

    def judge(self, work: Work) -> Outcome:
        """What the recording says to a work; given tokens stand, and it goes on behind them as if they were its own."""
        settled: list[int] = []
        for index, token in enumerate(work.tokens):
            given = bool(work.given) and work.given[index]
            if not given and token != self.at(self.position + index):
                break
            settled.append(token)
        accepted = len(settled)
        settled.append(self.at(self.position + accepted))
        self.position += len(settled)
        return Outcome(work.session, tuple(settled), accepted, judged=len(work.tokens))


class TraceEngine(Engine):
    """Replays recorded tokens; it verifies nothing, and every session's answer is greedy whatever it asks for.

    Args:
        traces: What was recorded; None answers any prompt with `any_token`.
        time: How long a step takes.
        max_sessions: Sessions that may be open at once.
        max_block: Draft tokens in one work.
        context: Tokens of prompt and answer; None takes what was recorded.
        seed: Of the jitter.
    """

    def __init__(
        self,
        traces: TraceFile | None,
        time: StepTime,
        *,
        max_sessions: int = 16,
        max_block: int = 16,
        context: int | None = None,
        seed: int = 0,
    ) -> None:
        self._traces = traces
        self._time = time
        self._seed = seed
        self._info = _info(traces, time, max_sessions, max_block, context)
        self._reset()

    def _reset(self) -> None:
        self._draws = random.Random(self._seed)
        self._sessions: dict[SessionId, _Replay] = {}
        # With the session as it was then: one that is released and opened again is another.
        self._opened: list[tuple[Work, _Replay]] = []
        self._batches: deque[tuple[int, list[tuple[Work, _Replay]]]] = deque()
        self._submitted = 0
        self._taken = 0
        self._wanted = asyncio.Event()

    @property
    def info(self) -> EngineInfo:
        """Fixed facts; engine and model say that it replays."""
        return self._info

    async def start(self) -> None:
        """Begin; nothing is loaded."""
        self._reset()

    async def open(self, session: SessionId, prompt: Sequence[int], sampling: Sampling, salt: str) -> None:
        """Take in a session.

        Raises:
            Overloaded: All places are taken.
            InvalidInput: Nothing was recorded for this prompt.
        """
        if len(self._sessions) >= self._info.max_sessions:
            raise Overloaded(f"all {self._info.max_sessions} sessions are taken", RETRY_AFTER)
        replay = self._sessions[session] = self._replay(tuple(prompt))
        self._opened.append((Work(session), replay))
        self._wanted.set()

    def submit(self, works: Sequence[Work]) -> int:
        """Hand over a batch."""
        self._submitted += 1
        known = [(work, replay) for work in works if (replay := self._sessions.get(work.session)) is not None]
        self._batches.append((self._submitted, known))
        self._wanted.set()
        return self._submitted

    async def step(self) -> Step:
        """Replay the oldest batch, and the first token of sessions that were opened before the step began."""
        await self._wanted.wait()
        loop = asyncio.get_running_loop()
        started = loop.time()
        opened = list(self._opened)
        number, batch = self._batches[0] if self._batches else (self._taken, [])
        works = opened + batch
        rows = sum(len(work.tokens) + 1 for work, _ in works)
        await asyncio.sleep(self._time.seconds(rows, self._draws.random()))
        # Taken only now, so that a step that is cancelled has not happened.
        del self._opened[: len(opened)]
        if number > self._taken:
            self._taken = number
            self._batches.popleft()
        if not self._opened and not self._batches:
            self._wanted.clear()
        outcomes = tuple(replay.judge(work) for work, replay in works if replay is self._sessions.get(work.session))
        return Step(self._taken, outcomes, tokens=rows, seconds=loop.time() - started)

    def release(self, session: SessionId) -> None:
        """Forget a session."""
        self._sessions.pop(session, None)

    async def close(self) -> None:
        """Forget all sessions."""
        self._sessions.clear()

    # ------------------------------------------------------------ inside

    def _replay(self, prompt: tuple[int, ...]) -> _Replay:
        if self._traces is None:
            start = len(prompt)
            return _Replay(lambda position: any_token(start + position))
        # A session that goes on comes with what was settled before, given tokens among it.
        known = [trace for trace in self._traces.traces.values() if prompt[: len(trace.prompt)] == trace.prompt]
        if not known:
            raise InvalidInput(
                "open.prompt",
                "is not in the trace that this verifier replays",
                "ask what was recorded, or serve a real engine",
            )
        trace = max(known, key=lambda trace: _agreeing((*trace.prompt, *trace.tokens), prompt))
        return _Replay(_then_end(trace.tokens, self._traces), len(prompt) - len(trace.prompt))


def make_trace_engine(settings: ServerConfig) -> TraceEngine:
    """The engine that a verifier's settings ask for.

    Args:
        settings: `model` is a trace file, or `any`.

    Raises:
        InvalidInput: The trace file or the step time is wrong.
    """
    return TraceEngine(
        None if settings.model == ANY_PROMPT else TraceFile.load(Path(settings.model)),
        StepTime.parse(settings.verify_ms),
        max_sessions=settings.max_sessions,
        max_block=settings.max_block,
        context=settings.context,
    )


def _agreeing(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _then_end(tokens: Sequence[int], traces: TraceFile) -> Callable[[int], int]:
    """The recorded tokens, and behind them the end of the text over and over."""
    end = (*traces.header.eos_token_ids, 0)[0]
    length = len(tokens)
    return lambda position: tokens[position] if position < length else end


def _info(
    traces: TraceFile | None, time: StepTime, max_sessions: int, max_block: int, context: int | None
) -> EngineInfo:
    header = None if traces is None else traces.header
    most = max_sessions * (max_block + 1)
    longest = ANY_CONTEXT if header is None else header.context_length
    return EngineInfo(
        engine="trace",
        model="any prompt (replayed)" if header is None else f"{header.target} (replayed)",
        model_fingerprint=ANY_FINGERPRINT if header is None else header.target_fingerprint,
        tokenizer_fingerprint=ANY_FINGERPRINT if header is None else header.tokenizer_fingerprint,
        vocab_size=ANY_VOCAB if header is None else header.vocab_size,
        context_length=longest if context is None else min(context, longest),
        max_block=max_block,
        max_sessions=max_sessions,
        eos_token_ids=() if header is None else header.eos_token_ids,
        max_rows=most,
        room=max(2, int(min(most, time.roofline.room))),
    )
