"""What still leaks in meaning: how much of the private prompts the words tell that left in mode `sealed`."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from edgedraft_apps.bench.privacy.questions import Question
from edgedraft_apps.bench.privacy.rule import Answer
from edgedraft_apps.bench.results import Row

_PIECE: Final = 3
_LONG: Final = 4  # letters from which on a word says something; shorter ones are mostly "the" and "is"


def recall_rows(answers: Sequence[Answer], questions: Sequence[Question]) -> list[Row]:
    """What of secrets and private words stands in the text that left, over all private questions.

    Args:
        answers: Of one way; what the cloud saw of them is looked at.
        questions: What was asked.
    """
    asked: Mapping[str, Question] = {question.id: question for question in questions}
    whole = secrets = words = told = numbers = told_numbers = 0
    share = 0.0
    for answer in answers:
        question, left = asked[answer.question], _compact(answer.wire)
        for value in (value for values in question.secrets.values() for value in values):
            secret = _compact(value)
            secrets += 1
            whole += secret in left
            share += _told(secret, left) / len(secret)
        seen = _words(answer.wire)
        private = {word for word in _words(question.private) - _words(question.public) if word.isdigit()}
        numbers += len(private)
        told_numbers += len(private & seen)
        private = {word for word in _words(question.private) - _words(question.public) if len(word) >= _LONG}
        words += len(private)
        told += len(private & seen)
    case = f"sealed, {len(answers)} private questions"
    return [
        Row("secrets that left whole", f"{case}, {secrets} secrets", whole / secrets),
        Row("share of a secret's characters that left in pieces of 3 or more", case, share / secrets),
        Row("private words that left", f"{case}, {words} words of {_LONG} letters or more", told / words),
        Row("private numbers that left", f"{case}, {numbers} numbers", told_numbers / numbers),
    ]


def _told(secret: str, left: str) -> int:
    """How many characters of a secret stand in pieces of it that left."""
    told: set[int] = set()
    for start in range(len(secret) - _PIECE + 1):
        if secret[start : start + _PIECE] in left:
            told |= set(range(start, start + _PIECE))
    return len(told)


def _compact(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _words(text: str) -> set[str]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return set("".join(char if char.isalnum() else " " for char in folded).split())
