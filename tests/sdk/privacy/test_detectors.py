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


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("license key: abcd-1234-efgh-5678-ijkl", "abcd-1234-efgh-5678-ijkl"),
        ("api key live-abcd-1234-efgh-5678", "live-abcd-1234-efgh-5678"),
        ("token: fish-horse-2381-battery-77", "fish-horse-2381-battery-77"),
        ("access token: qz-1a-xk-9182-pw-0031-zz", "qz-1a-xk-9182-pw-0031-zz"),
        ("the token is `fish-horse-2381-battery-77`", "fish-horse-2381-battery-77"),
        ("api_key=prod.key.9912.abcd.7731", "prod.key.9912.abcd.7731"),
        ("secret: my-super-secret-token-2024", "my-super-secret-token-2024"),
    ],
)
def test_keys_of_small_groups_are_found(text, key):
    assert found(text) == [("API_KEY", key)]


@pytest.mark.parametrize(
    "text",
    [
        "the token limit of claude-3-5-sonnet-20241022",
        "token count for llama-3.1-70b-instruct",
        "The key insight_of_transformers-2017-paper is attention",
        "token sequence_length_2048_batch_16",
    ],
)
def test_names_with_a_version_are_no_keys(text):
    assert found(text) == []


PASSWORDS = {
    "password: summer": "summer",
    "Password: Summer(2024)": "Summer(2024",
    "password: john.smith": "john.smith",
    "Server=x;Password=MyPassword;": "MyPassword",
    'password = "os.getcwd"': "os.getcwd",
    'password: str = "letmein"': "letmein",
    "def f(pwd: Optional[str] = 'letmein'): ...": "letmein",
    "password: str | None = 'letmein'": "letmein",
    "password: data.science": "data.science",
    "password: hello(world is it": "hello(world",
    "password: 123-words-here": "123-words-here",
    "password: Text4me": "Text4me",
    "password: input42": "input42",
    "password: hunter2.password": "hunter2.password",
    "The password is 1700m": "1700m",
    "my pin is 4829": "4829",
    "PIN 4829 is set": "4829",
    "pass is letmein99, not 1700m": "letmein99",
}


@pytest.mark.parametrize("text", PASSWORDS)
def test_passwords_that_look_a_bit_like_code_or_measures_are_found(text):
    assert found(text) == [("PASSWORD", PASSWORDS[text])]


@pytest.mark.parametrize(
    "text",
    [
        "What does `pwd = os.getcwd()` do?",
        "user = User(name=name, password=password)",
        "connect(user='x', password=db_password)",
        "login({ user: u, password: hashedPassword });",
        "def login(user: str, password: str): ...",
        "def login(user: str, password: str = ''): ...",
        "def login(user: str, password: Optional[str] = None): ...",
        "interface User { name: string; password?: string; }",
        "CREATE TABLE users (id INT, password VARCHAR(255))",
        "CREATE TABLE users (id INT, password CHAR(60) NOT NULL, age INT)",
        "password = getpass.getpass('Password: ').strip()",
        'password = input("Password: ")',
        "password = os.environ['DB_PASSWORD']",
        "password = generate_password(12)",
        "password = hash(salt)",
        "password: req.body.password,",
        "pwd = config.DB_PWD",
        "{'user': user, 'password': settings.DB_PASS}",
        "password = md5.new(salt + other)",
        "user.password = form.password",
        "const pin = pinMode(13, OUTPUT);",
        "Password: must be at least 8 characters.",
        "Password: 8-16 characters",
        "PIN: 12-16 digits",
        "The mountain pass is 1700m high",
        "The pass is 2500 metres high",
        "pin is 50mm long",
    ],
)
def test_code_and_measures_are_no_passwords(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "call foo(1234567, 890)",
        "Text 100 200 300 400 500 values",
        "Text 120 80 300 455 510 values",
        "Signal 10 20 30 40 50 60",
        "My text 2 3 4 5 6 7 8 9 sort these",
    ],
)
def test_lists_and_arguments_are_no_phone_numbers(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Call 4 1 5 5 5 5 0 1 3 2", "4 1 5 5 5 5 0 1 3 2"),
        ("Ring 6 12 34 56 78 tonight", "6 12 34 56 78"),
        ("Text 33 6 12 34 56 78", "33 6 12 34 56 78"),
        ("Ring 20 12 34 56", "20 12 34 56"),
        ("Call 8 912 345 67 89", "8 912 345 67 89"),
        ("Звоните: 8 (912) 345-67-89", "8 (912) 345-67-89"),
        ("Call 415-555-01-32-7", "415-555-01-32-7"),
        ("phone(1234567)", "1234567"),
        ("call me (1234567)", "(1234567"),
    ],
)
def test_phone_numbers_in_many_groups_are_found(text, number):
    assert found(text) == [("PHONE", number)]


