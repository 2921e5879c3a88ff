"""Detector of dates of birth: a date behind a word that says it is one."""

from __future__ import annotations

import re
from typing import Final

from edgedraft.privacy.detect.context import behind
from edgedraft.privacy.detect.registry import Spans

_BIRTH: Final = re.compile(
    r"\b(?:born|birth ?(?:day|date)|date[ _]of[ _]birth|d\.?o\.?b\b\.?|geboren|geburts(?:datum|tag)|née?"
    r"|naissance|anniversaire"
    r"|naci[óo]|nacid[oa]|nacimiento|cumpleaños|nat[oa]|nascita|nascimento|nascid[oa]|nasceu|geboortedatum"
    r"|urodz\w+|född|födelse\w+"
    r"|født|fødsels\w+|syntym\w+|syntynyt|doğum|naroz\w+)(?![^\W_])|рожд|родил|生年月日|誕生日|出生|生日|생년월일|생일|जन्म",
    re.IGNORECASE,
)
_MONTH: Final = r"[^\W\d_]{3,12}\.?"
_DATE: Final = re.compile(
    r"(?<!\d)(?:"
    r"\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./](?:\d{4}|\d{2})|(?:19|20)\d{6}"
    r"|\d{1,2}(?:\.|st|nd|rd|th|er|º)?\s(?:de\s|of\s)?" + _MONTH + r",?\s(?:de\s)?\d{4}"
    r"|" + _MONTH + r"\s\d{1,2}(?:st|nd|rd|th)?,?\s\d{4}"
    r"|\d{4}\s?[年년]\s?\d{1,2}\s?[月월]\s?\d{1,2}\s?[日일]"
    r")(?!\d)"
)


_YEAR: Final = re.compile(r"(?<!\d)\d{4}(?!\d)")
_EARLIEST: Final = 1900
"""Whoever was born before is in the history books."""


def birth_date(text: str) -> Spans:
    """Dates of birth, but for those before 1900."""
    for match in behind(_BIRTH, _DATE, text, 16):
        year = _YEAR.search(match.group())
        if year is None or int(year.group()) >= _EARLIEST:
            yield match.span()
