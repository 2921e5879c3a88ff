"""Numbers written in words, read as digits: "four nine two", "twenty-one", "one thousand two hundred".

English in full; of Dutch, German, French and Spanish the numbers up to a hundred and their multipliers. All words are
in compact form (`normalise`), so `fünf` is `funf`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

DIGIT_WORDS: Final = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "nl": ["nul", "een", "twee", "drie", "vier", "vijf", "zes", "zeven", "acht", "negen"],
    "de": ["null", "eins", "zwei", "drei", "vier", "funf", "sechs", "sieben", "acht", "neun"],
    "fr": ["zero", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"],
    "es": ["cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"],
}
CONNECTORS: Final = frozenset({"and", "und", "et", "y", "en"})
"""Words that may stand inside a number."""

_UNIT, _TEEN, _TEN, _MULTIPLE, _REPEAT, _DIGITS = range(6)
_LONGEST_WORD: Final = 60


class _Part(NamedTuple):
    kind: int
    value: int
    digits: str = ""


_TEENS: Final = {
    "en": "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
    "nl": "tien elf twaalf dertien veertien vijftien zestien zeventien achttien negentien",
    "de": "zehn elf zwolf dreizehn vierzehn funfzehn sechzehn siebzehn achtzehn neunzehn",
    "fr": "dix onze douze treize quatorze quinze seize",
    "es": "diez once doce trece catorce quince dieciseis diecisiete dieciocho diecinueve",
}
_TENS: Final = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "nl": "twintig dertig veertig vijftig zestig zeventig tachtig negentig",
    "de": "zwanzig dreissig vierzig funfzig sechzig siebzig achtzig neunzig",
    "fr": "vingt trente quarante cinquante soixante septante huitante nonante",
    "es": "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
}
_MULTIPLES: Final = {
    100: "hundred honderd hundert cent cents ciento cien",
    1000: "thousand duizend tausend mille mil",
    1_000_000: "million miljoen millones",
}
_OTHERS: Final = {
    "oh": _Part(_UNIT, 0),
    "o": _Part(_UNIT, 0),
    "nought": _Part(_UNIT, 0),
    "ein": _Part(_UNIT, 1),
    "une": _Part(_UNIT, 1),
    "una": _Part(_UNIT, 1),
    "zwo": _Part(_UNIT, 2),
    "fourty": _Part(_TEN, 40),
    "dix": _Part(_TEN, 10),  # dix-sept
    "vingts": _Part(_TEN, 20),
    "double": _Part(_REPEAT, 2),
    "triple": _Part(_REPEAT, 3),
}


def _dictionary() -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    for units in DIGIT_WORDS.values():
        parts |= {word: _Part(_UNIT, value) for value, word in enumerate(units)}
    for teens in _TEENS.values():
        parts |= {word: _Part(_TEEN, 10 + index) for index, word in enumerate(teens.split())}
    for tens in _TENS.values():
        parts |= {word: _Part(_TEN, 20 + 10 * index) for index, word in enumerate(tens.split())}
    for value, names in _MULTIPLES.items():
        parts |= {word: _Part(_MULTIPLE, value) for word in names.split()}
    for language, joint in (("nl", "en"), ("de", "und")):  # vierentwintig, vierundzwanzig
        for value, word in enumerate(DIGIT_WORDS[language][1:], start=1):
            stem = "ein" if word == "eins" else word
            for index, tens in enumerate(_TENS[language].split()):
                parts[f"{stem}{joint}{tens}"] = _Part(_TEEN, 20 + 10 * index + value)
    for value, word in enumerate(DIGIT_WORDS["es"][1:], start=1):
        parts[f"veinti{word}"] = _Part(_TEEN, 20 + value)
    return parts | _OTHERS


_PARTS: Final = _dictionary()
_LENGTHS: Final = sorted({len(word) for word in _PARTS if len(word) > 2}, reverse=True)


@lru_cache(maxsize=1 << 14)
def number_parts(word: str) -> tuple[_Part, ...] | None:
    """What a word says as a number or as several in one ("zweihundertzwanzig", "onetwo"); None if it is no number."""
    if word.isdigit():
        return (_Part(_DIGITS, int(word) if len(word) < 4 else 0, word),)
    part = _PARTS.get(word)
    if part is not None:
        return (part,)
    return _split(word) if 0 < len(word) <= _LONGEST_WORD else None


def read(parts: Sequence[_Part]) -> list[str]:
    """The numbers that consecutive number words say, each as its digits."""
    numbers: list[str] = []
    total = current = 0  # of the number being read: what its thousands make, and the rest
    literal = ""
    last: int | None = None  # the size of its last part; None where no number is being read
    repeat = 1

    def finish() -> None:
        nonlocal total, current, literal, last, repeat
        if last is not None:
            numbers.append((literal or str(total + current)) * repeat)
            repeat = 1
        total, current, literal, last = 0, 0, "", None

    for kind, value, digits in parts:
        if kind == _REPEAT:
            finish()
            repeat = value
        elif kind == _DIGITS:
            finish()
            current, literal, last = value, digits, 1
        elif kind == _MULTIPLE:
            if last is None or last >= value or (literal and len(literal) > 3):
                finish()
            literal = ""
            if value == 100:
                current = (current or 1) * value
            else:
                total, current = total + (current or 1) * value, 0
            last = value
        elif kind == _TEN and value == 20 and last == 1 and current % 100 == 4 and not literal:
            current, last = current + 76, 20  # quatre-vingt
        else:
            size = {_UNIT: 1, _TEEN: 9, _TEN: 10}[kind]
            french = 10 <= value < 20 and last in (10, 20) and current % 100 in (60, 80)  # soixante-dix
            if last is not None and not french and (literal or last <= size or value == 0):
                finish()
            if last == 9 and kind == _UNIT:
                finish()
            current, last = current + value, size
    finish()
    return numbers


def _split(word: str) -> tuple[_Part, ...] | None:
    """Number words that stand glued together, or None."""
    best: list[tuple[_Part, ...] | None] = [None] * len(word) + [()]
    for start in range(len(word) - 1, -1, -1):
        for length in _LENGTHS:
            rest = best[start + length] if start + length <= len(word) else None
            part = _PARTS.get(word[start : start + length]) if rest is not None else None
            if part is not None and rest is not None:
                best[start] = (part, *rest)
                break
    return best[0]
