"""Text as the guard compares it: the same however it is cased, spaced, punctuated or dressed up in Unicode.

The *compact* form of a text is its letters and digits alone: compatibility forms taken apart (NFKD), marks dropped,
case folded, look-alikes of Latin letters and the digits of every script written in ASCII. All else falls out, and is
remembered only as the place where a word starts.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, NamedTuple

START: Final = "|"
"""In `Piece.bounds`: a word starts at this character."""
INSIDE: Final = "-"
"""In `Piece.bounds`: the word before it goes on."""
GAP: Final = " "
"""As a shape: something that ends a word and is neither letter nor digit."""
WORDLESS: Final = "o"
"""As a shape: a letter of a script that sets no spaces between words."""

LETTERS: Final = r"[^\W\d_](?:[^\W\d_]|[\u0300-\u036f\u0900-\u0dff])*"
"""Matches a word of letters, with the marks of scripts that have them."""

_UPPER, _LOWER, _DIGIT = "u", "l", "d"  # the other shapes

# Letters (case folded) that read as Latin ones and that Unicode does not decompose into them.
_LOOK_ALIKES: Final = dict(
    zip(
        "авегзіјкмнорстухһԁԛԝѕ" + "αβεζηικμνορτυχ" + "ıſɑɡ℮",  # Cyrillic, Greek, others
        "aberzijkmhopctyxhdqws" + "abezhikmnoptyx" + "isage",
        strict=True,
    )
)
_ASCII: Final = [chr(code) for code in range(128)]
_ASCII_COMPACT: Final = {ord(char): char.lower() if char.isalnum() else None for char in _ASCII}
_ASCII_SHAPES: Final = {
    ord(char): _UPPER if char.isupper() else _LOWER if char.islower() else _DIGIT if char.isdigit() else GAP
    for char in _ASCII
}
_ASCII_STARTS: Final = re.compile(
    f"(?<={GAP})[{_UPPER}{_LOWER}{_DIGIT}]"
    f"|(?<=[{_UPPER}{_LOWER}]){_DIGIT}|(?<={_DIGIT})[{_UPPER}{_LOWER}]|(?<={_LOWER}){_UPPER}"
)
_SHAPES_INSIDE: Final = {ord(_UPPER): INSIDE, ord(_LOWER): INSIDE, ord(_DIGIT): INSIDE, ord(GAP): None}
_LETTER_NAME: Final = re.compile(
    r"(?:LATIN|NEGATIVE|REGIONAL|CROSSED|SQUARED|CIRCLED)\b.*\bLETTER (?:SMALL CAPITAL )?([A-Z])(?: WITH .*)?"
)
_WORDLESS_RANGES: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # CJK
    (0x20000, 0x3FFFF),
)


class Piece(NamedTuple):
    """A stretch of text in compact form.

    Attributes:
        text: Its letters and digits.
        bounds: One mark for each of them, `START` or `INSIDE`; the first depends on what stands before the piece, and
            is `START` only if the piece itself says so.
        first: Shape of its first character of any kind that counts, `GAP` included; "" where there is none.
        last: Shape of its last one.
    """

    text: str
    bounds: str
    first: str
    last: str


def starts_word(before: str, shape: str) -> bool:
    """Whether a character of a shape starts a word after one of another shape; "" before it is the middle of a word.

    Digits part from letters, a capital from the small letter before it (`userName`), and in scripts without spaces
    every character is a word.
    """
    return (
        before in (GAP, WORDLESS)
        or shape == WORDLESS
        or (before != "" and (before == _DIGIT) != (shape == _DIGIT))
        or (before == _LOWER and shape == _UPPER)
    )


def squeeze(text: str) -> Piece:
    """A text in compact form, as if it stood in the middle of a word."""
    return _squeeze_ascii(text) if text.isascii() else _squeeze_any(text)


def _squeeze_ascii(text: str) -> Piece:
    """The same without a step for each character, for what most texts are."""
    word = text[1:] if text[:1] == " " else text
    if word.isalpha() and word.islower():  # as most tokens
        inside = INSIDE * len(word)
        return Piece(word, inside, _LOWER, _LOWER) if word is text else Piece(word, START + inside[1:], GAP, _LOWER)
    shapes = text.translate(_ASCII_SHAPES)
    bounds = _ASCII_STARTS.sub(START, shapes).translate(_SHAPES_INSIDE)
    return Piece(text.translate(_ASCII_COMPACT), bounds, shapes[:1], shapes[-1:])


def _squeeze_any(text: str) -> Piece:
    chars: list[str] = []
    bounds: list[str] = []
    first = last = ""
    for char in text:
        for plain, shape in _fold(char):
            first = first or shape
            if plain:
                chars.append(plain)
                bounds.append(START if starts_word(last, shape) else INSIDE)
            last = shape
    return Piece("".join(chars), "".join(bounds), first, last)


def words(text: str) -> list[str]:
    """The words of a text in compact form, as gaps part them; without gaps every character is one."""
    spaced = (f" {plain} " if shape == WORDLESS else plain or " " for char in text for plain, shape in _fold(char))
    return "".join(spaced).split()


def parts(text: str) -> list[str]:
    """The words of a text in compact form, parted wherever one may start (`starts_word`)."""
    piece = squeeze(GAP + text)
    return split(piece.text, piece.bounds)


def split(text: str, bounds: str, start: int = 0) -> list[str]:
    """The words of a compact text from a place on, which counts as the start of one."""
    found = []
    while start < len(text):
        end = bounds.find(START, start + 1)
        end = end if end >= 0 else len(text)
        found.append(text[start:end])
        start = end
    return found


def wordless(char: str) -> bool:
    """Whether a character is of a script that sets no spaces between words."""
    return any(low <= ord(char) <= high for low, high in _WORDLESS_RANGES)


@lru_cache(maxsize=1 << 14)
def _fold(char: str) -> tuple[tuple[str, str], ...]:
    """A character's plain characters with their shapes; ("", GAP) for one that ends a word; nothing for a mark."""
    if "a" <= char <= "z":
        return ((char, _LOWER),)
    folded: list[tuple[str, str]] = []
    for part in unicodedata.normalize("NFKD", char):
        category = unicodedata.category(part)
        if category[0] == "M" or category == "Cf":
            continue
        digit = unicodedata.digit(part, None)
        if digit is not None:
            folded.append((str(digit), _DIGIT))
            continue
        name = _LETTER_NAME.fullmatch(unicodedata.name(part, ""))
        shape = _UPPER if part.isupper() else WORDLESS if wordless(part) else _LOWER
        for plain in name[1].lower() if name else unicodedata.normalize("NFKD", part.casefold()):
            if plain.isalnum():
                folded.append((_LOOK_ALIKES.get(plain, plain), shape))
            elif unicodedata.category(plain)[0] != "M":
                folded.append(("", GAP))
    return tuple(folded)
