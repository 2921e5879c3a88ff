"""Tokens to text as they come, never half a character, and back again when tokens are taken back."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Decodes a growing and sometimes shrinking list of tokens.

    The text of the first n tokens is the complete characters among their bytes; an incomplete last character waits for
    its remaining bytes. Bytes that are no UTF-8 become U+FFFD.

    Args:
        token_bytes: The bytes of a token.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tokens: list[int] = []
        self._pieces: list[str] = []
        self._pending: list[bytes] = [b""]

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""
        return self._tokens

    def push(self, token: int) -> str:
        """Append a token; the text that it completes, perhaps none."""
        piece = self._decoder.decode(self._token_bytes(token))
        self._tokens.append(token)
        self._pieces.append(piece)
        self._pending.append(self._decoder.getstate()[0])
        return piece

    def truncate(self, count: int) -> None:
        """Go back to the first `count` tokens."""
        if count < len(self._tokens):
            del self._tokens[count:], self._pieces[count:], self._pending[count + 1 :]
            self._decoder.setstate((self._pending[count], 0))

    def text(self, start: int = 0, end: int | None = None) -> str:
        """The text that tokens `start` to `end` completed."""
        return "".join(self._pieces[start:end])

    def finish(self) -> str:
        """The list ends here: U+FFFD for what is left of an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)
