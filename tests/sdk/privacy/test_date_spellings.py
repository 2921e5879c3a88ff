"""The usual spellings of a date."""

import pytest

from edgedraft.privacy.dates import date_spellings
from edgedraft.privacy.normalise import parts


def spellings(text: str) -> set[str]:
    return date_spellings(parts(text))


@pytest.mark.parametrize("secret", ["1984-03-12", "12/03/1984", "12 March 1984", "March 12th, 1984", "12. März 1984"])
@pytest.mark.parametrize(
    "other",
    [
        *("1984-03-12", "12.3.1984", "12/03/84", "19840312", "12 March", "12th of March", "March 12", "March 1984"),
        *("12 mars", "1 2 m a r z o", "12 maart", "12 de marzo", "Mar 84", "twelfth of March"),
    ],
)
def test_one_date_is_every_spelling_of_it(secret: str, other: str):
    assert "".join(parts(other)) in spellings(f"born on {secret} in Leiden")


@pytest.mark.parametrize("text", ["", "no date", "call 06 12 34 56 78", "31/13/1984", "45 14 99", "page 12 of 300"])
def test_what_is_no_date_has_no_spellings(text: str):
    assert spellings(text) == set()


@pytest.mark.parametrize(("day", "ordinal"), [(1, "first"), (20, "twentieth"), (22, "twentysecond"), (30, "thirtieth")])
def test_days_in_words(day: int, ordinal: str):
    assert f"{ordinal}ofmay" in spellings(f"{day} May 2001")


def test_the_thirty_first():
    assert "maythirtyfirst" in spellings("31 May 2001")
