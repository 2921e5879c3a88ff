"""Runs a drafter in a thread of its own, so that the event loop never waits for a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import TypeVar

from edgedraft.drafters.base import Candidates, Contrast, Drafter, DrafterInfo, Feed
from edgedraft.errors import DrafterError, EdgedraftError

T = TypeVar("T")


class DraftWorker:
    """Owns a drafter and the one thread that may call it.

    Args:
        drafter: The drafter; closed with the worker.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="edgedraft-drafter")

    @property
    def info(self) -> DrafterInfo:
        """Facts about the drafter."""
        return self._drafter.info

    async def context(self) -> DraftContext:
        """Start a sequence.

        Raises:
            DrafterError: No more sequences fit.
        """
        return DraftContext(self, self._drafter, await self.call(lambda: _View(self._drafter)))

    async def two_views(self) -> TwoViews:
        """Start two sequences, for the same text with the private prompt and without it.

        Raises:
            DrafterError: No more sequences fit.
        """
        private = await self.call(lambda: _View(self._drafter))
        try:
            return TwoViews(self, self._drafter, private, await self.call(lambda: _View(self._drafter)))
        except DrafterError:
            await self.call(private.free)
            raise

    async def call(self, function: Callable[[], T]) -> T:
        """Run something in the drafter's thread.

        Raises:
            EdgedraftError: What the drafter raised; anything else it raised becomes a DrafterError.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        except EdgedraftError:
            raise
        except Exception as error:
            raise DrafterError(f"the drafter failed: {error}") from error

    async def close(self) -> None:
        """Close the drafter and end the thread; waits for a running step."""
        await self.call(self._drafter.close)
        self._executor.shutdown()


class DraftContext:
    """One generation's sequence in the drafter.

    It is told the whole token list each time and works out by itself what to cut and what to feed, so that a rollback
    needs no message of its own and cannot be missed.
    """

    def __init__(self, worker: DraftWorker, drafter: Drafter, view: _View) -> None:
        self._worker = worker
        self._drafter = drafter
        self._view = view

    async def next(self, tokens: list[int], k: int = 1) -> Candidates:
        """What comes after `tokens`.

        Args:
            tokens: The whole sequence so far, prompt included; at least one. The list is kept and must not change.
            k: How many candidates.

        Raises:
            DrafterError: The drafter failed.
        """
        return await self._worker.call(lambda: self._next(tokens, k))

    async def close(self) -> None:
        """Give the sequence back."""
        await self._worker.call(self._view.free)

    def _next(self, tokens: list[int], k: int) -> Candidates:
        (candidates,) = self._drafter.step([self._view.feed(tokens)], k)
        self._view.held = tokens
        return candidates


class TwoViews:
    """One generation's two sequences in the drafter; told whole token lists, as `DraftContext` is."""

    def __init__(self, worker: DraftWorker, drafter: Drafter, private: _View, public: _View) -> None:
        self._worker = worker
        self._drafter = drafter
        self._private = private
        self._public = public

    async def contrast(self, private: list[int], public: list[int], k: int) -> Contrast:
        """Compare what comes next under each view.

        Args:
            private: All that the device has, prompt included; the list is kept and must not change.
            public: The same as the cloud sees it.
            k: How many candidates of the private view.

        Raises:
            DrafterError: The drafter failed.
        """
        return await self._worker.call(lambda: self._contrast(private, public, k))

    async def close(self) -> None:
        """Give the sequences back."""
        await self._worker.call(self._private.free)
        await self._worker.call(self._public.free)

    def _contrast(self, private: list[int], public: list[int], k: int) -> Contrast:
        contrast = self._drafter.contrast(self._private.feed(private), self._public.feed(public), k)
        self._private.held, self._public.held = private, public
        return contrast


class _View:
    """A sequence of the drafter and what it holds; used in the drafter's thread only."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._sequence = drafter.new_sequence()
        self.held: list[int] = []

    def feed(self, tokens: list[int]) -> Feed:
        """Cut back what is not the beginning of `tokens`; the feed that brings the rest."""
        # The last token is always fed again: only a fed token yields candidates.
        keep = min(common_prefix(self.held, tokens), len(tokens) - 1)
        if keep < len(self.held):
            self._drafter.truncate(self._sequence, keep)
            self.held = tokens[:keep]
        return Feed(self._sequence, tokens[keep:])

    def free(self) -> None:
        self._drafter.free(self._sequence)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading items two sequences share."""
    length = min(len(left), len(right))
    # Nearly always one is the beginning of the other, and slices compare at C speed.
    if left[:length] == right[:length]:
        return length
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
