"""Questions with a private part, and the checks that judge an answer."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.privacy.sandbox import runs_python, sql_gives

QUESTIONS: Final = Path(__file__).with_name("questions.toml")
HALVES: Final = ("choose", "final")
MAX_TOKENS: Final = {
    "extraction": 48,
    "arithmetic": 80,
    "writing": 96,
    "code": 112,
    "knowledge": 48,
    "scheduling": 48,
}
"""Tokens of an answer at most, by kind."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: Its name.
        kind: One of `MAX_TOKENS`.
        half: `choose`: for settling the rule; `final`: for the figure to quote.
        public: What the app may say.
        private: What stays on the device.
        secrets: Values in `private` that are secret, by kind.
        check: How an answer is judged; see `is_right`.
        right: Answers that the check accepts.
        wrong: Plausible ones that it rejects.
    """

    id: str
    kind: str
    half: str
    public: str
    private: str
    secrets: Mapping[str, Sequence[str]]
    check: Mapping[str, Any]
    right: Sequence[str]
    wrong: Sequence[str]

    def __post_init__(self) -> None:
        if self.kind not in MAX_TOKENS:
            raise InvalidInput(f"{self.id}.kind", f"is {self.kind!r}", f"use {', '.join(MAX_TOKENS)}")
        if self.half not in HALVES:
            raise InvalidInput(f"{self.id}.half", f"is {self.half!r}", f"use {' or '.join(HALVES)}")
        if unknown := sorted(set(self.check) - set(_CHECKS) - {"others", "rows", "case"}):
            raise InvalidInput(f"{self.id}.check", f"has {unknown}", f"use {', '.join(_CHECKS)}")
        for value in (value for values in self.secrets.values() for value in values):
            if value not in self.private:
                raise InvalidInput(f"{self.id}.secrets", "has one that is not in the private text", "write it alike")

    def is_right(self, answer: str) -> bool:
        """Whether an answer is right by all checks of the question.

        - `all`, `none`: every one, or not one, of these patterns is found.
        - `pick`: it is found, and none of `others` before it.
        - `number`, `time`: of the values in the answer that are not repeated from the question, it is the first or the
          last (of all, if it stands in the question).
        - `python`: the program in the answer passes these assertions.
        - `sql`: the query in the answer, on the database that this makes, gives `rows`.
        """
        return all(_CHECKS[name](self, answer) for name in self.check if name in _CHECKS)


def load_questions(file: Path = QUESTIONS, half: str | None = None) -> list[Question]:
    """Read questions.

    Args:
        file: A TOML file with a list `question`.
        half: `choose` or `final`; None takes both.

    Raises:
        InvalidInput: It cannot be read, or a question is wrong.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        questions = [Question(**{"secrets": {}, **entry}) for entry in data["question"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("questions", f"{file} cannot be used ({error})", "see the fields of Question") from error
    return [question for question in questions if half in (None, question.half)]


def by_turns(questions: Sequence[Question]) -> list[Question]:
    """One of each kind, then the next of each, so that the beginning of the list has all kinds."""
    seen: Counter[str] = Counter()
    turns: list[int] = []
    for question in questions:
        turns.append(seen[question.kind])
        seen[question.kind] += 1
    return [question for _, question in sorted(zip(turns, questions, strict=True), key=lambda pair: pair[0])]


def code_of(answer: str) -> str:
    """The first fenced block of an answer, also if its end is missing; the whole answer where there is none."""
    fenced = re.search(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    return fenced.group(1) if fenced else answer


# ---------------------------------------------------------------------------------------------------- checks


def _found(question: Question, pattern: str, answer: str) -> re.Match[str] | None:
    flags = re.NOFLAG if question.check.get("case") else re.IGNORECASE
    return re.search(pattern, unicodedata.normalize("NFC", answer), flags)


def _all(question: Question, answer: str) -> bool:
    return all(_found(question, pattern, answer) for pattern in question.check["all"])


def _none(question: Question, answer: str) -> bool:
    return not any(_found(question, pattern, answer) for pattern in question.check["none"])


def _pick(question: Question, answer: str) -> bool:
    right = _found(question, question.check["pick"], answer)
    others = [_found(question, pattern, answer) for pattern in question.check["others"]]
    return right is not None and all(other is None or other.start() > right.start() for other in others)


def _number(question: Question, answer: str) -> bool:
    return _is_the_value(float(question.check["number"]), question, answer, _numbers)


def _time(question: Question, answer: str) -> bool:
    hour, minute = map(int, question.check["time"].split(":"))
    morning = _minutes(hour, minute) % _HALF_DAY
    # An hour of the afternoon may be written with 12 hours.
    return any(
        _is_the_value(wanted, question, answer, _times) for wanted in {float(_minutes(hour, minute)), float(morning)}
    ) and not re.search(r"\d\s*a\.?m\b" if hour >= 12 else r"\d\s*p\.?m\b", answer, re.IGNORECASE)


def _python(question: Question, answer: str) -> bool:
    return runs_python(code_of(answer), question.check["python"])


def _sql(question: Question, answer: str) -> bool:
    return sql_gives(code_of(answer), question.check["sql"], question.check["rows"])


_CHECKS: Final[Mapping[str, Callable[[Question, str], bool]]] = {
    "all": _all,
    "none": _none,
    "pick": _pick,
    "number": _number,
    "time": _time,
    "python": _python,
    "sql": _sql,
}


# ---------------------------------------------------------------------------------------------------- values

_HALF_DAY: Final = 12 * 60
_UNITS: Final = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS: Final = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS: Final = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, 2)
}
_CLOCK: Final = re.compile(r"\b(\d{1,2})[:.h](\d{2})\b(?:\s*([ap])\.?m)?|\b(\d{1,2})\s*([ap])\.?m\b", re.IGNORECASE)
_HALF_PAST: Final = re.compile(r"\bhalf past (\w+)|\b(noon)\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|[a-z]+(?:-[a-z]+)?", re.IGNORECASE)


def _is_the_value(wanted: float, question: Question, answer: str, values_of: Callable[[str], Iterator[float]]) -> bool:
    given = set(values_of(f"{question.public} {question.private}"))
    values = [value for value in values_of(answer) if wanted in given or value not in given]
    return bool(values) and wanted in (values[0], values[-1])


def _numbers(text: str) -> Iterator[float]:
    for match in _NUMBER.finditer(_CLOCK.sub(" ", text)):
        word = match.group().lower()
        if word[0].isdigit():
            yield float(word.replace(",", ""))
        elif all(part in _WORDS for part in word.split("-")):
            yield float(sum(_WORDS[part] for part in word.split("-")))


def _times(text: str) -> Iterator[float]:
    found: list[tuple[int, int]] = []
    for match in _CLOCK.finditer(text):
        hour, minute, half, plain_hour, plain_half = match.groups()
        found.append((match.start(), _clock(int(hour or plain_hour), int(minute or 0), half or plain_half)))
    for match in _HALF_PAST.finditer(text):
        hour_word = match.group(1)
        if hour_word is None:
            found.append((match.start(), _HALF_DAY))
        elif hour_word.lower() in _WORDS or hour_word.isdigit():
            hour_value = int(hour_word) if hour_word.isdigit() else _WORDS[hour_word.lower()]
            found.append((match.start(), _minutes(hour_value, 30)))
    yield from (float(value) for _, value in sorted(found))


def _clock(hour: int, minute: int, half: str | None) -> int:
    if half is None:
        return _minutes(hour, minute)
    return _minutes(hour % 12, minute) + (_HALF_DAY if half.lower() == "p" else 0)


def _minutes(hour: int, minute: int) -> int:
    return 60 * hour + minute
