"""The compact form of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.privacy.normalise import GAP, INSIDE, START, _squeeze_any, parts, squeeze, words


@pytest.mark.parametrize(
    ("dressed", "plain"),
    [
        ("Héllo, WÖRLD!", "helloworld"),
        ("4 9\u200b2\u00ad-9", "4929"),
        ("Ａｌｉｃｅ", "alice"),
        ("①②½", "1212"),
        ("٤٩", "49"),  # Arabic-Indic digits
        ("ﬁne ℡ ㎏", "finetelkg"),
        ("Straße İstanbul ıı Łódź Ørsted", "strasseistanbuliilodzorsted"),
        ("𝓑𝓸𝓫 🅱🅾🅱 🇧🇴🇧 ʙᴏʙ", "bobbobbobbob"),
        ("АВС", "abc"),  # Cyrillic
        ("4\ufe0f\u20e3", "4"),  # a key cap
        ("z̸a̵l̶g̷o̴", "zalgo"),
        ("...---...", ""),
    ],
)
def test_dress_falls_away(dressed: str, plain: str):
    assert squeeze(dressed).text == plain


def test_words_start_after_gaps_and_where_the_shape_turns():
    assert parts("my PIN4711, userName_x 王伟") == ["my", "pin", "4711", "user", "name", "x", "王", "伟"]
    assert words("my PIN4711, userName_x 王伟") == ["my", "pin4711", "username", "x", "王", "伟"]


def test_invisible_characters_part_no_words():
    assert parts("al\u200bice") == ["alice"]


def test_the_start_of_a_piece_is_told_by_its_shape():
    assert squeeze("bc d") == ("bcd", INSIDE + INSIDE + START, "l", "l")
    assert squeeze(" b,").first == squeeze(" b,").last == GAP


@given(st.text(max_size=40))
def test_compact_text_stays_as_it_is(text: str):
    compact = squeeze(text).text
    assert squeeze(compact).text == compact
    assert "".join(words(text)) == "".join(parts(text)) == compact


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_texts_squeeze_like_one(one: str, other: str):
    assert squeeze(one + other).text == squeeze(one).text + squeeze(other).text


@given(st.text(st.characters(codec="ascii"), max_size=40))
def test_plain_ascii_squeezes_the_fast_way_as_it_does_the_slow_way(text: str):
    assert squeeze(text) == _squeeze_any(text)
