"""What each side sees of a prompt in each mode, and what may not stand in public text."""

import re

import pytest

from edgedraft.errors import ForbiddenMode, InvalidInput, LeakError
from edgedraft.privacy.detect import Detectors
from edgedraft.privacy.guard import Guard
from edgedraft.privacy.policy import Policy
from edgedraft.privacy.view import WITHHELD, make_views
from edgedraft.prompt import Message, Mode, Part, Prompt


def content(view) -> list[str]:
    return [message["content"] for message in view.messages]


def test_sealed_withholds_private_text_whatever_its_length():
    for private in ("x", "a long note\n" * 50):
        prompt = Prompt(
            (Message("system", private), Message("user", (Part("Sum up "), Part(private, private=True), Part("."))))
        )
        views = make_views(prompt, Mode.SEALED)
        assert content(views.public) == [WITHHELD, f"Sum up {WITHHELD}."]
        assert content(views.device) == [private, f"Sum up {private}."]
        assert views.private_texts == (private, private)
        assert prompt.public_view() == views.public
    assert Prompt.of("all of it").public_view().text == f"user: {WITHHELD}"
    assert Prompt(raw="all of it").public_view().text == WITHHELD


def test_adjacent_private_parts_are_withheld_as_one():
    prompt = Prompt(
        (Message("user", (Part("a", private=True), Part("b1", secret=True), Part(""), Part("c", private=True))),)
    )
    views = make_views(prompt, Mode.SEALED)
    assert content(views.public) == [WITHHELD]
    assert views.private_texts == ("ab1c",)
    assert [(secret.text, secret.kind) for secret in views.secrets] == [("b1", "SECRET")]


def test_secrets_are_what_is_marked_and_what_is_found():
    prompt = Prompt.marked("My code is [[blue-7|door code]], mail ann@example.org", private=True)
    views = make_views(prompt, Mode.SEALED)
    assert {(secret.text, secret.kind) for secret in views.secrets} == {
        ("blue-7", "DOOR_CODE"),
        ("ann@example.org", "EMAIL"),
    }
    assert "ann@example.org" not in repr(views)
    assert "blue-7" not in repr(views)


def test_cloaked_words_around_a_secret_are_known_to_the_guard():
    kind = Message.marked("user", "The late [[Zo|person]] was kind to us.")
    prompt = Prompt((Message("user", "Nothing here."), kind))
    views = make_views(prompt, Mode.CLOAKED)
    assert views.private_texts == ("The late Zo was kind to us.",)
    guard = Guard((), views.private_texts, views.public.text, str.encode)
    guard.check_text("was kind to us")
    with pytest.raises(LeakError):
        guard.check_text("the late zo was kind")


def test_a_word_that_a_detector_takes_for_a_name_may_stand_in_public_text():
    for private in ("Thank you, dear Rose.", "Rose Miller wrote."):
        detectors = Detectors(
            [("PERSON", lambda text: [match.span() for match in re.finditer("Rose( Miller)?", text)])]
        )
        prompt = Prompt(public="Say it with a rose.", private=private)
        views = make_views(prompt, Mode.SEALED, detectors=detectors)
        assert [secret.text for secret in views.secrets] == re.findall("Rose(?: Miller)?", private)
        assert "rose" in views.public.text
    with pytest.raises(LeakError):
        make_views(Prompt.marked("A rose for [[Rose|person]]"), Mode.SEALED, detectors=detectors)
    with pytest.raises(LeakError):
        make_views(Prompt(public="To rose miller", private=private), Mode.SEALED, detectors=detectors)


@pytest.mark.parametrize("mode", [Mode.SEALED, Mode.CLOAKED])
@pytest.mark.parametrize(
    "text",
    [
        "Pin [[4711]], that is pin4711",
        "[[47114711]] reads four seven one one four seven one one",
        "born [[12 March 1984]], or 12/03/1984",
    ],
)
def test_a_secret_in_a_spelling_that_cannot_be_hidden_is_refused(text: str, mode: Mode):
    with pytest.raises(LeakError, match="secret") as error:
        make_views(Prompt.marked(text), mode)
    assert "4711" not in str(error.value)
    assert make_views(Prompt.marked("Pin [[4711]] is no 47, and no 1984"), mode)


