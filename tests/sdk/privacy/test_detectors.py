"""The registry of detectors, what the standard ones find and leave alone, and that no text keeps them busy for long."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput
from edgedraft.privacy.detect import Detectors, Finding
from edgedraft.privacy.detect.presidio import presidio_detectors

STANDARD = Detectors.standard()


def found(text: str, detectors: Detectors = STANDARD) -> list[tuple[str, str]]:
    return [(finding.kind, text[finding.start : finding.end]) for finding in detectors.find(text)]


# ---------------------------------------------------------------- registry


def spans_of(word: str):
    return lambda text: [(at, at + len(word)) for at in range(len(text)) if text.startswith(word, at)]


def test_the_first_detector_wins_and_the_rest_of_what_it_overlaps_remains():
    detectors = Detectors([("A", spans_of("bc")), ("B", spans_of("abcd")), ("B", spans_of("ab"))])
    assert detectors.find("abcd ab") == [
        Finding(0, 1, "B"),
        Finding(1, 3, "A"),
        Finding(3, 4, "B"),
        Finding(5, 7, "B"),
    ]
    assert Detectors([("A", lambda text: [(0, 1), (0, 3)])]).find("abc") == [Finding(0, 3, "A")]
    assert detectors.kinds == ("A", "B")


def test_an_app_adds_and_removes_kinds():
    assert found("T-9 ann@example.org", STANDARD.with_detector("TICKET", spans_of("T-9")).without("EMAIL")) == [
        ("TICKET", "T-9")
    ]
    assert "TICKET" not in STANDARD.kinds
    with pytest.raises(InvalidInput, match="in capitals"):
        STANDARD.with_detector("ticket", spans_of("T"))
    with pytest.raises(InvalidInput, match="EMAIL"):
        STANDARD.without("MAIL")


def test_what_has_no_letter_or_digit_is_no_finding():
    assert Detectors([("A", lambda text: [(0, 2), (3, 3)])]).find("-- ab") == []


@given(st.text(alphabet="ab1@.:-/ A+()\n[é王", max_size=80))
def test_findings_are_in_order_and_do_not_overlap(text):
    findings = STANDARD.find(text)
    ends = [0, *(finding.end for finding in findings)]
    assert all(
        0 <= end <= finding.start < finding.end <= len(text) for end, finding in zip(ends, findings, strict=False)
    )


# ---------------------------------------------------------------- standard detectors


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("write to o'neil@mail.example.org.", ("EMAIL", "o'neil@mail.example.org")),
        ("'ann@example.org'", ("EMAIL", "ann@example.org")),
        ("ann [at] example [dot] org", ("EMAIL", "ann [at] example [dot] org")),
        ("+1 650 555 0199!", ("PHONE", "+1 650 555 0199")),
        ("IBAN DE89 3704 0044 0532 0130 00 today", ("BANK_ACCOUNT", "DE89 3704 0044 0532 0130 00")),
        ("4111 1111 1111 1111 09/28", ("CARD", "4111 1111 1111 1111")),
        ("SSN 137 21 5901", ("NATIONAL_ID", "137 21 5901")),
        ("from 203.0.113.9:", ("IP", "203.0.113.9")),
        ("(2001:db8::1)", ("IP", "2001:db8::1")),
        ("00:1b:44:11:3a:b7", ("MAC", "00:1b:44:11:3a:b7")),
        ("see (https://u:p@example.org/a).", ("URL", "https://u:p@example.org/a")),
        ("key sk-abcdefGHIJKL0123456789", ("API_KEY", "sk-abcdefGHIJKL0123456789")),
        ("PASSWORD='s3cret!!'", ("PASSWORD", "s3cret!!")),
        ("born on 3 May 1979", ("BIRTH_DATE", "3 May 1979")),
        ("at 9 Old Mill Road, Leeds LS1 4AP today", ("ADDRESS", "9 Old Mill Road, Leeds LS1 4AP")),
        ("Dr. Who-Else called", ("PERSON", "Who-Else")),
        ("thanks, Mark Johnson", ("PERSON", "Mark Johnson")),
        ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", ("CRYPTO_WALLET", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa")),
    ],
)
def test_each_kind_is_found_with_its_exact_span(text, finding):
    assert found(text) == [finding]


@pytest.mark.parametrize(
    "text",
    [
        "DE89 3704 0044 0532 0130 01 has a wrong checksum",
        "4111 1111 1111 1112 has a wrong last digit",
        "version 10.1.2.3 and 127.0.0.1 and 300.1.1.1",
        "std::map<a::b> at 12:30:45",
        "https://example.org/a?page=2",
        "password: ${DB_PASSWORD}, password: ********",
        "the mark on the rose, in may",
        "token: /usr/share/dict/words1234",
        "the token limit of gpt-4o-mini-2024-07-18 and of claude-3-5-sonnet-20241022",
    ],
)
def test_look_alikes_are_left_alone(text):
    assert found(text) == []


NASTY = [
    "a", "1 ", "1-", "a@a.", "http://a:", "AA11 ", "tel 012 345 678, ", "password: ", "born 1.", "1 rue De ", "Via Aa ",
    "Mr Aa van de ", "北京市", "eyJaaaaaaaa.", "ssn 1 ", "Anna-",
]  # fmt: skip


@pytest.mark.parametrize("unit", NASTY)
def test_long_nasty_text_ends(unit):
    text = unit * (100_000 // len(unit))
    assert all(finding.end <= len(text) for finding in STANDARD.find(text))


# ---------------------------------------------------------------- Presidio


class Analyzer:
    calls = 0

    def analyze(self, text, language, entities):
        self.calls += 1
        assert language == "de"
        assert "PERSON" in entities
        return [
            SimpleNamespace(entity_type="PERSON", start=0, end=3, score=0.85),
            SimpleNamespace(entity_type="LOCATION", start=8, end=12, score=0.85),
            SimpleNamespace(entity_type="PERSON", start=8, end=12, score=0.2),
        ]


def test_presidio_finds_what_it_is_sure_of_and_is_asked_once():
    analyzer = Analyzer()
    detectors = Detectors(presidio_detectors("de", analyzer=analyzer).items())
    assert found("Ulf aus Kiel", detectors) == [("PERSON", "Ulf"), ("ADDRESS", "Kiel")]
    assert analyzer.calls == 1


def test_presidio_that_is_not_there_is_told_with_the_cure(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "presidio_analyzer", None)
    with pytest.raises(InvalidInput, match="pip install"):
        presidio_detectors()
    with pytest.raises(InvalidInput, match="least_score"):
        presidio_detectors(least_score=2, analyzer=Analyzer())
