"""What may not leave, as sets of short strings, so that one look-up a character finds all that ends there.

All strings are compact text (`normalise`). A run of a secret is forbidden if and only if each of its windows of
`secret_chars` characters is in the set of them, wherever the run starts and however long it is; so there is no
automaton to carry along, and a state is nothing but the last characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

from edgedraft.errors import InvalidInput
from edgedraft.privacy.dates import date_spellings
from edgedraft.privacy.normalise import LETTERS, START, parts, wordless, words
from edgedraft.privacy.numbers import CONNECTORS, DIGIT_WORDS, number_parts, read
from edgedraft.privacy.public import BREAK, PublicText, mark, windows

_LEAST_REACH, _FARTHEST_REACH = 32, 128
_KEY: Final = 8  # whole strings from this length on are found by their last characters, and stand anywhere
_LETTERS, _DIGITS, _DIGITS_ANYWHERE = 4, 3, 4  # lengths of the least pieces that the budget counts
_DIGITS_ALONE: Final = 4  # a shorter number stands in any text, its digits between others
_DIGITS_WHOLE: Final = 6  # and in a long text any of fewer digits does

_NAME: Final = re.compile(LETTERS)
_MOST_NAMES: Final = 12  # words of a whole name
_SHORTEST_NAME: Final = 3  # letters of a word of it that tells
_PARTICLE: Final = 3  # letters of a `van` at most
_TITLE_WORDS: Final = """
the and for with from this that our your their not all are was were how why what when who where into over under about
after before new old its his her you she they have has had can das mit für eine les une pour avec dans para por het een
voor met
"""
_NEVER_NAMES: Final = frozenset(_TITLE_WORDS.split())
"""Words of which one shows that what is written like a name is a title: `The Merger With Acme`."""
_BUDGET_SHARE: Final = 4  # of a long secret, less than the fourth part may leave in pieces

Share: TypeAlias = tuple[int, int]
"""What a piece tells of a secret: which secret, and the bits of its characters."""


@dataclass(frozen=True)
class GuardLimits:
    """From which size on a piece of private text may not leave.

    Attributes:
        secret_words: Words of a secret in a row. Of a name, no word of three letters or more leaves in any case.
        secret_chars: Letters and digits of a secret in a row; what is shorter may not leave whole. In smaller pieces
            fewer than so many of its characters may leave, or than a fourth if that is more, all sessions together.
        private_words: Words of other private text in a row.

    Raises:
        InvalidInput: A limit is out of its range.
    """

    secret_words: int = 2
    secret_chars: int = 6
    private_words: int = 5

    def __post_init__(self) -> None:
        for field, low in zip(fields(self), (1, 3, 2), strict=True):
            value = getattr(self, field.name)
            if not isinstance(value, int) or not low <= value <= 64:
                raise InvalidInput(f"limits.{field.name}", f"is {value!r}", f"pass a whole number from {low} to 64")


class Patterns:
    """All strings that may not leave, and the pieces of secrets that only a few may.

    Its `repr` tells numbers only.

    Attributes:
        reach: How many characters back a match may start; it only grows. Of what is very long the end is matched.
        have_digits: Whether there are digits in them, so that spelled numbers matter.
        digits_kept: How many digits back the look-up of digits alone reaches; 0 where nothing is looked up so.
        watched: The secrets in compact form, by the numbers that pieces name them by.
    """

    def __init__(self, limits: GuardLimits) -> None:
        self._limits = limits
        self._size = limits.secret_chars
        # What may not leave, in compact form, with the marked forms that the public text does not show.
        self._windows: dict[str, set[str]] = {}
        self._long: dict[str, set[str]] = {}
        self._short: dict[str, set[str]] = {}
        self._pieces: dict[str, tuple[Share, ...]] = {}
        self._piece_marks: dict[str, set[str]] = {}
        self._digits: set[str] = set()
        self._digit_lengths: set[int] = set()
        self._lengths: dict[str, tuple[int, ...]] = {}  # last characters of a long string -> lengths of such
        self._at_starts: tuple[int, ...] = ()  # lengths of what is looked for where a word starts
        self._budgets: list[int] = []  # of each secret: how many of its characters may leave in pieces
        self.watched: list[str] = []
        self._public = PublicText()
        self._public_digits = PublicText()
        self.reach = max(_LEAST_REACH, limits.secret_chars)
        self.have_digits = False
        self.digits_kept = 0

    def __repr__(self) -> str:
        return f"<Patterns: {len(self._budgets)} secrets, {len(self._long)} runs>"

    # ------------------------------------------------------------ what is forbidden

    def publish(self, text: str) -> None:
        """Free what stands in a public text."""
        spelled = words(text)
        as_digits = numerals(parts(text))
        new = [self._public.publish(mark(form)) for form in (spelled, numerals(spelled), as_digits)]
        # Digits alone, whatever stands between them: a number in one text and the next in another are no longer one.
        new.append(self._public_digits.publish("".join(filter(str.isdigit, as_digits))))
        if not any(new):
            return
        for known, whole in (
            (self._windows, False),
            (self._long, False),
            (self._piece_marks, False),
            (self._short, True),
        ):
            for compact, marks in list(known.items()):
                marks -= {each for each in marks if self._public.shows(each, whole=whole)}
                if not marks:
                    del known[compact]
        self._digits = {string for string in self._digits if not self._public_digits.shows(string)}
        self._pieces = {piece: shares for piece, shares in self._pieces.items() if piece in self._piece_marks}

    def is_public(self, line: str) -> bool:
        """Whether all of a line was published as it stands."""
        marked = mark(words(line))
        return not marked or self._public.shows(marked, whole=True)

    def add_secret(self, secret: str, *, is_name: bool | None = None, whole: bool = False) -> bool:
        """Forbid a secret in its usual spellings; False if it has neither letters nor digits.

        Args:
            secret: Its text.
            is_name: Whether it is somebody's name, of which no word may leave; None: if it is written like one.
            whole: Only what says all of it: no numbers of few digits with other words between them, no half dates.
        """
        spelled = words(secret)
        if not spelled:
            return False
        as_digits = numerals(parts(secret))
        for form in {tuple(spelled), tuple(numerals(spelled))}:
            compact, marked = "".join(form), mark(form)
            self._put(self._windows, windows(marked, self._size))
            self._forbid([(compact, marked)] if len(compact) < self._size else [])
            self._forbid(run for run in _runs(form, self._limits.secret_words) if len(run[0]) < self._size)
            self._forbid_spelled(compact)
            if not whole:
                self._watch_pieces(compact, marked)
        if is_name is not False:
            names = ["".join(words(word)) for word in name_words(secret, sure=bool(is_name))]
            self._forbid(zip(names, names, strict=True), as_word=True)
        digits = "".join(filter(str.isdigit, as_digits))
        self.have_digits |= bool(digits)
        alone = len(digits) >= (_DIGITS_WHOLE if whole else _DIGITS_ALONE) and digits == "".join(as_digits)
        for window in {window for window, _ in windows(digits, self._size)} or ({digits} if alone else ()):
            if not self._public_digits.shows(window):
                self._digits.add(window)
                self._digit_lengths.add(len(window))
                self.digits_kept = max(self.digits_kept, len(window))
        self._forbid((spelling, mark([spelling])) for spelling in date_spellings(as_digits, whole=whole))
        return True

    def add_private(self, text: str) -> None:
        """Forbid the runs of words of a private text."""
        spelled = words(text)
        self._forbid(_runs(spelled, self._limits.private_words))
        self._forbid(_runs(numerals(spelled), self._limits.private_words))
        self.have_digits |= any(number_parts(part) is not None for part in parts(text))

    def _forbid_spelled(self, compact: str) -> None:
        """Digits as words, for text that sets them letter by letter, where no word can be told from the next."""
        for window in {window for window, _ in windows(compact, self._size)} or {compact}:
            if any(char.isdigit() for char in window):
                for names in DIGIT_WORDS.values():
                    spelled = [names[int(char)] if char.isdigit() else char for char in window]
                    self._forbid([("".join(spelled), BREAK.join(spelled))])

    def _watch_pieces(self, compact: str, marked: str) -> None:
        secret = len(self._budgets)
        self.watched.append(compact)
        self._budgets.append(min(max(self._size, len(compact) // _BUDGET_SHARE), len(compact)) - 1)
        found: dict[str, int] = {}
        for length in range(_DIGITS, max(min(self._size, _KEY), _DIGITS_ANYWHERE + 1)):
            for start, (piece, shown) in enumerate(windows(marked, length)):
                if (length >= _LETTERS or not piece.isalpha()) and not self._public.shows(shown):
                    found[piece] = found.get(piece, 0) | ((1 << length) - 1) << start
                    self._piece_marks.setdefault(piece, set()).add(shown)
        for piece, bits in found.items():
            self._pieces[piece] = (*self._pieces.get(piece, ()), (secret, bits))
            self._look_at_starts(len(piece))

    def _look_at_starts(self, length: int) -> None:
        if length not in self._at_starts:
            self._at_starts = (*self._at_starts, length)

    def _put(self, known: dict[str, set[str]], strings: Iterable[tuple[str, str]], *, whole: bool = False) -> None:
        """Forbid strings, each with its marked form, unless the public view shows them already."""
        for compact, marked in strings:
            if not self._public.shows(marked, whole=whole):
                known.setdefault(compact, set()).add(marked)

    def _forbid(self, strings: Iterable[tuple[str, str]], *, as_word: bool = False) -> None:
        """Forbid strings, each with its marked form; short ones, or all, are public only where they stand as words."""
        for compact, marked in strings:
            if len(compact) < _KEY:
                self._put(self._short, [(compact, marked)], whole=True)
                self._look_at_starts(len(compact))
                continue
            if len(compact) > _FARTHEST_REACH:
                compact, marked = windows(marked, _FARTHEST_REACH)[-1]
            self._put(self._long, [(compact, f"{BREAK}{marked}{BREAK}" if as_word else marked)])
            self.reach = max(self.reach, len(compact))
            lengths = self._lengths.get(compact[-_KEY:], ())
            if len(compact) not in lengths:
                self._lengths[compact[-_KEY:]] = (*lengths, len(compact))

    # ------------------------------------------------------------ what is found

    def scan(self, text: str, bounds: str, start: int, *, cut: bool = False) -> tuple[bool, set[Share]]:
        """What ends at or after a place.

        Args:
            text: Compact text, at least `reach` characters of any kind before `start`.
            bounds: Its marks.
            start: Where what is new begins.
            cut: The text is cut off, so that its end is not the end of a word.

        Returns:
            Whether something forbidden does, and the pieces of secrets that do. Four characters with a digit count
            anywhere, three with a digit or more letters where a word starts with them.
        """
        # Almost always nothing is found, so all candidates are looked up at once and taken apart only where one is.
        size, length = self._size, len(text)
        ends = range(start + 1, length + 1)
        forbidden = bool(self._windows) and not self._windows.keys().isdisjoint(
            [text[end - size : end] for end in ends]
        )
        if not self._lengths.keys().isdisjoint([text[end - _KEY : end] for end in ends]):
            forbidden = forbidden or any(
                text[end - run : end] in self._long
                for end in ends
                for run in self._lengths.get(text[end - _KEY : end], ())
            )
        shares: set[Share] = set()
        if not self._at_starts:
            return forbidden, shares
        pieces = [text[end - _DIGITS_ANYWHERE : end] for end in ends]
        if not self._pieces.keys().isdisjoint(pieces):
            shares.update(share for piece in pieces if not piece.isalpha() for share in self._pieces.get(piece, ()))
        heads = []
        first = bounds.find(START, start + 1 - _KEY)
        while first >= 0:
            heads += [text[first : first + run] for run in self._at_starts if start < first + run <= length]
            first = bounds.find(START, first + 1)
        if not self._pieces.keys().isdisjoint(heads):
            shares.update(share for head in heads for share in self._pieces.get(head, ()))
        if not self._short.keys().isdisjoint(heads):
            forbidden = forbidden or self._short_word_ends_in(text, bounds, start, cut=cut)
        return forbidden, shares

    def _short_word_ends_in(self, text: str, bounds: str, start: int, *, cut: bool) -> bool:
        for end in range(start + 1, len(text) + 1):
            if bounds[end] == START if end < len(text) else not cut:
                for first in range(end - _KEY + 1, end):
                    if bounds[first] == START and text[first:end] in self._short:
                        return True
        return False

    def digits_end_in(self, digits: str, start: int) -> bool:
        """The same for digits alone, whatever stands between them."""
        ends = range(start + 1, len(digits) + 1)
        return any(digits[max(end - size, 0) : end] in self._digits for size in self._digit_lengths for end in ends)

    def exceeds(self, secret: int, bits: int) -> bool:
        """Whether these are more characters of a secret than may leave in pieces."""
        return bits.bit_count() > self._budgets[secret]


def numerals(spelled: Sequence[str]) -> list[str]:
    """Words with the numbers among them as digits."""
    result: list[str] = []
    group: list[str] = []
    for word in [*spelled, ""]:
        if number_parts(word) is not None or (group and word in CONNECTORS):
            group.append(word)
            continue
        result += render(group)
        group = []
        result.append(word)
    return result[:-1]


def render(group: Sequence[str]) -> list[str]:
    """Consecutive number words and connectors as digits; connectors at the end are words like any other."""
    if not group:
        return []
    end = len(group)
    while end and group[end - 1] in CONNECTORS:
        end -= 1
    parts = [part for word in group[:end] for part in number_parts(word) or ()]
    return [*read(parts), *group[end:]]


def name_words(secret: str, *, sure: bool) -> list[str]:
    """The words of what is a name, or written as one: `Ana` tells of `Ana van Dijk` by itself, `van` does not.

    Args:
        secret: Its text.
        sure: It is a name, however it is written.
    """
    spelled = _NAME.findall(unicodedata.normalize("NFC", secret))
    small = [word for word in spelled if word[0].islower()]
    if not sure:
        is_name = 2 <= len(spelled) <= _MOST_NAMES and not any(map(str.isdigit, secret))
        is_title = not _NEVER_NAMES.isdisjoint(map(str.lower, spelled))
        if not is_name or is_title or spelled[-1][0].islower() or any(len(word) > _PARTICLE for word in small):
            return []
    # Where all is small, particles are not to be told from names.
    told = spelled if len(small) == len(spelled) else [word for word in spelled if not word[0].islower()]
    return [word for word in told if len(word) >= (_SHORTEST_NAME if word[0] != word[0].swapcase() else 2)]


def _runs(spelled: Sequence[str], count: int) -> Iterator[tuple[str, str]]:
    """Runs of so many words, compact and marked; in scripts without spaces two characters count as a word."""
    half = [1 if wordless(word[0]) else 2 for word in spelled]
    end = weight = 0
    for start in range(len(spelled)):
        while end < len(spelled) and weight < 2 * count:
            weight += half[end]
            end += 1
        if weight < 2 * count:
            return
        yield "".join(spelled[start:end]), mark(spelled[start:end])
        weight -= half[start]
