"""Reading a text token by token: the last characters of it, as they stand and with its spelled numbers as digits.

A reading is an immutable value, so a branch of the draft costs nothing but the readings on it.
"""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Final, NamedTuple

from edgedraft.privacy.normalise import GAP, INSIDE, START, Piece, split, squeeze, starts_word
from edgedraft.privacy.numbers import CONNECTORS, number_parts
from edgedraft.privacy.patterns import Patterns, Share, render

_LONGEST_GROUP: Final = 24  # number words in a row that are read together
_NUMBERS_LEFT: Final = 64  # characters without a number after which the second view is given up
_LONGEST_KEPT: Final = 32  # bytes that are kept squeezed: tokens come again, texts do not
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class Spelled(NamedTuple):
    """The second view of a text: its numbers as digits, as far as the last word that may still go on.

    Attributes:
        text: The last characters before the group.
        bounds: Their marks.
        group: The number words since, which the next word may still change ("twenty" before "one").
        tail: How the group and the open word read as of now.
        digits: The last digits of `text`, without what stands between them.
        left: For how many more characters this view is kept; without numbers it is the same as the first.
    """

    text: str
    bounds: str
    group: tuple[str, ...]
    tail: str
    digits: str
    left: int

    def __repr__(self) -> str:
        return "<Spelled>"


class Reading(NamedTuple):
    """What was read so far.

    Attributes:
        text: The last compact characters, as far as patterns reach, after spaces at the start of a text.
        bounds: Their marks.
        last: Shape of the last character that counts.
        pending: Bytes of a character that is not complete.
        spelled: The second view, where there were numbers of late.
    """

    text: str
    bounds: str
    last: str
    pending: bytes
    spelled: Spelled | None

    def __repr__(self) -> str:
        return "<Reading>"


NOTHING: Final = Reading("", "", GAP, b"", None)
"""Before a text."""


class Found(NamedTuple):
    """What ends in the piece that was read last.

    Attributes:
        forbidden: Whether something that may not leave does.
        shares: What pieces of secrets tell of them.
    """

    forbidden: bool
    shares: frozenset[Share]


NOT_FOUND: Final = Found(False, frozenset())


def parted(reading: Reading) -> Reading:
    """The same text with the last word ended."""
    return reading if reading.last == GAP else reading._replace(last=GAP)


def interrupted(reading: Reading) -> Reading:
    """The same text with a placeholder behind it, which ends the last word and the last character."""
    return reading._replace(last=GAP, pending=b"")


def is_torn(reading: Reading, data: bytes) -> bool:
    """Whether bytes go on with a character whose beginning is not there."""
    return not reading.pending and bool(data) and 0x80 <= data[0] < 0xC0


def contains(text: str, patterns: Patterns, *, cut: bool) -> bool:
    """Whether something forbidden stands in a text.

    Args:
        text: The text.
        patterns: What to look for.
        cut: It is cut out of a longer text, so that words may go on at both ends; what spelled numbers say there is not
            looked at, for the first of them may be the end of another word.
    """
    if not cut:
        return read(NOTHING, text.encode("utf-8", "replace"), patterns)[1].forbidden
    piece = squeeze(text)
    padding = GAP * patterns.reach
    return patterns.scan(padding + piece.text, padding + piece.bounds, len(padding), cut=True)[0]


def read(reading: Reading, data: bytes, patterns: Patterns) -> tuple[Reading, Found]:
    """Read on.

    Args:
        reading: What was read so far.
        data: The bytes of one token, or of any text.
        patterns: What to look for.

    Returns:
        The text with these bytes, and what ends in them.
    """
    data = reading.pending + data
    piece, pending = _known_piece(data) if len(data) <= _LONGEST_KEPT else _piece(data)
    if not piece.text:
        return reading._replace(pending=pending, last=piece.last or reading.last), NOT_FOUND
    joint = START if piece.first == GAP or starts_word(reading.last, piece.first) else INSIDE
    reach = patterns.reach
    text = reading.text.rjust(reach) + piece.text
    bounds = reading.bounds.rjust(reach) + joint + piece.bounds[1:]
    forbidden, shares = patterns.scan(text, bounds, reach)
    spelled = _spell(reading.spelled, text, bounds, reach) if patterns.have_digits else None
    if spelled is not None:
        spelled, forbidden_too, shares_too = _look(reading.spelled, spelled, patterns)
        forbidden |= forbidden_too
        shares |= shares_too
    found = Found(forbidden, frozenset(shares)) if forbidden or shares else NOT_FOUND
    return Reading(text[-reach:], bounds[-reach:], piece.last, pending, spelled), found


def _piece(data: bytes) -> tuple[Piece, bytes]:
    decoder = _DECODER("replace")
    text = decoder.decode(data)
    return squeeze(text), decoder.getstate()[0]


_known_piece: Final = lru_cache(maxsize=1 << 16)(_piece)


def _spell(before: Spelled | None, text: str, bounds: str, reach: int) -> Spelled | None:
    """The second view of a text whose words from the last one before `reach` on are new or may have changed.

    Its `text` is not cut yet.
    """
    start = bounds.rfind(START, 0, reach)
    spelled = split(text, bounds, start if start >= 0 else reach)
    if before is None:
        numeric = next((index for index, word in enumerate(spelled) if number_parts(word) is not None), None)
        if numeric is None:
            return None
        end = len(text) - sum(map(len, spelled[numeric:]))
        before = Spelled(text[:end][-reach:], bounds[:end][-reach:], (), "", "", _NUMBERS_LEFT)
        spelled = spelled[numeric:]
    text, bounds, group, _, digits, left = before
    text, bounds = text.rjust(reach), bounds.rjust(reach)
    for word in spelled[:-1]:
        belongs = _belongs(word, group)
        if belongs and len(group) < _LONGEST_GROUP:
            group = (*group, word)
            left = _NUMBERS_LEFT
            continue
        for part in (*render(group), *(() if belongs else (word,))):
            text += part
            bounds += _marks(part)
        left -= len(word)
        group = (word,) if belongs else ()
    last = spelled[-1]
    if _belongs(last, group):
        shown = render((*group, last))
    elif left > 0 or group:
        shown = [*render(group), last]
    else:
        return None
    return Spelled(text, bounds + "".join(map(_marks, shown)), group, "".join(shown), digits, left)


def _look(before: Spelled | None, now: Spelled, patterns: Patterns) -> tuple[Spelled, bool, set[Share]]:
    """What ends in the new part of the second view, which is cut to its last characters here."""
    text, bounds, group, tail, digits, left = now
    reach = patterns.reach
    added = text[reach:] + tail
    start = common_start(before.tail, added) if before is not None else 0
    forbidden, shares = patterns.scan(text + tail, bounds, reach + start)
    if patterns.digits_kept and not added.isalpha():
        same = len(digits) + len(_digits_of(added[:start]))
        forbidden |= patterns.digits_end_in(digits + _digits_of(added), same)
        digits = (digits + _digits_of(text[reach:]))[-patterns.digits_kept :]
    end = len(text)
    return Spelled(text[-reach:], bounds[end - reach : end], group, tail, digits, left), forbidden, shares


def _belongs(word: str, group: tuple[str, ...]) -> bool:
    """Whether a word is part of the number that consecutive words say."""
    return number_parts(word) is not None or (bool(group) and word in CONNECTORS)


def _marks(word: str) -> str:
    return START + INSIDE * (len(word) - 1)


def common_start(one: str, other: str) -> int:
    """Length of the common start."""
    if other.startswith(one):
        return len(one)
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _digits_of(text: str) -> str:
    return "".join(filter(str.isdigit, text))
