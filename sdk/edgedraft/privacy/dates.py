"""The usual spellings of a date, so that a secret date does not leave in another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_MONTHS: Final = (  # English, Dutch, German, French, Spanish; and abbreviations that are not the first three letters
    "january januari januar janvier enero janv",
    "february februari februar fevrier febrero fevr",
    "march maart marz mars marzo mrt maerz",
    "april april april avril abril",
    "may mei mai mai mayo",
    "june juni juni juin junio",
    "july juli juli juillet julio juil",
    "august augustus august aout agosto",
    "september september september septembre septiembre sept",
    "october oktober oktober octobre octubre",
    "november november november novembre noviembre",
    "december december dezember decembre diciembre",
)
_AMONG: Final = frozenset({"of", "the", "de", "del", "st", "nd", "rd", "th", "er", "den", "le", "el"})
_SHORTEST: Final = 6
_ORDINALS: Final = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth"),
    "twentieth",
)


class _Date(NamedTuple):
    year: str
    month: int
    day: int


def date_spellings(spelled: Sequence[str], *, whole: bool = False) -> set[str]:
    """Spellings, in compact form, of the dates that stand in a text and of their pairs of day, month and year.

    Args:
        spelled: The words of the text in compact form.
        whole: Only those with day, month and year, and no shorter ones than `120685`.
    """
    if whole:
        return {spelling for date in _dates(spelled) for spelling in _whole(date) if len(spelling) >= _SHORTEST}
    return {spelling for date in _dates(spelled) for spelling in _spellings(date)}


def _names(month: int) -> set[str]:
    names = _MONTHS[month - 1].split()
    return {*names, *(name[:3] for name in names)}


_MONTH_OF: Final = {name: month for month in range(12, 0, -1) for name in _names(month)}


def _dates(spelled: Sequence[str]) -> Iterator[_Date]:
    """Every reading of three words in a row as a date, or of a day and a month alone."""
    parts = [word for word in spelled if word not in _AMONG]
    for word in parts:
        if len(word) == 8 and word.isdigit():
            yield from _readings([word[:4], word[4:6], word[6:]])
            yield from _readings([word[:2], word[2:4], word[4:]])
    for index in range(len(parts)):
        around = [*parts[max(index - 1, 0) : index], *parts[index + 3 : index + 4]]
        if not any(word.isdigit() for word in around):  # otherwise it is some longer number
            yield from _readings(parts[index : index + 3])
        pair = parts[index : index + 2]
        if sum(word in _MONTH_OF for word in pair) == 1:
            yield from _readings([*pair, ""])


def _readings(parts: Sequence[str]) -> Iterator[_Date]:
    """All orders in which three parts are a date; the year may be empty."""
    if len(parts) < 3:
        return
    for year, month, day in ((0, 1, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1)):
        number = _MONTH_OF.get(parts[month]) or (int(parts[month]) if _is_number(parts[month], 2) else 0)
        if parts[year] and not (len(parts[year]) in (2, 4) and parts[year].isdigit()):
            continue
        if 1 <= number <= 12 and _is_number(parts[day], 2) and 1 <= int(parts[day]) <= 31:
            yield _Date(parts[year], number, int(parts[day]))


def _is_number(word: str, most: int) -> bool:
    return word.isdigit() and len(word) <= most


def _whole(date: _Date) -> Iterator[str]:
    """Day, month and year; none where the year is not known."""
    months = {f"{date.month:02}", str(date.month)}
    days = {f"{date.day:02}", str(date.day)}
    for year in _years(date):
        for d in days:
            for m in months:
                if len(d + m) > 2 or len(year) == 4:  # 3/5/85 reads as any number
                    yield from (d + m + year, m + d + year, year + m + d)
        for name in _names(date.month):
            for d in _days(date):
                yield from (d + name + year, f"{d}of{name}{year}", f"{d}de{name}{year}", f"{d}de{name}de{year}")
                yield from (name + d + year, f"{name}the{d}{year}", year + name + d)


def _spellings(date: _Date) -> Iterator[str]:
    """The same, and pairs of them."""
    yield from _whole(date)
    years = _years(date)
    month, day = f"{date.month:02}", f"{date.day:02}"
    if years:
        yield from (month + day, day + month)
    for year in years:
        if len(year) == 4:
            yield from (month + year, year + month)
    for name in _names(date.month):
        for d in _days(date):
            yield from (d + name, f"{d}of{name}", f"{d}de{name}", name + d, f"{name}the{d}")
        for year in years:
            yield from (name + year, f"{name}of{year}", f"{name}de{year}", f"{name}del{year}", year + name)


def _years(date: _Date) -> set[str]:
    years = {date.year, date.year[-2:]} - {""}
    return years | {f"19{date.year}", f"20{date.year}"} if len(date.year) == 2 else years


def _days(date: _Date) -> set[str]:
    ends = (f"{date.day}{end}" for end in ("st", "nd", "rd", "th", "er"))
    return {f"{date.day:02}", str(date.day), *ends, _ordinal(date.day)}


def _ordinal(day: int) -> str:
    if day <= len(_ORDINALS):
        return _ORDINALS[day - 1]
    return "thirtieth" if day == 30 else ("twenty" if day < 30 else "thirty") + _ORDINALS[day % 10 - 1]
