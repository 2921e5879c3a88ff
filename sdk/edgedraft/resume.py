"""How to stay with a verifier that is lost: when to try again, and when to give up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from edgedraft.errors import Overloaded, VerifierError, VerifierUnavailable

T = TypeVar("T")

BACKOFF: Final = wait_random_exponential(multiplier=0.1, max=5.0)
"""Drawn from ever larger spans, so that many devices do not come back to a restarted verifier at once."""


@dataclass(frozen=True, slots=True)
class Resuming(Generic[T]):
    """Speaks with a verifier until the end, however often it is lost meanwhile.

    An outage lasts from the error that began it until there is progress: a verifier that comes back only to go away
    again does not prolong it.

    Attributes:
        speak: Reaches the verifier within that many seconds (None: in its own time) and returns at the end.
        seconds: How long one outage may last; at 0 the first error is the last.
        curable: Whether time may cure an error.
        progress: Grows with what was achieved.
        on_outage: Called with the error before every wait.
    """

    speak: Callable[[float | None], Awaitable[T]]
    seconds: float
    curable: Callable[[BaseException], bool]
    progress: Callable[[], int]
    on_outage: Callable[[BaseException], None]

    async def run(self) -> T:
        """Speak.

        Raises:
            VerifierError: An error that time does not cure, or the last one of an outage that lasted too long.
        """
        try:
            return await self.speak(None)
        except VerifierError as error:
            lost = error
        while self.curable(lost):
            before = self.progress()
            try:
                return await self._outage(lost, before)
            except VerifierError as error:
                if self.progress() == before:
                    raise
                lost = error
        raise lost

    async def _outage(self, lost: VerifierError, before: int) -> T:
        """Get over one outage; an error after progress ends it too, and may begin the next."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(lambda error: self.curable(error) and self.progress() == before),
            stop=stop_before_delay(self.seconds),
            wait=lambda state: _asked(state) + BACKOFF(state),
            before_sleep=lambda state: self.on_outage(_error(state)),
            reraise=True,
        ):
            with attempt:
                state = attempt.retry_state
                if state.attempt_number == 1:
                    raise lost  # it may say how long to wait
                return await self.speak(max(0.0, self.seconds - (time.monotonic() - state.start_time)))
        raise AssertionError("tenacity neither returned nor raised")


def _error(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    assert error is not None
    return error


def _asked(state: RetryCallState) -> float:
    """Seconds that the verifier asked to wait."""
    error = _error(state)
    asked = error.retry_after if isinstance(error, (VerifierUnavailable, Overloaded)) else None
    return asked or 0.0
