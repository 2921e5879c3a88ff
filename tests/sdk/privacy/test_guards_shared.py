"""Which generations are watched as one: those that keep the same secrets or the same private text."""

import pytest

from edgedraft.errors import LeakError
from edgedraft.privacy import guards as guards_module
from edgedraft.privacy.guard import Guard, GuardLimits
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


def test_a_system_message_in_common_makes_no_one_matter_of_two_prompts(desk):
    """What one of them says in public must not free it in the other."""
    system = Message("system", "You are the assistant of a small law firm in a quiet town.")
    first = desk.guard(Prompt((system, Message.public("user", "What does Blue Heron Trading do?"))))
    asked = Prompt((system, Message.marked("user", "Tell [[Blue Heron Trading]] about it.", private=True)))
    second = desk.guard(asked)
    assert second is not first
    with pytest.raises(LeakError):
        second.check_text("Blue Heron Trading will")


def test_two_matters_that_turn_out_to_be_one_forget_nothing_that_left(desk):
    def tell(guard: Guard, text: str) -> bool:
        session, trail = guard.session(), guard.root()
        for char in text.encode():
            trail, held = guard.step(trail, char)
            if held or session.leave(char, trail):
                return False
        return True

    one, other = desk.guard(private("x", secret="4929123477")), desk.guard(private("x", secret="8123456709"))
    assert one is not other
    assert tell(other, "first 8123")
    both = Prompt((Message("user", (Part("4929123477", secret=True), Part(" 8123456709", secret=True))),))
    assert desk.guard(both) is one
    assert not tell(one, "then 4567")
    assert not tell(other, "then 4567")


def test_what_left_of_a_secret_counts_on_when_its_guard_is_forgotten(desk, monkeypatch):
    monkeypatch.setattr(guards_module, "KEPT", 1)
    monkeypatch.setattr(guards_module, "SPENT_KEPT", 2)

    def tell(secret: str, text: bytes) -> list[bool]:
        guard = desk.guard(private("x", secret=secret))
        session, trail, held = guard.session(), guard.root(), []
        for char in text:
            trail, _ = guard.step(trail, char)
            held.append(session.leave(char, trail))
        return held

    assert not any(tell("4929123477", b"4929"))
    assert not any(tell("8123456709", b"8123"))
    assert any(tell("4929123477", b"9123"))
    for number in range(10):
        tell(f"55{number}1837264", b"1837")
    desk.guard(private("x"))
    assert len(desk._guards._spent) == 2


def test_a_prompt_that_comes_again_has_its_guard_however_little_it_says(desk):
    assert desk.guard(private("I am ill.")) is desk.guard(private("I am ill."))
    assert desk.guard(private("I am ill.")) is not desk.guard(private("I am well."))
    told = Prompt((Message("system", (Part(NOTE, private=True),)), Message("user", "When?")))
    assert desk.guard(told) is desk.guard(told)


def test_a_conversation_publishes_what_is_new_and_what_straddles_it(desk):
    guard = Guard([], ["one two three four five six seven"], "Count: one two three", lambda token: bytes([token]))
    guard.extend(public_text="Count: one two three four five")
    guard.check_text("one two three four five")
    with pytest.raises(LeakError):
        guard.check_text("two three four five six")
    guard.extend(public_text="Count: two three four five six")
    guard.check_text("two three four five six")


def test_what_is_published_again_is_not_cut_within_a_word(desk):
    guard = Guard(["ana"], [], "", lambda token: bytes([token]))
    for begun in range(500, 530):
        said = f"{'x' * 40}\nbanana{' y' * ((begun - 6) // 2)}{'z' * (begun % 2)}"
        guard.extend(public_text=said)
        guard.extend(public_text=f"{said} more")
    with pytest.raises(LeakError):
        guard.check_text("ana")
