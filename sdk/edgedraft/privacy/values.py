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
"""A shorter form is found as whole words only, a longer one inside words too, unless it may be part of any word."""
_BETWEEN_WORDS: Final = " \t\n.,'’-"
"""A value of letters and these is words, of which other words may be made: `andrew` is in `Shorten and rewrite`."""
_UNSEEN: Final = ("M", "Cf")
"""Categories of what stands in words without being a letter: accents, and marks such as joiners."""
_SCRIPTS_WITHOUT_SPACES: Final = (
    *(("\u0e00", "\u0eff"), ("\u2e80", "\u9fff"), ("\uf900", "\ufaff")),
    ("\uac00", "\ud7a3"),  # Korean sets spaces, but particles follow a name without one
)


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

    What has digits or symbols is found however it is spaced, and inside words too. Words are found as words: with
    spaces only where the value has them, and a single one neither inside other words nor across them.

    Args:
        values: What to look for; each has a letter or a digit.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._known: dict[str, set[int] | None] = {}  # form: where words of it start behind the first; None: anywhere
        self._lengths: dict[str, list[int]] = {}  # by prefix: lengths of forms, longest first
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """Look for one more."""
        form = form_of(value)
        starts = _word_starts(value)
        before = self._known.get(form, set())
        self._known[form] = None if before is None or starts is None else before | starts
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
                    start, end = indices[0], behind_marks(text, indices[-1] + 1)
                    spread = max((after - before for before, after in pairwise(indices)), default=0)
                    if spread <= _GAP + 1 and self._is_meant(text, form, indices, end):
                        return Occurrence(start, end, form)
        return None

    def _is_meant(self, text: str, form: str, indices: list[int], end: int) -> bool:
        """Whether what reads like a value is one, and not by chance in other words."""
        start, starts = indices[0], self._known[form]
        if starts is not None:
            gaps = (text[before:after] for before, after in pairwise(indices))
            if any(any(map(str.isspace, gap)) and count not in starts for count, gap in enumerate(gaps, 1)):
                return False
        if len(form) < _FREE_STANDING:
            return stands_alone(text, start, end)
        # Words that are written as one are told from others wherever they stand, as `annaBerg` in code.
        as_one = bool(starts) and not any(map(str.isspace, text[start:end]))
        return starts is None or as_one or _is_word(text, start, end)


def behind_marks(text: str, end: int) -> int:
    """Where a span ends that takes the combining marks with it that belong to its last letter."""
    while end < len(text) and unicodedata.category(text[end])[0] == "M" and not _forms(text[end]):
        end += 1
    return end


def stands_alone(text: str, start: int, end: int) -> bool:
    """Whether a span begins and ends where words do; scripts without spaces between words have no such places."""
    before = not start or not text[start - 1].isalnum() or _without_spaces(text[start])
    after = end == len(text) or not text[end].isalnum() or _without_spaces(text[end - 1])
    return before and after


def _is_word(text: str, start: int, end: int) -> bool:
    """Whether a span of letters is a word, also beside digits, in `camelCase`, and with an `s` behind it."""
    before = not start or not text[start - 1].isalpha() or _parted(text, start)
    behind = text[end : end + 2]
    with_s = behind[:1] == "s" and not behind[1:].isalpha()
    after = with_s or not behind[:1].isalpha() or _parted(text, end)
    return (before or _without_spaces(text[start])) and (after or _without_spaces(text[end - 1]))


def _parted(text: str, place: int) -> bool:
    return text[place - 1].islower() and text[place].isupper()


def _word_starts(value: str) -> set[int] | None:
    """Where in its form the words of a value start, the first left out; None if there is more to it than words."""
    starts: set[int] = set()
    count = 0
    parted = False
    for char in value:
        unseen = unicodedata.category(char).startswith(_UNSEEN)
        if not (char.isalpha() or char in _BETWEEN_WORDS or unseen):
            return None
        forms = _forms(char)
        if forms and count and parted:
            starts.add(count)
        parted = not forms and (parted or not unseen)
        count += len(forms)
    return starts


def _without_spaces(char: str) -> bool:
    return any(first <= char <= last for first, last in _SCRIPTS_WITHOUT_SPACES)


def _forms(char: str) -> str:
    if char.isascii():
        return char.lower() if char.isalnum() else ""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", char).casefold()))
