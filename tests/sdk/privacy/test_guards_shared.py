"""Which generations are watched as one: those that keep the same secrets or the same private text."""

import pytest

from edgedraft.privacy import guards as guards_module
from edgedraft.privacy.guard import GuardLimits
from edgedraft.privacy.guards import Guards
from edgedraft.privacy.view import make_views
from edgedraft.prompt import Message, Mode, Part, Prompt

NOTE = "The meeting is at noon on the old bridge, and nobody knows."
LIMITS = GuardLimits()


def private(*texts: str, secret: str = "") -> Prompt:
    parts = [Part("Read this: "), *(Part(f"{text} ", private=True) for text in texts)]
    if secret:
        parts.append(Part(secret, secret=True))
    return Prompt((Message("user", tuple(parts)),))


class Desk:
    def __init__(self) -> None:
        self._guards = Guards(lambda token: bytes([token]))

    def guard(self, prompt: Prompt, limits: GuardLimits = LIMITS, mode: Mode = Mode.SEALED):
        views = make_views(prompt, mode)
        return self._guards.guard(views, views.public.text, limits)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_same_prompt_has_the_same_guard(desk):
    assert desk.guard(private(NOTE)) is desk.guard(private(NOTE))


def test_a_secret_or_a_long_text_in_common_makes_one_matter_of_two_prompts(desk):
    first = desk.guard(private("Short.", secret="4929123477"))
    assert desk.guard(private("Other.", secret="4929123477")) is first
    assert desk.guard(private("Other.", secret="4929000000")) is not first


def test_short_texts_in_common_do_not(desk):
    assert desk.guard(private("Yes.", secret="4929123477")) is not desk.guard(private("Yes.", secret="1234567890"))


def test_a_conversation_goes_on_under_its_guard(desk):
    first = private(NOTE)
    answer = Message("assistant", (Part("Then be there in time.", private=True),))
    again = Prompt((*first.messages, answer, Message("user", "When do I have to leave?")))
    assert desk.guard(again) is desk.guard(first)


def test_cloaked_and_sealed_watch_over_a_secret_together(desk):
    asked = private("x", secret="4929123477")
    assert desk.guard(asked, mode=Mode.CLOAKED) is desk.guard(asked)


def test_other_limits_are_another_guard(desk):
    assert desk.guard(private(NOTE)) is not desk.guard(private(NOTE), GuardLimits(private_words=3))


def test_those_used_last_are_remembered(desk, monkeypatch):
    monkeypatch.setattr(guards_module, "KEPT", 2)
    first, second = desk.guard(private(f"1 {NOTE}")), desk.guard(private(f"2 {NOTE}"))
    assert desk.guard(private(f"1 {NOTE}")) is first
    desk.guard(private(f"3 {NOTE}"))
    assert desk.guard(private(f"1 {NOTE}")) is first
    assert desk.guard(private(f"2 {NOTE}")) is not second


def test_what_left_for_one_question_counts_for_the_next(desk):
    """A secret does not leave piece by piece over many questions about one note."""
    left: list[str] = []
    for piece in ("4929", "1234", "77"):
        guard = desk.guard(private("Card.", secret="4929123477"))
        session, trail = guard.session(), guard.root()
        for char in f" {piece} ".encode():
            trail, held = guard.step(trail, char)
            if not held and not session.leave(char, trail):
                left.append(chr(char))
    assert len("".join(left).replace(" ", "")) < len("4929123477")
