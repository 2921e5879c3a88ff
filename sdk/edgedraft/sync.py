"""A thin synchronous face: the same client, driven from a background thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from edgedraft.call import PublicView
from edgedraft.client import Client
from edgedraft.drafters.base import Drafter
from edgedraft.errors import InvalidInput
from edgedraft.events import Event, Finished
from edgedraft.generation import Generation
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import GuardLimits
from edgedraft.privacy.ledger import Ledger
from edgedraft.prompt import Mode, PromptLike
from edgedraft.sampling import SamplingParams

T = TypeVar("T")


class SyncClient:
    """`Client` for code without asyncio; takes the same arguments.

    ```python
    with SyncClient(drafter, verifier="verifier.example:7443", identity="~/.edgedraft/id") as client:
        print(client.complete("Why is the sky blue?").text)
    ```
    """

    def __init__(self, drafter: Drafter | str | Path, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="edgedraft-client", daemon=True)
        self._thread.start()
        self._client: Client | None = None
        try:
            self._client = self._run(self._make(drafter, settings))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stream(
        self,
        prompt: PromptLike,
        sampling: SamplingParams | None = None,
        *,
        mode: Mode | str | None = None,
        rule: DecisionRule | None = None,
        limits: GuardLimits | None = None,
        background: bool = False,
    ) -> Iterator[Event]:
        """Answer a prompt, event by event; leaving the iteration early cancels it.

        Raises:
            EdgedraftError: As `Client.generate` and the generation do.
        """
        generation = self._run(
            self._begin(prompt, sampling, mode=mode, rule=rule, limits=limits, background=background)
        )
        events = generation.__aiter__()
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            if not self._loop.is_closed():  # closing the client has ended it already
                self._run(generation.aclose())

    def complete(
        self,
        prompt: PromptLike,
        sampling: SamplingParams | None = None,
        *,
        mode: Mode | str | None = None,
        rule: DecisionRule | None = None,
        limits: GuardLimits | None = None,
        background: bool = False,
    ) -> Finished:
        """Answer a prompt; the last event, with text and report.

        Raises:
            EdgedraftError: As `Client.generate` and the generation do.
        """
        *_, last = self.stream(prompt, sampling, mode=mode, rule=rule, limits=limits, background=background)
        assert isinstance(last, Finished)
        return last

    def public_view(self, prompt: PromptLike, mode: Mode | str | None = None) -> PublicView:
        """Exactly what the cloud would see of a prompt; as `Client.public_view`."""
        assert self._client is not None
        return self._client.public_view(prompt, mode)

    @property
    def ledger(self) -> Ledger:
        """Every frame that left or came, of all generations; as `Client.ledger`."""
        assert self._client is not None
        return self._client.ledger

    def close(self) -> None:
        """Cancel what is running and end the background thread; may be called again."""
        if self._loop.is_closed():
            return
        if self._client is not None:
            self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise InvalidInput("client", "is closed", "make another")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @staticmethod
    async def _make(drafter: Drafter | str | Path, settings: dict[str, Any]) -> Client:
        return Client(drafter, **settings)

    async def _begin(self, prompt: PromptLike, sampling: SamplingParams | None, **settings: Any) -> Generation:
        assert self._client is not None
        generation = self._client.generate(prompt, sampling, **settings)
        generation.start()
        return generation


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)
