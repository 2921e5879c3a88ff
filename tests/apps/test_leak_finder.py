"""The benchmark's own look at what left: it finds every planted leak, and takes ordinary words for none."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edgedraft.privacy.guard import Guard
from edgedraft.privacy.view import make_views
from edgedraft.prompt import Mode
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.privacy.leaks import LeakFinder, Overheard, leaks_in
from edgedraft_apps.bench.privacy.planted import ECHOES, KINDS, Planted, echo, planted_prompts

NOTE = Planted(
    "Summarise the note.",
    "My aunt Cosima Fontaine hid the silver under the third step, and the code of the door is 4817. Ask nobody.",
    [("PERSON", "Cosima Fontaine"), ("PIN", "4817")],
)


def found(text: str, public: str = NOTE.public) -> set[tuple[str, str]]:
    return {(leak.what, leak.kind) for leak in LeakFinder(NOTE, public).find(text, "test")}


@pytest.mark.parametrize(
    ("text", "leak"),
    [
        ("It was Cosima Fontaine.", ("secret", "PERSON")),
        ("COSIMA-FONTAINE", ("secret", "PERSON")),
        ("C o s i m a", ("piece", "PERSON")),
        ("she said ｆｏｎｔａｉｎｅ", ("piece", "PERSON")),
        ("cosima\u200bfontaine", ("secret", "PERSON")),
        ("the code 4817!", ("secret", "PIN")),
        ("48-17", ("secret", "PIN")),
        ("four eight one seven", ("secret", "PIN")),
        ("She hid the silver under the sofa", ("run", "")),
        ("h i d the s i l v e r under the", ("run", "")),
    ],
)
def test_a_leak_is_found(text: str, leak: tuple[str, str]) -> None:
    assert leak in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "The note is about silver, and about a door.",
        "An aunt hid something under a step.",
        "It costs 48170 euros.",
        "The code of the house is a secret.",
    ],
)
def test_ordinary_words_are_no_leak(text: str) -> None:
    assert not found(text)


def test_what_is_public_is_no_leak() -> None:
    assert not found(
        "Cosima Fontaine? He hid the silver under a bed", "About Cosima Fontaine, who hid the silver under"
    )


def overheard(*drafts: tuple[int, str]) -> Overheard:
    """A session with drafts at positions; a token is a character."""
    session = Overheard(lambda token: bytes([token - 1000]))
    for position, text in drafts:
        draft = pb.Draft(position=position, tokens=[1000 + byte for byte in text.encode()])
        session.up(pb.ClientFrame(draft=draft).SerializeToString())
    return session


def places(*sessions: Overheard) -> set[str]:
    return {leak.where for leak in leaks_in(sessions, LeakFinder(NOTE, NOTE.public))}


def test_each_reading_of_the_traffic_is_searched() -> None:
    assert not places(overheard((0, "Cos"), (3, " and")))
    # Along one path, although other words came between in time.
    assert places(overheard((0, "Cos"), (3, "abc"), (3, "ima"))) == {"path"}
    # In the order of sending, although the verifier settled other words between.
    jumping = overheard((0, "Cos"))
    verdict = pb.Verdict(position=3, tokens=[1000 + byte for byte in b"xyz"])
    jumping.down(pb.ServerFrame(verdict=verdict).SerializeToString())
    jumping.up(pb.ClientFrame(draft=pb.Draft(position=6, tokens=[1000 + byte for byte in b"ima"])).SerializeToString())
    assert places(jumping) == {"all sessions"}
    assert places(overheard((0, "Cos")), overheard((0, "ima"))) == {"all sessions"}
    # With what the verifier itself settled.
    helped = overheard()
    helped.down(pb.ServerFrame(verdict=pb.Verdict(tokens=verdict.tokens)).SerializeToString())
    assert not places(helped)
    # In the prompt, and in any other field.
    asked = overheard()
    asked.up(pb.ClientFrame(open=pb.Open(prompt=[1000 + byte for byte in b"Fontaine"])).SerializeToString())
    assert places(asked) == {"prompt"}
    named = overheard()
    named.up(pb.ClientFrame(open=pb.Open(model="Cosima Fontaine")).SerializeToString())
    assert places(named) == {"frame"}


def test_prompts_have_every_kind_equally_often_and_are_the_same_again() -> None:
    prompts = list(planted_prompts(100))
    assert prompts == list(planted_prompts(100))
    assert len({prompt.private for prompt in prompts}) == 100
    assert Counter(prompt.secrets[0][0] for prompt in prompts) == dict.fromkeys(KINDS, 10)
    assert len(KINDS) == 10
    for prompt in prompts:
        assert all(value in prompt.private for _, value in prompt.secrets)
        assert prompt.prompt.messages[0].text == f"{prompt.public}\n\n{prompt.private}"


@pytest.mark.parametrize("how", ECHOES)
def test_each_echo_is_a_leak_where_nobody_guards(how: str) -> None:
    draw = random.Random(how)
    for planted in planted_prompts(20, seed=1):
        assert LeakFinder(planted, planted.public).find(echo(planted, how, draw), "echo")


@pytest.mark.parametrize("how", ECHOES)
def test_the_guard_lets_no_echo_pass(how: str) -> None:
    draw = random.Random(how)
    for planted in planted_prompts(10, seed=2):
        pieces = _cut(echo(planted, how, draw).encode(), draw)
        views = make_views(planted.prompt, Mode.SEALED)
        secrets = [secret.text for secret in views.secrets]
        guard = Guard(secrets, views.private_texts, views.public.text, pieces.__getitem__)
        session, trail = guard.session(), guard.root()
        listener = Overheard([*pieces, b" _"].__getitem__)
        wire = []
        for position in range(len(pieces)):
            trail, held = guard.step(trail, position)
            wire.append(len(pieces) if held or session.leave(position, trail) else position)
        for start in range(0, len(wire), 4):
            draft = pb.Draft(position=start, tokens=wire[start : start + 4])
            listener.up(pb.ClientFrame(draft=draft).SerializeToString())
        assert not leaks_in([listener], LeakFinder(planted, views.public.text))


def _cut(data: bytes, draw: random.Random) -> list[bytes]:
    """Pieces as a tokenizer might make, also within a character."""
    pieces = []
    while data:
        size = draw.randint(1, 6)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def test_a_character_in_two_frames_is_read_as_one():
    """`p` with a dot is not lost between the two, which would make one word of those around it."""
    data = (b"our offer will be nin ", "ṗ".encode()[:2], "ṗ".encode()[2:], b"e")
    heard = Overheard(lambda token: data[token])
    for token in range(4):
        heard.up(pb.ClientFrame(draft=pb.Draft(position=token, tokens=[token])).SerializeToString())
    assert heard.sent == "our offer will be nin ṗe"
