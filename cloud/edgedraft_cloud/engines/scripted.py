"""A target that follows a script instead of a model: for unit tests of what surrounds it, never for real use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import repeat, takewhile

from edgedraft.errors import Overloaded, VerifierUnavailable
from edgedraft_cloud.engines.base import Engine, EngineInfo, Outcome, Sampling, SessionId, Step, Work

Target = Callable[[tuple[int, ...]], int]
"""From all tokens so far, prompt included, to the one that greedy decoding puts next."""


class ScriptedEngine(Engine):
    """Plays a script, greedily.

    Args:
        target: Says which token comes next.
        info: What to claim to be.

    Attributes:
        steps: The works of each step so far, openings among them.
        starts: How often it was started.
    """

    def __init__(self, target: Target, info: EngineInfo) -> None:
        self._target = target
        self._info = info
        self._logs: dict[SessionId, list[int]] = {}
        self._opened: list[Work] = []
        self._submitted: list[Work] = []
        self._batch = 0
        self._ready = asyncio.Event()
        self._dead = False
        self.steps: list[list[Work]] = []
        self.starts = 0

    @property
    def info(self) -> EngineInfo:
        """What it was told to claim."""
        return self._info

    async def start(self) -> None:
        """Nothing to load."""
        self._dead = False
        self.starts += 1

    async def open(self, session: SessionId, prompt: Sequence[int], sampling: Sampling, salt: str) -> None:
        """Take in a session."""
        if len(self._logs) >= self._info.max_sessions:
            raise Overloaded(f"all {self._info.max_sessions} sessions are taken", 1.0)
        self._logs[session] = list(prompt)
        self._opened.append(Work(session))
        self._ready.set()

    def submit(self, works: Sequence[Work]) -> int:
        """Hand over works."""
        self._submitted.extend(works)
        self._batch += 1
        self._ready.set()
        return self._batch

    async def step(self) -> Step:
        """Play all that was submitted as one step."""
        await self._ready.wait()
        # A step that takes no time at all would leave no turn in which the others could join it.
        await asyncio.sleep(0)
        self._ready.clear()
        if self._dead:
            raise VerifierUnavailable("the scripted engine was told to die")
        works = [*self._opened, *self._submitted]
        self._opened, self._submitted = [], []
        self.steps.append(works)
        outcomes = tuple(self._judge(work) for work in works if work.session in self._logs)
        return Step(self._batch, outcomes, tokens=sum(len(work.tokens) + 1 for work in works))

    def release(self, session: SessionId) -> None:
        """Forget a session."""
        self._logs.pop(session, None)
        self._opened, self._submitted = (
            [work for work in works if work.session != session] for works in (self._opened, self._submitted)
        )

    async def close(self) -> None:
        """Forget all."""
        self._logs.clear()
        self._opened, self._submitted = [], []
        self._ready.clear()

    def die(self) -> None:
        """Let the next step fail as a dead engine does."""
        self._dead = True
        self._ready.set()

    def _judge(self, work: Work) -> Outcome:
        log = self._logs[work.session]
        start = len(log)
        drafts = zip(work.tokens, work.given or repeat(False), strict=False)
        right = sum(1 for _ in takewhile(lambda draft: self._accept(log, *draft), drafts))
        log.append(self._target(tuple(log)))
        return Outcome(work.session, tuple(log[start:]), right, len(work.tokens))

    def _accept(self, log: list[int], token: int, given: bool) -> bool:
        if not given and self._target(tuple(log)) != token:
            return False
        log.append(token)
        return True
