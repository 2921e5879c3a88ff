"""Ordinary answers pass: at most one token in a hundred is held back for nothing."""

import json
from pathlib import Path

import pytest
from wire_reader import Sender, Tap, Tokens

from edgedraft.privacy.guard import Guard

EVERYDAY = json.loads((Path(__file__).parent / "everyday_answers.json").read_text(encoding="utf-8"))
SECRETS = (
    *(
        "Margaret Ashworth",
        "m.ashworth71@example.org",
        "+31 6 1234 5678",
        "NL91 ABNA 0417 1643 00",
        "4929 1234 5678 9012",
    ),
    *("sk-proj-9fQ2xL7vT0bR4mZ8", "192.168.178.61", "12 Kestrel Lane, Whitby", "1984-03-12", "4711"),
)
NOTE = "Write to Margaret that the garden wall in Kestrel Lane has to be finished before the first frost of the year."


def held_back(guard: Guard, tokens: Tokens, answer: str) -> tuple[int, int]:
    sender = Sender(guard, tokens, Tap())
    ids = tokens.split(answer)
    return sum(sender.send(*ids)), len(ids)


def test_there_are_a_hundred_of_many_kinds():
    assert len(EVERYDAY) == 100
    assert len({case["prompt"] for case in EVERYDAY}) == 100


@pytest.mark.parametrize("one_guard", [True, False], ids=["one guard for all", "a guard for each"])
def test_answers_to_private_prompts_without_secrets(one_guard: bool):
    tokens = Tokens()
    shared = Guard([], [case["prompt"] for case in EVERYDAY], "", tokens.bytes)
    counts = [
        held_back(shared if one_guard else Guard([], [case["prompt"]], "", tokens.bytes), tokens, case["answer"])
        for case in EVERYDAY
    ]
    assert sum(count for count, _ in counts) <= 0.01 * sum(total for _, total in counts)


def test_answers_beside_secrets_of_ten_kinds():
    tokens = Tokens()
    guard = Guard(SECRETS, [NOTE], "", tokens.bytes)
    counts = [held_back(guard, tokens, case["answer"]) for case in EVERYDAY]
    assert sum(count for count, _ in counts) <= 0.01 * sum(total for _, total in counts)
