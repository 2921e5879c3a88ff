"""The text of a generation: what is verified, what is provisional behind it, and where a stop string cuts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedraft.privacy.restore import Restorer
from edgedraft.text import StopMatcher, StreamDecoder


class Transcript:
    """Turns settled and drafted tokens into text.

    Args:
        token_bytes: The bytes of a token.
        matcher: Looks for stop strings in the verified text.
        restorer: Puts values in place of their placeholders, before stop strings are looked for; None: there are none.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], matcher: StopMatcher, restorer: Restorer | None = None
    ) -> None:
        self._decoder = StreamDecoder(token_bytes)
        self._matcher = matcher
        self._restorer = restorer or Restorer({})
        self._ahead: Restorer | None = None  # has taken the provisional text too
        self._settled = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was completed by verified text."""
        return self._matcher.stopped

    def draft(self, token: int) -> str:
        """Append a provisional token; its text."""
        if self._ahead is None:
            self._ahead = self._restorer.fork()
            self._ahead.push(self._decoder.text(self._settled))
        return self._ahead.push(self._decoder.push(token))

    def revise(self, position: int) -> None:
        """Forget provisional tokens from a position on."""
        if position < len(self._decoder):
            self._decoder.truncate(position)
            self._ahead = None

    def settle(self, tokens: Sequence[int]) -> str:
        """Settle tokens behind those that are settled; the text that can be shown as verified.

        Provisional tokens stay as far as they agree.
        """
        start = self._settled
        for token in tokens:
            if self._decoder.tokens[self._settled : self._settled + 1] != [token]:
                self._decoder.truncate(self._settled)
                self._decoder.push(token)
                self._ahead = None
            self._settled += 1
        return self._matcher.push(self._restorer.push(self._decoder.text(start, self._settled)))

    def finish(self) -> str:
        """End here: what was held back, if it turned out to be no stop string or never became a character."""
        if self.stopped:
            return ""
        self._decoder.truncate(self._settled)
        rest = self._restorer.push(self._decoder.finish()) + self._restorer.finish()
        shown = self._matcher.push(rest)
        return shown if self.stopped else shown + self._matcher.finish()
