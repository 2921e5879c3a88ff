"""Detector of persons' names: behind a title or words such as "my name is", and by common first names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from edgedraft.privacy.detect.registry import Spans

_CAPITAL: Final = r"A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĪİŁŃŇŌŐŘŚŞŠŤŪŮŰŹŻŽА-ЯЁ"
_WORD: Final = rf"(?:[OD]['’])?[{_CAPITAL}]\w{{1,24}}+(?:[-'’][{_CAPITAL}]\w{{1,24}}+){{0,2}}"
_INITIAL: Final = rf"[{_CAPITAL}]\."
_PARTICLE: Final = "(?:(?:van|von|de|der|den|da|dos|del|della|di|la|le|bin|ibn|al|el|ten|ter|zu) ){1,2}"
_SURNAME: Final = rf" (?:{_PARTICLE})?{_WORD}"
_NAME: Final = rf"(?:{_WORD}|{_INITIAL})(?:{_SURNAME}| {_INITIAL}){{0,3}}"
_DEVANAGARI: Final = r"[\u0900-\u097f]{2,20}(?: [\u0900-\u097f]{2,20}){0,2}"
_CANDIDATE: Final = re.compile(rf"(?<![\w@./-]){_WORD}(?:{_SURNAME}| {_INITIAL}(?= )){{0,3}}(?![@\w])")
_PATRONYMIC: Final = re.compile(
    r"(?<!\w)(?:[А-ЯЁ][а-яё]{1,20} ){1,2}[А-ЯЁ][а-яё]{2,20}(?:вич|вна|ична)(?:[ауеы]|ем"
    r"|ой)?(?: [А-ЯЁ][а-яё]{2,24})?(?!\w)"
)
_SAINTS: Final = {"saint", "san", "santa", "são", "sankt", "st."}
"""Before a first name: it is a place."""
_HAN: Final = r"[\u4e00-\u9fff]"
_KANA_OR_HAN: Final = r"[\u3040-\u30ff\u4e00-\u9fff]"


def person(text: str) -> Spans:
    """Names of persons."""
    for told in _told():
        for match in told.finditer(text):
            yield match.span(1)
    for match in _CANDIDATE.finditer(text):
        yield from _by_first_name(match)
    for match in _PATRONYMIC.finditer(text):
        yield match.span()


def _by_first_name(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """A run of capitalised words from the first of them that is a first name, by itself or before a surname."""
    first, ambiguous, surnames, family = (_words(name) for name in ("first", "ambiguous", "surnames", "family"))
    no_name = _no_names()
    words = [(word.group().casefold(), word.start()) for word in re.finditer(r"\S+", match.group())]
    for (before, _), (word, start), (following, _) in zip(
        [("", 0), *words], words, [*words[1:], ("", 0)], strict=False
    ):
        name = re.split("[-'’]", word)[0]
        surnamed = following in family and word not in no_name
        if before not in _SAINTS and (name in first or surnamed or (name in ambiguous and following in surnames)):
            yield match.start() + start, match.end()
            return


@cache
def _told() -> tuple[re.Pattern[str], ...]:
    """Forms in which the words around a name, its first group, tell that it is one."""
    data = _data()
    chinese, japanese, korean = (_any(_words(f"{language}_surnames")) for language in ("chinese", "japanese", "korean"))
    forms = (
        rf"(?<!\w){_any(_words('titles'))}\.? ({_NAME})",
        rf"(?<!\w)(?i:{_any(data['introductions'])}) ({_NAME}|{_DEVANAGARI})",
        rf"(?<!\w)(?i:{_any(data['signings'])}),?\s{{1,2}}({_WORD}{_SURNAME}|{_WORD}(?=\s*$))",
        rf"(?<![^\W_])(?i:{_any(data['labels'])})[\"']?\s?[:=：][\s\"']{{0,3}}({_WORD}{_SURNAME}(?:{_SURNAME})?)",
        rf"(?:我叫|我的名字是|我名叫|姓名[:：是]\s?|名叫)({chinese}{_HAN}{{1,2}})",
        rf"({chinese}{_HAN}{{0,2}}?)(?=先生|女士|小姐|老师|经理|医生|同学)",
        rf"({japanese}{_KANA_OR_HAN}{{0,3}}?)(?=さん|様|さま|くん|君|ちゃん|先生|氏)",
        rf"(?:名前は|氏名[:：は]\s?)({japanese}\s?{_KANA_OR_HAN}{{1,3}}?)(?=です|と|。|$)",
        rf"(?<![가-힣])({korean}[가-힣]{{1,2}})(?=\s?(?:님|씨|선생|과장|부장|대리))",
        rf"(?:이름은|성명[:：]?)\s?({korean}[가-힣]{{2}})(?=입니다|이에요|이고|$|\W)",
    )
    return tuple(map(re.compile, forms))


def _any(words: Iterable[str]) -> str:
    """A pattern for any of these words, longer ones first; either apostrophe will do."""
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return f"(?:{'|'.join(map(re.escape, ordered))})".replace("'", "['’]")


@cache
def _words(name: str) -> frozenset[str]:
    return frozenset(_data()[name].split())


@cache
def _no_names() -> frozenset[str]:
    return _words("not_names") | {title.casefold() for title in _words("titles")}


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("names.toml").read_text(encoding="utf-8"))
