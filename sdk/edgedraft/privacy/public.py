"""What the verifier sees anyway: a public text, asked whether a private string stands in it, word for word.

A string counts as shown only where words start at the same places: `and rewrite` does not show `Andrew`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

BREAK: Final = "|"
"""In marked text: a word starts here."""
_TURN: Final = re.compile(r"(?<=[0-9])(?=[^0-9])|(?<=[^0-9])(?=[0-9])")
_SIZES: Final = (3, 4, 5, 6)
_LONGEST: Final = _SIZES[-1]


def mark(spelled: Sequence[str]) -> str:
    """Words in compact form as one string, with a mark where one starts; digits part from letters too."""
    return BREAK.join(_TURN.sub(BREAK, word) for word in spelled)


def windows(marked: str, size: int) -> list[tuple[str, str]]:
    """All runs of so many characters of a marked string: each without its marks, and with those inside it."""
    places = [place for place, char in enumerate(marked) if char != BREAK]
    compact = marked.replace(BREAK, "")
    return [
        (compact[start : start + size], marked[places[start] : places[start + size - 1] + 1])
        for start in range(len(compact) - size + 1)
    ]


class PublicText:
    """All that was published.

    Its strings are looked up by short pieces first, since most private strings stand in no public text.
    """

    def __init__(self) -> None:
        self._text = BREAK
        self._pieces: set[str] = set()

    def publish(self, marked: str) -> bool:
        """Add a marked text; whether it says anything new."""
        if not marked or self.shows(marked, whole=True):
            return False
        added = f"{BREAK}{marked}{BREAK}"
        self._text += added
        for size in _SIZES:
            self._pieces.update(added[start : start + size] for start in range(len(added) - size + 1))
        return True

    def shows(self, marked: str, *, whole: bool = False) -> bool:
        """Whether a marked string stands in it.

        Args:
            marked: The string.
            whole: Only where it begins and ends as words do.
        """
        asked = f"{BREAK}{marked}{BREAK}" if whole else marked
        if len(asked) < _SIZES[0]:
            return asked in self._text
        if len(asked) <= _LONGEST:
            return asked in self._pieces
        return asked[:_LONGEST] in self._pieces and asked[-_LONGEST:] in self._pieces and asked in self._text