@pytest.mark.parametrize(
    "text",
    [
        "git clone git@github.com:psf/requests.git",
        "git clone git@code.example.org:~ann/tool",
        "git clone ssh://git@code.example.org/ann/tool.git",
        "ssh -T git@github.com",
        "curl http://localhost:8080/api?key=YOUR_API_KEY",
        "curl https://api.example.com/v1?page=2&api_key=MY_KEY_HERE",
        "https://api.example.com/?token=xxxxxxxx and https://api.example.com/?token=sk-********",
        "https://api.example.com/?api_key=<your key> or ?api_key={api_key}",
        "https://api.example.com/?api_key=your_api_key or https://api.example.com/?api_key=$API_KEY",
    ],
)
def test_remotes_and_placeholders_are_no_addresses_and_secrets(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("mail git@example.org: it", ("EMAIL", "git@example.org")),
        ("mail ann@github.com:", ("EMAIL", "ann@github.com")),
        (
            "https://a.example.com/?key=YOUR_KEY&token=8f14e45f",
            ("URL", "https://a.example.com/?key=YOUR_KEY&token=8f14e45f"),
        ),
        ("https://a.example.com/?key=ABCD-EFGH-IJKL", ("URL", "https://a.example.com/?key=ABCD-EFGH-IJKL")),
        ("https://u:pw99@example.com/?key=YOUR_KEY", ("URL", "https://u:pw99@example.com/?key=YOUR_KEY")),
    ],
)
def test_what_only_has_a_placeholder_beside_it_is_found(text, finding):
    assert found(text) == [finding]


@pytest.mark.parametrize(
    "text",
    [
        "passport application form DS-11 2024 what do I need?",
        "passport renewal 2024-2025",
        "Mozart was born on 27 January 1756.",
        "born 1879-03-14, and 14.3.1879",
    ],
)
def test_years_make_no_national_number_and_history_no_birth_date(text):
    assert found(text) == []


def test_a_national_number_and_a_birth_date_with_such_a_year_are_found():
    assert found("SSN 137 21 2004") == [("NATIONAL_ID", "137 21 2004")]
    assert found("born 1900-01-02") == [("BIRTH_DATE", "1900-01-02")]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("12 Baker Street, London. How far", "12 Baker Street, London"),
        ("12 Baker Street, London\nHow far", "12 Baker Street, London"),
        ("7 Hill Road, Bath. How far", "7 Hill Road, Bath"),
        ("14 rue de la Paix. Nous allons", "14 rue de la Paix"),
        ("14 rue de la Paix\nBonjour", "14 rue de la Paix"),
        ("Via Roma 3, Milano. Poi", "Via Roma 3, Milano"),
        ("5 St. James Street, St. Louis. How far", "5 St. James Street, St. Louis"),
        ("14 rue St.-Denis, 75002 Paris. Il", "14 rue St.-Denis, 75002 Paris"),
        ("Via G. Verdi 3, Milano", "Via G. Verdi 3, Milano"),
        ("ul. Marsz. Piłsudskiego 3, Łódź", "ul. Marsz. Piłsudskiego 3, Łódź"),
        ("Calle Dr. Fleming 4, Madrid", "Calle Dr. Fleming 4, Madrid"),
        ("9 Old Mill Road,\nLeeds LS1 4AP", "9 Old Mill Road,\nLeeds LS1 4AP"),
    ],
)
def test_an_address_ends_with_its_sentence(text, address):
    assert found(text) == [("ADDRESS", address)]


NASTY = [
    "a", "1 ", "1-", "a@a.", "http://a:", "AA11 ", "tel 012 345 678, ", "password: ", "born 1.", "1 rue De ", "Via Aa ",
    "Mr Aa van de ", "北京市", "省市", "省市" * 10 + "中" * 13 + "路1号 ", "都市", "password: a.", "token: a-1",
    "text 10 ", "a@a.a:", "http://a?key=A_", "eyJaaaaaaaa.", "ssn 1 ", "Anna-",
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
