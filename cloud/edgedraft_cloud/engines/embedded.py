"""The embedded engine: the compiled target in this process, with no torch; for a laptop, a small server and tests.

One thread owns model and KV cache. Each round of its loop reads a piece of the prompts that wait, then takes every work
that was submitted meanwhile as one batch. A round begins once the outcomes of the one before were taken in, so that its
sessions can be together in the next. With nothing to do the thread sleeps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

import numpy as np

from edgedraft.errors import InvalidInput, Overloaded, VerifierUnavailable
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed, KvCache, SequenceId
from edgedraft.runtime.manifest import Manifest, ModelConfig
from edgedraft_cloud.engines.base import Engine, EngineInfo, Outcome, Sampling, SessionId, Step, Work
from edgedraft_cloud.engines.names import Names, session_of
from edgedraft_cloud.engines.prompts import piece
from edgedraft_cloud.verification import verify

PREFILL_CHUNK: Final = 256
"""Prompt tokens that one round reads at most."""
SHARED_CHUNK: Final = 32
"""The same where other sessions wait for their verdicts: a long prompt must not hold them up."""
RETRY_AFTER: Final = 2.0


@dataclass(slots=True)
class _Slot:
    """A session in the thread. The last token of its log is not in the cache yet: the next work begins with it."""

    sequence: SequenceId
    log: list[int]
    unread: list[int]
    sampling: Sampling
    draws: np.random.Generator = field(repr=False)


@dataclass(slots=True)
class _Inbox:
    """What the event loop has handed to the thread, sessions by their names inside."""

    opened: dict[str, tuple[list[int], Sampling]] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    batch: int = 0
    released: list[str] = field(default_factory=list)
    closing: bool = False

    def __bool__(self) -> bool:
        return bool(self.opened or self.works or self.released or self.closing)


class EmbeddedEngine(Engine):
    """Runs a compiled target.

    Args:
        folder: Its artifact folder.
        threads: Threads for the arithmetic; None picks a default.
        max_sessions: Sessions that may be open at once.
        kv_tokens: Tokens that the KV cache holds, all sessions together.
        max_block: Draft tokens in one work.

    Raises:
        ModelError: The folder cannot be used.
        InvalidInput: A limit is below one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: int | None = None,
        max_sessions: int = 16,
        kv_tokens: int = 16_384,
        max_block: int = 16,
    ) -> None:
        for name, value in (("max_sessions", max_sessions), ("kv_tokens", kv_tokens), ("max_block", max_block)):
            if value < 1:
                raise InvalidInput(name, f"is {value}", "use at least 1")
        manifest = Manifest.load(folder)
        self._folder = folder
        self._threads = threads
        self._kv_tokens = kv_tokens
        config = ModelConfig.load(folder)
        self._info = EngineInfo(
            engine="embedded",
            model=manifest.model,
            model_fingerprint=manifest.model_fingerprint,
            tokenizer_fingerprint=manifest.tokenizer_fingerprint,
            vocab_size=config.vocab_size,
            context_length=min(config.context_window_size, kv_tokens),
            max_block=max_block,
            max_sessions=max_sessions,
            eos_token_ids=config.eos_token_ids,
        )
        self._condition = threading.Condition()
        self._inbox = _Inbox()
        self._answered = True
        self._thread: threading.Thread | None = None
        self._steps: asyncio.Queue[Step | VerifierUnavailable] = asyncio.Queue()
        self._batch = 0
        self._names = Names()
        self._reserved: dict[SessionId, int] = {}

    @property
    def info(self) -> EngineInfo:
        """Fixed facts."""
        return self._info

    async def start(self) -> None:
        """Load the target and start the thread.

        Raises:
            ModelError: The target cannot be loaded.
            InvalidInput: Memory does not hold so many `kv_tokens`.
        """
        loop = asyncio.get_running_loop()
        self._inbox, self._steps, self._answered = _Inbox(), asyncio.Queue(), True
        self._names.clear()
        self._reserved.clear()
        model, cache = await asyncio.to_thread(self._load)
        self._thread = threading.Thread(
            target=self._run, args=(model, cache, loop), name="edgedraft-engine", daemon=True
        )
        self._thread.start()

    async def open(self, session: SessionId, prompt: Sequence[int], sampling: Sampling, salt: str) -> None:
        """Take in a session; reserves room for its prompt and one block. No prefix is shared here, under any salt."""
        need = len(prompt) + self._info.max_block + 1
        if sum(self._reserved.values()) + need > self._kv_tokens:
            raise Overloaded(f"the KV cache of {self._kv_tokens} tokens has no room for {need} more", RETRY_AFTER)
        if len(self._reserved) >= self._info.max_sessions:
            raise Overloaded(f"all {self._info.max_sessions} sessions are taken", RETRY_AFTER)
        self._reserved[session] = need
        with self._condition:
            self._inbox.opened[self._names.add(session)] = (list(prompt), sampling)
            self._condition.notify()

    def submit(self, works: Sequence[Work]) -> int:
        """Hand over works."""
        self._batch += 1
        named = {name: work for work in works if (name := self._names.of(work.session)) is not None}
        with self._condition:
            self._inbox.works.update(named)
            self._inbox.batch = self._batch
            self._condition.notify()
        return self._batch

    async def step(self) -> Step:
        """Wait for the next step; asking says that what the last one brought is dealt with."""
        if self._steps.empty():
            with self._condition:
                self._answered = True
                self._condition.notify()
        result = await self._steps.get()
        if isinstance(result, VerifierUnavailable):
            self._steps.put_nowait(result)  # whoever asks again learns the same
            raise result
        outcomes = []
        for outcome in result.outcomes:
            session = self._names.session(outcome.session)
            if session is not None:
                self._reserved[session] += len(outcome.tokens)
                outcomes.append(replace(outcome, session=session))
        return replace(result, outcomes=tuple(outcomes))

    def release(self, session: SessionId) -> None:
        """Forget a session."""
        name = self._names.drop(session)
        if name is None:
            return
        del self._reserved[session]
        with self._condition:
            self._inbox.opened.pop(name, None)
            self._inbox.works.pop(name, None)
            self._inbox.released.append(name)
            self._condition.notify()

    async def close(self) -> None:
        """Stop the thread, after the step that is under way."""
        if self._thread is not None:
            with self._condition:
                self._inbox.closing = True
                self._condition.notify()
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    # ------------------------------------------------------------ in the thread

    def _load(self) -> tuple[CompiledModel, KvCache]:
        model = CompiledModel.load(self._folder, threads=self._threads)
        try:
            return model, model.new_cache(self._kv_tokens, sequences=self._info.max_sessions)
        except MemoryError as error:
            raise InvalidInput("kv_tokens", f"is {self._kv_tokens}, more than memory holds", "use fewer") from error

    def _run(self, model: CompiledModel, cache: KvCache, loop: asyncio.AbstractEventLoop) -> None:
        steps = self._steps

        def report(result: Step | VerifierUnavailable) -> None:
            with self._condition:
                self._answered = False
            loop.call_soon_threadsafe(steps.put_nowait, result)

        worker = _Worker(model, cache)
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(
                        lambda: self._inbox.closing or (self._answered and (bool(self._inbox) or worker.busy))
                    )
                    inbox, self._inbox = self._inbox, _Inbox()
                if inbox.closing:
                    return
                step = worker.round(inbox)
                if step is not None:
                    report(step)
        except Exception as error:  # noqa: BLE001  whatever it was, the engine is gone and everybody must learn of it
            death = VerifierUnavailable("the verifier's engine died; try again in a moment")
            death.__cause__ = error
            report(death)


