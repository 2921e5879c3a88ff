"""What an app says is private: parts, messages, marks, and the wrong ways to say it."""

import pytest

from edgedraft.errors import InvalidInput
from edgedraft.prompt import Message, Part, Prompt


def parts(prompt: Prompt) -> list[tuple[str, bool, bool]]:
    return [(part.text, part.private, part.secret) for message in prompt.messages for part in message.parts]


def test_plain_text_is_private_and_public_text_is_public():
    assert parts(Prompt.of("hello")) == [("hello", True, False)]
    assert parts(Prompt.of([{"role": "system", "content": "be brief"}])) == [("be brief", True, False)]
    assert parts(Prompt((Message.public("user", "hello"),))) == [("hello", False, False)]
    assert Message("user", "hello").text == Message.public("user", "hello").text == "hello"


def test_public_and_private_text_make_one_message():
    prompt = Prompt(public="Answer the question.", private="Who is it?")
    assert parts(prompt) == [("Answer the question.\n\n", False, False), ("Who is it?", True, False)]
    assert prompt.as_dicts() == [{"role": "user", "content": "Answer the question.\n\nWho is it?"}]
    assert parts(Prompt(public="All public.")) == [("All public.", False, False)]
    assert parts(Prompt(private="All private.")) == [("All private.", True, False)]


def test_mappings_may_have_parts_and_are_private_unless_they_say_otherwise():
    content = [
        {"type": "text", "text": "Greet ", "private": False},
        {"text": "my friend "},
        {"text": "Ann", "secret": True, "kind": "person"},
        Part("."),
    ]
    prompt = Prompt.of([{"role": "user", "content": content}])
    assert parts(prompt) == [
        ("Greet ", False, False),
        ("my friend ", True, False),
        ("Ann", True, True),
        (".", False, False),
    ]
    assert prompt.as_dicts() == [{"role": "user", "content": "Greet my friend Ann."}]


def test_marks_make_secrets():
    marked = Prompt.marked(r"Write to [[Ann Lee|person]] or [[bob]], a\[[0\]] | b[c[0]] [[x\|y\]]z]]")
    assert parts(marked) == [
        ("Write to ", False, False),
        ("Ann Lee", True, True),
        (" or ", False, False),
        ("bob", True, True),
        (", a[[0]] | b[c[0]] ", False, False),
        ("x|y]]z", True, True),
    ]
    assert [part.kind for part in marked.messages[0].parts if part.secret] == ["person", "", ""]
    assert parts(Prompt.marked("My note on [[Ann]]", private=True)) == [
        ("My note on ", True, False),
        ("Ann", True, True),
    ]
    assert parts(Prompt.marked(r"C:\dir\file")) == [(r"C:\dir\file", False, False)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a [[b", "mark at 2 that is not closed"),
        ("[[a [[b]]]]", "mark within a mark at 4"),
        ("x [[ ]]", "without a letter"),
    ],
)
def test_wrong_marks_are_told_by_their_place(text, problem):
    with pytest.raises(InvalidInput, match=problem):
        Prompt.marked(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prompt(),
        lambda: Prompt(raw="a", public="b"),
        lambda: Prompt((Message("user", "a"),), raw="a"),
        lambda: Prompt((Message("user", ""),)),
        lambda: Prompt(private=3),
        lambda: Message("", "a"),
        lambda: Message("user", 3),
        lambda: Message("user", ["a"]),
        lambda: Message("user\n", "a"),
        lambda: Message("us er", "a"),
        lambda: Message("<|im_start|>", "a"),
        lambda: Message("r" * 33, "a"),
        lambda: Message(None, "a"),
        lambda: Message.marked("user", "a [[b]]", private=None),
        lambda: Prompt("hello"),
        lambda: Prompt(3),
        lambda: Prompt(("hello",)),
        lambda: Prompt(public=None),
        lambda: Prompt.of(3),
        lambda: Prompt.of(None),
        lambda: Prompt.of([{"role": 3, "content": "a"}]),
        lambda: Part(3),
        lambda: Part("a", kind="person"),
        lambda: Part("a", secret=True, kind="per[son"),
        lambda: Part("a", secret=True, kind="name of my first pet"),
        lambda: Part("a", secret=True, kind="pet__name"),
        lambda: Part("a", secret=True, kind="p" * 33),
        lambda: Part("***", secret=True),
        lambda: Prompt.of([{"role": "user"}]),
        lambda: Prompt.of([{"role": "user", "content": [{"type": "image", "text": "a"}]}]),
        lambda: Prompt.of([{"role": "user", "content": [{"text": "a", "privat": False}]}]),
        lambda: Prompt.of([{"role": "user", "content": [{"text": "a", "private": "no"}]}]),
    ],
)
def test_wrong_prompts_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


@pytest.mark.parametrize("value", [None, 0, 1, "", "no", "false", [], 0.0])
@pytest.mark.parametrize("name", ["private", "secret"])
def test_only_true_and_false_say_what_is_private(name, value):
    with pytest.raises(InvalidInput) as caught:
        Part("a", **{name: value})
    assert caught.value.field == f"part.{name}"


@pytest.mark.parametrize("name", ["text", "kind"])
@pytest.mark.parametrize("value", [None, 0, b"a", ["a"]])
def test_text_and_kind_of_a_part_are_strings(name, value):
    with pytest.raises(InvalidInput) as caught:
        Part(**{"text": "a", "secret": True, name: value})
    assert caught.value.field == f"part.{name}"


def test_a_role_that_is_none_is_not_quoted():
    with pytest.raises(InvalidInput) as caught:
        Message("my secret", "a")
    assert caught.value.field == "message.role"
    assert "my secret" not in str(caught.value)
    assert [Message(role, "a").role for role in ("user", "tool_2", "r" * 32)] == ["user", "tool_2", "r" * 32]


def test_private_text_shows_in_no_representation():
    prompt = Prompt((Message("user", "hush-1"), Message("user", (Part("open"), Part("hush-2", private=True)))))
    shown = f"{prompt!r} {prompt.messages[0]!r} {Prompt(raw='hush-3')!r} {Part('hush-4', secret=True)!r}"
    assert "hush" not in shown
    assert "open" in shown
