"""Placeholders and the way back: what goes through a cloak comes out as it was, however the stream is cut."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.privacy.cloak import Cloak
from edgedraft.privacy.detect import Finding
from edgedraft.privacy.restore import Restorer, mention_key
from edgedraft.privacy.values import Secret, form_of
from edgedraft.privacy.view import make_views
from edgedraft.prompt import Message, Mode, Prompt

VALUES = {
    mention_key(placeholder): value
    for placeholder, value in {
        "[PERSON_1]": "Alice",
        "[PERSON_12]": "Bob",
        "[EMAIL_1]": "a@b.c",
        "[FIRST_NAME_1]": "Al",
        "[IP_2]": "10.0.0.9",
    }.items()
}


def restored(text: str, cuts: list[int] = ()) -> str:
    restorer = Restorer(VALUES)
    ends = [*sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    shown = [restorer.push(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return "".join(shown) + restorer.finish()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Dear [PERSON_1],", "Dear Alice,"),
        ("[person_1]'s cat, [Person_1's] dog", "Alice's cat, Alice's dog"),
        ("[ PERSON 1 ] and [PERSON-12] and [PERSON1]", "Alice and Bob and Alice"),
        ("Person_1, Person_12 and PERSON_01.", "Alice, Bob and Alice."),
        ("_PERSON_1_, __Person_12__, [PERSON_1]_ and PERSON_1____", "_Alice_, __Bob__, Alice_ and Alice____"),
        ("x_PERSON_1, PERSON_1_2 and PERSON_1_x", "x_PERSON_1, PERSON_1_2 and PERSON_1_x"),
        ("[PERSON_１] و[PERSON_١٢]", "Alice وBob"),
        (r"\[PERSON\_1\], **[PERSON_1]**, `[PERSON\_1]`", "Alice, **Alice**, `Alice`"),
        ("[First Name 1] <First_Name_1>", "Al <Al>"),
        ("two [PERSON_1s]", "two Alices"),
        ("[[PERSON_1]](mailto:[EMAIL_1])", "[Alice](mailto:a@b.c)"),
        ("[PERSON_3] [PERSON] [PERSON_] Person 1 my_person_1 person_1x", None),
        ("a[0] = b[person], [see note 1], \\[x\\]", None),
        ("Mail [EMAIL_1", "Mail a@b.c"),
        ("Dear [EMAI", "Dear "),
        ("Dear [PERSON_12", "Dear Bob"),
        ("x[p", None),
        ("a [", None),
        ("def compare(person_1, first_name_1):\n    return person_1 == email_1", None),
        ("row.PERSON_1, $PERSON_1, ${PERSON_1}, {PERSON_1}", None),
        ("PERSON_1 = PERSON_12('a'); EMAIL_1=PERSON_1.name", None),
        ("I met PERSON_1. And Person_12 (of EMAIL_1), PERSON_1 too.", "I met Alice. And Bob (of a@b.c), Alice too."),
        ("It was PERSON_1", "It was Alice"),
        ("It was PERSON_1.", "It was Alice."),
        ("I like per", None),
        ("end \\", None),
    ],
)
def test_placeholders_as_models_write_them(written, shown):
    assert restored(written) == (written if shown is None else shown)


def test_one_that_may_go_on_is_dropped_at_the_end_rather_than_taken_for_another():
    restorer = Restorer({"person1": "Alice", "person12": "Bob"})
    assert restorer.push("Dear [PERSON_1") + restorer.finish() == "Dear "


PIECES = st.sampled_from(
    [
        "[",
        "]",
        "\\",
        "_",
        " ",
        "'s",
        "s",
        "PERSON",
        "person",
        "1",
        "2",
        "12",
        "[PERSON_1]",
        "EMAIL_1",
        "FIRST",
        "NAME",
        "__",
        "x",
        "é",
        "\n",
        "-",
        ".",
        "(",
        "=",
        "$",
        "{",
        "Person_1",
    ]
)


@given(st.lists(PIECES, max_size=25).map("".join), st.lists(st.integers(0, 120), max_size=12))
def test_how_a_stream_is_cut_does_not_matter(text, cuts):
    assert restored(text, cuts) == restored(text)


@given(st.lists(PIECES, max_size=25).map("".join))
def test_nothing_is_shown_that_turns_out_to_be_a_placeholder(text):
    restorer, shown = Restorer(VALUES), ""
    for char in text:
        shown += restorer.push(char)
        fork = restorer.fork()
        assert (shown + fork.push(" .") + fork.finish()).startswith(shown)
    assert (shown + restorer.finish()) == restored(text)


def test_a_fork_leaves_the_stream_as_it_was():
    restorer = Restorer(VALUES)
    assert restorer.push("Hi [PER") == "Hi "
    fork = restorer.fork()
    assert fork.push("SON_12]") + fork.finish() == "Bob"
    assert restorer.push("SON_1]") == "Alice"


# ---------------------------------------------------------------- cloak


def cloaked(cloak: Cloak, text: str, *values: tuple[str, str]) -> str:
    findings = sorted(Finding(text.index(value), text.index(value) + len(value), kind) for value, kind in values)
    return cloak.hide(text, findings)


def test_the_same_value_has_the_same_placeholder_in_all_texts_and_spellings():
    cloak = Cloak()
    text = "Pay 4111 1111 1111 1111 for Eve Ray, not 4111-1111-1111-1111."
    values = (("4111 1111 1111 1111", "CARD"), ("Eve Ray", "PERSON"))
    assert cloaked(cloak, text, *values) == "Pay [CARD_1] for [PERSON_1], not [CARD_1]."
    assert cloak.hide("EVE RAY has 4111111111111111; Eve, a ray, everything") == (
        "[PERSON_1] has [CARD_1]; [FIRST_NAME_1], a ray, everything"
    )
    assert cloak.hide("ｅve  Ray") == "[PERSON_1]"
    assert [secret.text for secret in cloak.secrets] == ["4111 1111 1111 1111", "Eve Ray"]


def test_what_is_written_differently_is_another_password():
    cloak = Cloak()
    assert cloaked(cloak, "it is Blue7", ("Blue7", "PASSWORD")) == "it is [PASSWORD_1]"
    hidden = cloak.hide("is it blue7 or Blue7?")
    assert hidden == "is it [PASSWORD_2] or [PASSWORD_1]?"
    assert cloak.restore(hidden) == "is it blue7 or Blue7?"


def test_a_short_value_is_hidden_as_a_word_and_a_long_one_everywhere():
    cloak = Cloak()
    cloak.learn([Secret("Al", "SECRET"), Secret("hunter22", "SECRET"), Secret("王伟", "SECRET")])
    assert (
        cloak.hide("Al, also aL: myhunter22x 请王伟来") == "[SECRET_1], also [SECRET_4]: my[SECRET_2]x 请[SECRET_3]来"
    )


def test_what_looks_like_a_placeholder_in_the_prompt_comes_back_as_it_is():
    cloak = Cloak()
    text = "Ann Lee wrote [PERSON_1], [TEXT_1] and person_2."
    hidden = cloaked(cloak, text, ("Ann Lee", "PERSON"))
    assert hidden == "[PERSON_1] wrote [TEXT_1], [TEXT_2] and person_2."
    assert cloak.restore(hidden) == text
    assert cloaked(cloak, "and Bo Ray", ("Bo Ray", "PERSON")) == "and [PERSON_3]"  # 2 stands in the text
    assert cloak.restore("[PERSON_3]") == "Bo Ray"


WORDS = st.lists(
    st.sampled_from(
        [
            "Ann",
            "Ann Lee",
            "lee",
            "a@b.co",
            "12 34",
            "1234",
            "[PERSON_1]",
            "person_1",
            "[",
            "]",
            "\\",
            "_",
            " ",
            ", ",
            "x",
            "TEXT_1",
            "é",
        ]
    ),
    max_size=16,
)


@given(st.data(), WORDS, WORDS)
def test_a_cloaked_conversation_comes_back(data, first, second):
    cloak = Cloak()
    for words in (first, second):
        text = "".join(words)
        findings: list[Finding] = []
        position = 0
        for word in words:
            end = position + len(word)
            if any(map(str.isalnum, word)) and "_" not in word and data.draw(st.booleans()):
                # Kinds whose spelling counts: the others come back as they were spelled first.
                findings.append(Finding(position, end, data.draw(st.sampled_from(["SECRET", "PASSWORD", "IP_NAME"]))))
            position = end
        hidden = cloak.hide(text, findings)
        for finding in findings:
            assert text[finding.start : finding.end] not in hidden.split()
        restorer = cloak.restorer()
        cuts = sorted(data.draw(st.lists(st.integers(0, len(hidden)), max_size=8)))
        pieces = [hidden[start:end] for start, end in zip([0, *cuts], [*cuts, len(hidden)], strict=True)]
        assert "".join(map(restorer.push, pieces)) + restorer.finish() == text


@given(st.lists(st.sampled_from(["Ann Lee", "ann lee", "12-34-56", "123456", " and ", ". "]), max_size=8).map(" ".join))
def test_values_that_count_in_any_spelling_come_back_in_the_first(text):
    cloak = Cloak()
    cloak.learn([Secret("Ann Lee", "PERSON"), Secret("123456", "PHONE")])
    hidden = cloak.hide(text)
    assert not any(value in form_of(hidden) for value in ("annlee", "123456"))
    assert form_of(cloak.restore(hidden)) == form_of(text)


def test_thousands_of_values_in_a_long_text_are_hidden():
    cloak = Cloak()
    cloak.learn(Secret(f"user{number}@example.org", "EMAIL") for number in range(3000))
    hidden = cloak.hide(" ".join(f"User{number}@example.org" for number in range(3000)))
    assert hidden == " ".join(f"[EMAIL_{number + 1}]" for number in range(3000))


def test_no_two_values_share_a_placeholder():
    for marked in (
        "Write to [[anna@corp.example|e-mail]] and cc bob@other.example.",
        "[[Zoltan|first name]] met [[Maria Lindqvist|person]]. Then Maria left.",
    ):
        prompt = Prompt.marked(marked)
        views = make_views(prompt, Mode.CLOAKED)
        assert views.cloak.restore(views.public.messages[0]["content"]) == prompt.messages[0].text


def test_a_long_name_is_hidden_in_any_spelling_and_a_short_one_as_it_is():
    cloak = Cloak()
    cloak.learn([Secret("Rose Lindqvist", "PERSON")])
    assert cloak.hide("LINDQVIST wrote, Rose read: a rose") == "[LAST_NAME_1] wrote, [FIRST_NAME_1] read: a rose"
    assert cloak.hide("Lindqvists cat, lindqvist_2, getLindqvist, lindqvist88, L\u200bindqvist") == (
        "[LAST_NAME_1]s cat, [LAST_NAME_1]_2, get[LAST_NAME_1], [LAST_NAME_1]88, [LAST_NAME_1]"
    )


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        (Secret("Andrew Cooper", "PERSON"), "Shorten and rewrite it: cooperation, recooper, coop erates"),
        (Secret("Martin Porter", "PERSON"), "Be smart in your answer, reporter. Export ers and martini, art in"),
        (Secret("Walker", "PERSON"), "a skywalker, walk error, Walkerville"),
        (Secret("sesame", "PASSWORD"), "these same, theses amend, sesameseed"),
        (Secret("Ann Lee", "PERSON"), "Joann leeway, an nlee, joann lee"),
        (Secret("blue lagoon", "SECRET"), "bluel agoon, trueblue lagoon, blue lagoony"),
    ],
)
def test_words_of_a_name_are_not_found_in_and_across_other_words(secret, text):
    cloak = Cloak()
    cloak.learn([secret])
    assert cloak.hide(text) == text


@given(
    st.lists(st.sampled_from(["a", "s", "an", "andre", "andrew", "drew", "w", "rite", " ", "\n"]), max_size=20).map(
        "".join
    )
)
def test_a_name_of_letters_is_found_as_a_word_alone(text):
    cloak = Cloak()
    cloak.learn([Secret("andrew", "PERSON")])
    assert cloak.hide(text) == re.sub(r"\bandrew(?=s?\b)", "[PERSON_1]", text)


@pytest.mark.parametrize("name", ["José Pérez", "Zoë Brontë", "Nguyễn Thị Ánh", "Łukasz Wójcik", "सीता देवी"])
@pytest.mark.parametrize("marked_as", ["NFC", "NFD"])
@pytest.mark.parametrize("written_as", ["NFC", "NFD"])
def test_each_word_of_a_name_is_hidden_with_its_accents_in_any_form(name, marked_as, written_as):
    cloak = Cloak()
    cloak.learn([Secret(unicodedata.normalize(marked_as, name), "PERSON")])
    text = unicodedata.normalize(written_as, f"{name}: {' and '.join(name.split())}!")
    hidden = cloak.hide(text)
    assert re.fullmatch(r"\[PERSON_1\]: \[FIRST_NAME_1\] and (\[NAME_1\] and )?\[LAST_NAME_1\]!", hidden)
    assert unicodedata.normalize(written_as, cloak.restore(hidden)) == text


@pytest.mark.parametrize("marked", ["Mia Lind", "MIA LIND", "mia lind"])
def test_a_short_name_is_hidden_in_all_the_ways_names_are_written(marked):
    cloak = Cloak()
    cloak.learn([Secret(marked, "PERSON")])
    assert cloak.hide("Mia and LIND, MIA and Lind") == (
        "[FIRST_NAME_1] and [LAST_NAME_1], [FIRST_NAME_1] and [LAST_NAME_1]"
    )


def test_a_conversation_that_goes_on_keeps_its_placeholders():
    turns = [
        "Write to [[Maria Lindqvist|person]].",
        "And to [[Jan Peter Smit|person]], [[a@b.co|email]].",
        "And [[Ana de la Cruz Ruiz|person]], [[Eve Ray|person]] and [[c@d.co|email]].",
    ]
    seen: list[str] = []
    for count in range(1, len(turns) + 1):
        prompt = Prompt(tuple(Message.marked("user", turn) for turn in turns[:count]))
        contents = [message["content"] for message in make_views(prompt, Mode.CLOAKED).public.messages]
        assert contents[:-1] == seen
        seen = contents
    assert seen[0] == "Write to [PERSON_1]."


def test_a_first_name_before_the_whole_name_is_of_the_same_person():
    cloak = Cloak()
    cloak.learn([Secret("Bo", "PERSON"), Secret("Maria", "PERSON"), Secret("Maria Lindqvist", "PERSON")])
    assert cloak.hide("Bo, Maria Lindqvist, Maria") == "[PERSON_1], [PERSON_2], [FIRST_NAME_2]"


def test_names_in_code_that_look_like_placeholders_stay_as_they_are():
    cloak = Cloak()
    text = "Ann Lee wrote def f(person_1): return person_1"
    assert cloaked(cloak, text, ("Ann Lee", "PERSON")) == "[PERSON_1] wrote def f(person_1): return person_1"
    assert cloak.restore("def f(person_1): return person_1") == "def f(person_1): return person_1"


@pytest.mark.parametrize(
    ("name", "kind", "text", "hidden"),
    [
        ("Ana Sofía Ríos", "PERSON", "Ana or Sofía?", "[FIRST_NAME_1] or [NAME_1]?"),
        ("Lee-Ann O'Hara", "PERSON", "Lee-Ann, or Ann, O'Hara", "[FIRST_NAME_1], or [NAME_2], [LAST_NAME_1]"),
        ("Blue Heron", "SECRET", "the Heron, a heron, is blue", "the [NAME_2], a heron, is blue"),
        ("open sesame", "SECRET", "open the door", "open the door"),
    ],
)
def test_each_word_that_tells_of_a_name_is_hidden(name, kind, text, hidden):
    cloak = Cloak()
    cloak.learn([Secret(name, kind)])
    assert cloak.hide(text) == hidden
    assert cloak.restore(hidden) == text