def test_public_text_may_name_people_who_are_not_private():
    prompt = Prompt(public="Who was Marie Curie? Ask Alice and Bob.", private="Friday at ten.")
    assert "Marie Curie" in make_views(prompt, Mode.SEALED).public.text
    with pytest.raises(LeakError):
        make_views(Prompt(public="Who was Marie Curie?", private="My name is Marie Curie."), Mode.SEALED)


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        (Prompt(public="Mail ann@example.org", private="now"), r"messages\[0\], characters 5 to 20"),
        (Prompt.marked("Tell [[Zorblax]] that zorb-lax is late"), r"messages\[0\], characters 18 to 26"),
        (
            Prompt((Message("user", (Part("card 4111 1111 1111 "), Part("1111", private=True))),)),
            r"messages\[0\], char",
        ),
        (
            Prompt((Message("user", "ann@example.org"), Message.public("user", "I am ANN@EXAMPLE.ORG"))),
            r"messages\[1\]",
        ),
    ],
)
def test_a_secret_in_public_text_is_refused_by_place_and_never_shown(prompt, place):
    with pytest.raises(LeakError, match=place) as caught:
        make_views(prompt, Mode.SEALED)
    assert not any(value in str(caught.value).lower() for value in ("ann@", "zorb", "4111"))


def test_kinds_that_an_app_holds_for_public_may_stand_in_public_text():
    prompt = Prompt(public="Write to press@example.org.", private="a note")
    with pytest.raises(LeakError, match="email"):
        make_views(prompt, Mode.SEALED)
    views = make_views(prompt, Mode.SEALED, detectors=Detectors.standard().without("EMAIL"))
    assert content(views.public) == [f"Write to press@example.org.\n\n{WITHHELD}"]


def test_a_detector_of_the_app_counts():
    def ticket(text):
        at = text.find("T-")
        return [(at, at + 5)] if at >= 0 else []

    detectors = Detectors.standard().with_detector("TICKET", ticket)
    views = make_views(Prompt.of("see T-123"), Mode.CLOAKED, detectors=detectors)
    assert content(views.public) == ["see [TICKET_1]"]
    with pytest.raises(LeakError, match="ticket"):
        Prompt(public="see T-123").public_view(detectors=detectors)


def test_open_shows_all_and_local_nothing():
    prompt = Prompt(public="Mail", private="ann@example.org")
    views = make_views(prompt, Mode.OPEN)
    assert views.public == views.device
    assert content(views.public) == ["Mail\n\nann@example.org"]
    views = make_views(prompt, Mode.LOCAL)
    assert content(views.device) == ["Mail\n\nann@example.org"]
    assert views.public.text == ""


def test_cloaked_shows_both_sides_the_same_placeholders():
    prompt = Prompt(
        (
            Message("user", "I met Jessica Alvarez."),
            Message(
                "user", (Part("Write to jessica  alvarez, jess@example.org, about "), Part("Project Nix", secret=True))
            ),
            Message.public("user", "Did Jessica answer from JESS@example.org?"),
        )
    )
    views = make_views(prompt, Mode.CLOAKED)
    assert views.public == views.device
    assert content(views.public) == [
        "I met [PERSON_1].",
        "Write to [PERSON_1], [EMAIL_1], about [SECRET_1]",
        "Did [FIRST_NAME_1] answer from [EMAIL_1]?",
    ]
    assert views.cloak.restore("Dear [FIRST_NAME_1]") == "Dear Jessica"
    raw = make_views(Prompt(raw="mail jess@example.org", public=""), Mode.CLOAKED, cloak=views.cloak)
    assert raw.public.raw == "mail [EMAIL_1]"


def test_a_policy_forbids_modes():
    policy = Policy(never={"open", Mode.LOCAL})
    policy.check(Mode.SEALED)
    for mode in (Mode.OPEN, Mode.LOCAL):
        with pytest.raises(ForbiddenMode, match=rf"{mode} is forbidden.*sealed, cloaked"):
            policy.check(mode)
    Policy().check(Mode.OPEN)
    assert Policy(never="open").never == {Mode.OPEN}
    for never in ({"opn"}, set(Mode)):
        with pytest.raises(InvalidInput, match=r"policy\.never"):
            Policy(never=never)


def test_what_a_mark_cuts_out_of_a_finding_leaves_the_rest_cloaked():
    prompt = Prompt.marked("Ship to 9 Old [[Mill]] Road, Leeds now")
    assert content(make_views(prompt, Mode.CLOAKED).public) == ["Ship to [ADDRESS_1][SECRET_1][ADDRESS_2] now"]


