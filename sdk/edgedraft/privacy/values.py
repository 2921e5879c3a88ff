"""Secret values, and where they stand in a text, however cased, spaced, punctuated or dressed up in Unicode."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

_PREFIX: Final = 4
"""Values are looked up by so many first characters of their form."""
_GAP: Final = 3
"""Between two characters of a value stand at most so many others."""
_FREE_STANDING: Final = 6
"""A shorter form is found as whole words only, a longer one inside words too."""


@dataclass(frozen=True, slots=True)
class Secret:
    """What never leaves, nor a piece of it.

    Attributes:
        text: Its value; it shows in no representation of this object.
        kind: What it is, e.g. `EMAIL`.
    """

    text: str = field(repr=False)
    kind: str


class Occurrence(NamedTuple):
    """A value in a text.

    Attributes:
        start: Its first character.
        end: The character behind its last.
        form: The value's form.
    """

    start: int
    end: int
    form: str


def form_of(value: str) -> str:
    """What is the same in all spellings of a value: its letters and digits, without case, accents and width."""
    return "".join(form for char in value for form in _forms(char))


class ValueFinder:
    """Looks for values.

    Args:
        values: What to look for; each has a letter or a digit.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self._lengths: dict[str, list[int]] = {}  # by prefix: lengths of forms, longest first
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """Look for one more."""
        form = form_of(value)
        self._known.add(form)
        lengths = self._lengths.setdefault(form[:_PREFIX], [])
        if len(form) not in lengths:
            lengths.append(len(form))
            lengths.sort(reverse=True)

    def find(self, text: str) -> Iterator[Occurrence]:
        """Where they are: in order, no two overlap, of those that start together the longest."""
        places = [(form, place) for place, char in enumerate(text) for form in _forms(char)]
        forms = "".join(form for form, _ in places)
        position = 0
        while position < len(forms):
            occurrence = self._at(text, forms, places, position)
            if occurrence:
                yield occurrence
                position += len(occurrence.form)
            else:
                position += 1

    def _at(self, text: str, forms: str, places: list[tuple[str, int]], position: int) -> Occurrence | None:
        for width in range(_PREFIX, 0, -1):
            for length in self._lengths.get(forms[position : position + width], ()):
                form = forms[position : position + length]
                if form in self._known:
                    indices = [place for _, place in places[position : position + length]]
                    start, end = indices[0], indices[-1] + 1
                    spread = max((after - before for before, after in pairwise(indices)), default=0)
                    if spread <= _GAP + 1 and (length >= _FREE_STANDING or _stands_alone(text, start, end)):
                        return Occurrence(start, end, form)
        return None


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether a span begins and ends where words do; scripts without spaces between words have no such places."""
    before = not start or not text[start - 1].isalnum() or _without_spaces(text[start])
    after = end == len(text) or not text[end].isalnum() or _without_spaces(text[end - 1])
    return before and after


def _without_spaces(char: str) -> bool:
    return "\u0e00" <= char <= "\u0eff" or "\u2e80" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff"


def _forms(char: str) -> str:
    if char.isascii():
        return char.lower() if char.isalnum() else ""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", char).casefold()))
