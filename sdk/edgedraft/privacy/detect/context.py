"""Values that are told by the words before them, as in `password: ...`."""

from __future__ import annotations

import re
from collections.abc import Iterator


def behind(words: re.Pattern[str], value: re.Pattern[str], text: str, reach: int) -> Iterator[re.Match[str]]:
    """The first value behind each context word.

    Args:
        words: Finds context words.
        value: Finds a value.
        text: Where to look.
        reach: How many characters behind the word the value starts at most.
    """
    for word in words.finditer(text):
        # A bounded look: what is longer than any value cannot make it slow.
        match = value.search(text, word.end(), word.end() + reach + 128)
        if match and match.start() <= word.end() + reach:
            yield match


def near_before(words: re.Pattern[str], text: str, position: int, reach: int) -> bool:
    """Whether a context word stands at most so many characters before a position."""
    return words.search(text, max(0, position - reach), position) is not None