@pytest.mark.parametrize(
    "text",
    [
        "My PIN: 1234. [[Ada Ray|person]], [[Bo Ray|person]], [[Cy Ray|person]] and [[Di Ray|person]] will meet.",
        "PIN: 1234. Do this:\n1. wash\n2. dry\n3. fold\n4. store",
        "PIN: 1920. Compare the years 2019 and 2020.",
        "The PIN is [[4711]]; rows 47, 1300 and 11, then 14 7 or 11.",
        "I was born 2000-01-02. My rent is 1200 euros.",
        "I was born 12 June 1985. The meeting is on 12 June, or 6/12; room 1206; since June 1985, or 85.",
        "Ask [[Christian|person]] about Christianity and christianised art.",
    ],
)
@pytest.mark.parametrize("mode", [Mode.SEALED, Mode.CLOAKED])
def test_numbers_and_words_that_are_no_secret_are_not_taken_for_one(text: str, mode: Mode):
    private = mode is Mode.CLOAKED  # there all is looked at; in sealed what is not marked is found in private text only
    make_views(Prompt.marked(text, private=private), mode, detectors=None if private else Detectors(()))


def test_numbers_and_dates_of_public_text_are_not_taken_for_a_private_one():
    for public, private in (
        ("Compare the years 2019 and 2020 for me.", "My PIN: 1920."),
        ("Answer in 1 to 2 sentences, at most 34 words.", "My PIN: 1234."),
        ("Today is 12 June 2026. Write a greeting.", "She was born 12 June 1985."),
    ):
        assert public in make_views(Prompt(public=public, private=private), Mode.SEALED).public.text


@pytest.mark.parametrize(
    "text",
    [
        "Thank [[Maria Lindqvist|person]]. Maria is kind.",
        "Thank [[Maria Lindqvist]]. So is Lindqvist!",
        "Thank [[Maria Lindqvist|person]]: MARIA, please",
        "Thank [[maria lindqvist|person]], lindqvist too",
        "Thank [[José Pérez|person]], Jose\u0301 too",
        "Mail [[alice.miller@example.org|email]]; her login is alice.miller there.",
        "Go to [[12 Baker Street, London|address]]. How far is Baker Street, London?",
        "Go to [[12 Baker Street, London|address]]. How far is baker-street?",
        "Key [[fish:horse:battery77]], no battery77",
        "Call [[+31 20 624 1111|phone]], no 624-1111",
        "To [[Ana de la Cruz]], or de la Cruz",
    ],
)
def test_a_telling_piece_of_a_marked_secret_may_not_stand_in_public_text(text):
    with pytest.raises(LeakError, match=r"messages\[0\], characters \d+ to \d+ .* a piece of a secret"):
        make_views(Prompt.marked(text), Mode.SEALED)


@pytest.mark.parametrize("public", ["Write to Maria about it.", "Is LINDQVIST ill?"])
def test_a_word_of_a_name_that_is_private_elsewhere_may_not_stand_in_public_text(public):
    with pytest.raises(LeakError, match="piece"):
        make_views(Prompt(public=public, private="Maria Lindqvist is ill."), Mode.SEALED)


@pytest.mark.parametrize(
    "text",
    [
        "Explain to [[Maria Lindqvist]] in a few sentences why the sky is blue.",
        "A rose and a miller for [[Rose Miller|person]], on Rosemary Street with Millerites",
        "Thank [[Ana van Dijk|person]]. The van is blue.",
        "Mail [[alice@example.org|email]], for example about an organ.",
        "Go to [[12 Baker Street, London|address]]. What is there in London? A street with a baker.",
        "Is [[The Merger With Acme]] on? The plan is with us. With love",
        "Born [[12 June 1985|birth date]]; we meet on 12 June.",
        "Sum up: [[The board will sell the company in May for the price of one euro to its sons.]] What is the price?",
    ],
)
def test_words_that_others_say_too_may_stand_in_public_text(text):
    assert WITHHELD in make_views(Prompt.marked(text), Mode.SEALED).public.text


@pytest.mark.parametrize("mode", [Mode.SEALED, Mode.CLOAKED])
def test_a_role_may_not_tell_a_secret(mode):
    text = Message.marked("user", "Thank [[Maria Lindqvist|person]], pin [[bluefish77]].")
    for role in ("maria-lindqvist", "lindqvist", "maria", "bluefish77"):
        with pytest.raises(LeakError, match=r"messages\[1\]\.role"):
            make_views(Prompt((text, Message(role, "Hi"))), mode)
    for role in ("system", "assistant", "tool", "critic", "marianne"):
        make_views(Prompt((text, Message(role, "Hi"))), mode)


def test_a_finding_takes_the_accent_of_its_last_letter_with_it():
    detectors = Detectors([("PERSON", lambda text: [match.span() for match in re.finditer("Jose", text)])])
    prompt = Prompt.of("Jose\u0301 and Jose.")
    assert content(make_views(prompt, Mode.CLOAKED, detectors=detectors).public) == ["[PERSON_1] and [PERSON_1]."]
