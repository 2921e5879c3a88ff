"""One generation as the app sees it: an async iterator of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from edgedraft.errors import Cancelled, EdgedraftError
from edgedraft.events import Drafted, Event, Finished, FinishReason, Revised, Verified
from edgedraft.privacy.ledger import Page
from edgedraft.report import Report

Runner = Callable[["Generation"], Coroutine[Any, Any, None]]
"""Drives a generation: calls `push` for every event, the last one `Finished`."""


class Generation:
    """Iterate over it for events, or `await` it for the whole text.

    ```python
    async for event in client.generate("Why is the sky blue?"):
        ...
    ```

    It starts with the first look at it. Leave it early with `cancel` (or use it as an async context manager, which
    cancels on exit). It is cancelled too where the task that waits for it is, as by `asyncio.timeout`.

    Attributes:
        text: The verified text so far; final once it has finished.
        draft_text: Provisional text that follows it.
        report: Usage and timing once it has finished, else None.
        finish_reason: Why it ended, or None.
        ledger: What left this device for it, and what came back.
    """

    def __init__(self, runner: Runner, ledger: Page) -> None:
        self._runner = runner
        self.ledger = ledger
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._on_cancel: Callable[[], None] | None = None
        self._drafts: list[tuple[int, str]] = []
        self.text = ""
        self.report: Report | None = None
        self.finish_reason: FinishReason | None = None

    @property
    def draft_text(self) -> str:
        """Provisional text that follows `text`."""
        return "".join(text for _, text in self._drafts)

    def start(self) -> asyncio.Task[None]:
        """Begin now rather than at the first look; returns the task that drives it."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return self._task

    def cancel(self) -> None:
        """End it soon; the iterator then yields `Finished` with reason `cancelled`."""
        self._cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._iterate()

    def __await__(self) -> Any:
        return self._whole().__await__()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel it and wait until everything it holds is given back; errors were or will be raised to the iterator."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    # ------------------------------------------------------------ for the runner

    def push(self, event: Event) -> None:
        """Take an event from the runner."""
        match event:
            case Drafted(position=position, text=text):
                self._drafts.append((position, text))
            case Verified(text=text, position=position, tokens=tokens):
                self.text += text
                end = position + len(tokens)
                self._drafts = [draft for draft in self._drafts if draft[0] >= end]
            case Revised(position=cut):
                self._drafts = [draft for draft in self._drafts if draft[0] < cut]
            case Finished(reason=reason, report=report):
                self._drafts = []
                self.finish_reason = reason
                self.report = report
        self._events.put_nowait(event)

    def bind_cancel(self, on_cancel: Callable[[], None]) -> None:
        """Say how to cancel; called at once if `cancel` came first."""
        self._on_cancel = on_cancel
        if self._cancelled:
            on_cancel()

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        try:
            await self._runner(self)
        finally:
            self._events.put_nowait(None)

    async def _iterate(self) -> AsyncIterator[Event]:
        task = self.start()
        while (event := await self._next()) is not None:
            yield event
            if isinstance(event, Finished):
                return
        # Leave the mark for a second iterator, then let the runner's error out.
        self._events.put_nowait(None)
        await asyncio.wait([task])
        if task.cancelled():  # not to be taken for a cancellation of the task that waits here
            raise Cancelled("the client was closed before the generation had finished")
        task.result()

    async def _next(self) -> Event | None:
        try:
            return await self._events.get()
        except asyncio.CancelledError:
            self.cancel()  # who waited is gone; a session that nobody reads must not go on
            raise

    async def _whole(self) -> str:
        async for _ in self:
            pass
        if self.finish_reason is None:
            raise EdgedraftError("the generation ended without a result")
        return self.text