class _Worker:
    """The thread's own state."""

    def __init__(self, model: CompiledModel, cache: KvCache) -> None:
        self._model = model
        self._cache = cache
        self._slots: dict[str, _Slot] = {}
        self._works: dict[str, Work] = {}
        self._batch = 0
        self._evicted = 0

    @property
    def busy(self) -> bool:
        """Whether there is something to do without new orders."""
        return bool(self._works)

    def round(self, inbox: _Inbox) -> Step | None:
        """Take in orders, read a piece of the waiting prompts, and step all sessions that have a work and can."""
        self._come_and_go(inbox)
        for name, work in inbox.works.items():
            slot = self._slots.pop(name, None)
            if slot is not None:
                self._slots[name] = slot  # the ones at the front are those that were idle longest
                self._works[name] = work
        fresh, self._batch = inbox.batch > self._batch, max(self._batch, inbox.batch)
        started = time.monotonic()
        self._evicted = 0
        read = self._read_prompts()
        rows, outcomes = self._step()
        if self._works and not (read or outcomes):
            self._make_way()
        if not (fresh or read or outcomes):
            return None
        return Step(
            self._batch,
            tuple(outcomes),
            tokens=read + rows,
            prompt_tokens=read,
            seconds=time.monotonic() - started,
            kv_used=1 - self._cache.free_tokens / self._cache.capacity,
            evicted=self._evicted,
        )

    def _come_and_go(self, inbox: _Inbox) -> None:
        """Release sessions and open others; one that does both at once keeps the KV of what it begins with still."""
        back = {session_of(name) for name in inbox.opened}
        kept: dict[SessionId, _Slot] = {}
        for name in inbox.released:
            self._works.pop(name, None)
            slot = self._slots.pop(name, None)
            if slot is None:
                continue
            if session_of(name) in back:
                kept[session_of(name)] = slot
            else:
                self._cache.free(slot.sequence)
        for name, (prompt, sampling) in inbox.opened.items():
            slot = kept.get(session_of(name))
            sequence = self._cache.new_sequence() if slot is None else slot.sequence
            if slot is not None:
                pairs = zip(slot.log[: self._cache.length(sequence)], prompt[:-1], strict=False)
                self._cache.truncate(sequence, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
            unread = prompt[self._cache.length(sequence) : -1]
            self._slots[name] = _Slot(sequence, prompt, unread, sampling, np.random.default_rng(sampling.seed))
            self._works[name] = Work(name)

    def _read_prompts(self) -> int:
        unread = {name: len(self._slots[name].unread) for name in self._works if self._slots[name].unread}
        room = SHARED_CHUNK if len(unread) < len(self._works) else PREFILL_CHUNK
        most = piece(unread.values(), room)
        feeds = []
        # Rows of works that can go are not for prompts, or those who wait would take the room from each other for ever.
        ready = (work for name, work in self._works.items() if not self._slots[name].unread)
        free = self._cache.free_tokens - sum(len(work.tokens) + 1 for work in ready)
        for name in sorted(unread, key=lambda name: unread[name]):
            slot = self._slots[name]
            want = min(room, most, len(slot.unread))
            free += self._evict_idle(want - free)
            count = max(0, min(want, free))
            chunk, slot.unread = slot.unread[:count], slot.unread[count:]
            if chunk:
                feeds.append(Feed(slot.sequence, chunk))
                room -= count
                free -= count
            if not slot.unread:
                free -= len(self._works[name].tokens) + 1
        if feeds:
            self._model.forward(self._cache, feeds)
        return sum(len(feed.tokens) for feed in feeds)

    def _step(self) -> tuple[int, list[Outcome]]:
        batch, outcomes = self._admit()
        if not batch:
            return 0, outcomes
        feeds = [Feed(slot.sequence, [slot.log[-1], *tokens]) for _, slot, _, tokens in batch]
        logits = self._model.forward(self._cache, feeds, logits="all")
        row = 0
        for name, slot, work, tokens in batch:
            rows = logits[row : row + len(tokens) + 1]
            row += len(tokens) + 1
            settled, accepted = verify(rows, tokens, work.given, slot.sampling, slot.draws)
            self._cache.truncate(slot.sequence, self._cache.length(slot.sequence) - (len(tokens) - accepted))
            slot.log.extend(settled)
            del self._works[name]
            outcomes.append(Outcome(name, tuple(settled), accepted, len(tokens)))
        return row, outcomes

    def _admit(self) -> tuple[list[tuple[str, _Slot, Work, tuple[int, ...]]], list[Outcome]]:
        """The works that can go now; where the cache runs out, idle sessions make room, then drafts are left out."""
        batch: list[tuple[str, _Slot, Work, tuple[int, ...]]] = []
        failed: list[Outcome] = []
        free = self._cache.free_tokens
        for name, work in list(self._works.items()):
            slot = self._slots[name]
            if slot.unread:
                continue
            free += self._evict_idle(len(work.tokens) + 1 - free)
            tokens = work.tokens if len(work.tokens) < free else ()
            if free < 1:
                if len(slot.log) > self._cache.capacity:
                    del self._works[name], self._slots[name]
                    free += self._cache.length(slot.sequence)
                    self._cache.free(slot.sequence)
                    error = Overloaded("the verifier's KV cache is full", RETRY_AFTER)
                    failed.append(Outcome(name, (), 0, error=error))
                continue
            free -= len(tokens) + 1
            batch.append((name, slot, work, tokens))
        return batch, failed

    def _evict_idle(self, wanted: int) -> int:
        """Give up KV of sessions without a work until so many tokens are free; how many that made."""
        freed = 0
        for name, slot in self._slots.items():
            if freed >= wanted:
                break
            if name not in self._works:
                freed += self._evict(slot)
        return freed

    def _make_way(self) -> None:
        """All that could go needs room that others hold who cannot go either: the last of them gives up its own."""
        for name in reversed(self._works):
            if self._evict(self._slots[name]):
                return

    def _evict(self, slot: _Slot) -> int:
        """Give up a session's KV, to be read again with its next work; how many tokens that frees."""
        length = self._cache.length(slot.sequence)
        if length:
            self._cache.truncate(slot.sequence, 0)
            slot.unread = slot.log[:-1]
            self._evicted += 1
        return length
