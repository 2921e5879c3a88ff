"""The private question set: its checks accept what is right and reject what is plausible but wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.privacy.questions import Question, code_of, load_questions
from edgedraft_apps.bench.privacy.sandbox import runs_python, sql_gives

ALL = load_questions()


def test_there_are_enough_of_each_kind_in_each_half() -> None:
    assert len({question.id for question in ALL}) == len(ALL) >= 66
    for half in ("choose", "final"):
        kinds = Counter(question.kind for question in load_questions(half=half))
        assert len(kinds) >= 6
        assert min(kinds.values()) >= 6


@pytest.mark.parametrize(
    ("question", "answer"),
    [(question, answer) for question in ALL for answer in question.right],
    ids=lambda x: x if isinstance(x, str) else x.id,
)
def test_a_right_answer_is_accepted(question: Question, answer: str) -> None:
    assert question.is_right(answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [(question, answer) for question in ALL for answer in question.wrong],
    ids=lambda x: x if isinstance(x, str) else x.id,
)
def test_a_wrong_answer_is_rejected(question: Question, answer: str) -> None:
    assert not question.is_right(answer)


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
def test_no_answer_and_an_echo_of_the_question_are_rejected(question: Question) -> None:
    assert question.right
    assert question.wrong
    assert not question.is_right("")
    assert not question.is_right(question.public)


def test_a_right_answer_to_one_question_is_rarely_right_for_another() -> None:
    chances = [other.is_right(question.right[0]) for question in ALL for other in ALL if other.id != question.id]
    assert sum(chances) / len(chances) < 0.005


@pytest.mark.parametrize(
    "code",
    [
        "import os\ndef f():\n    return 1",
        "from subprocess import run\ndef f():\n    return 1",
        "def f():\n    return 1\nopen('x', 'w')",
        "def f():\n    return ().__class__ and 1",
        "f = eval('lambda: 1')",
        "def f(:\n    return 1",
        "def f():\n    return 1\nwhile True:\n    pass",
        "def f():\n    return 1\nx = [0] * (1 << 40)",
        "f = lambda: 1\0",
    ],
    ids=lambda code: code.splitlines()[0],
)
def test_a_program_that_could_do_harm_does_not_pass(code: str) -> None:
    assert not runs_python(code, "assert f() == 1")


def test_a_harmless_program_is_judged_by_its_assertions() -> None:
    code = "import math\ndef f():\n    return math.floor(1.5)"
    assert runs_python(code, "assert f() == 1")
    assert not runs_python(code, "assert f() == 2")


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM t",
        "SELECT x FROM t; SELECT 2",
        "ATTACH '/tmp/x' AS y",
        "PRAGMA user_version",
        "SELECT y FROM t",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c",
    ],
)
def test_a_query_may_only_read_and_end(query: str) -> None:
    setup = "CREATE TABLE t(x); INSERT INTO t VALUES (1);"
    assert sql_gives("SELECT x FROM t", setup, [[1]])
    assert not sql_gives(query, setup, [[1]])


def test_code_is_taken_from_its_fence_even_without_an_end() -> None:
    assert code_of("Here:\n```python\nx = 1\n```\nDone.") == "x = 1\n"
    assert code_of("```sql\nSELECT 1") == "SELECT 1"
    assert code_of("SELECT 1") == "SELECT 1"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('half = "choose"', 'half = "both"', "half"),
        ('kind = "extraction"', 'kind = "poetry"', "kind"),
        ("number", "numeral", "check"),
        ("in secret", "in public", "secrets"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, old: str, new: str, field: str) -> None:
    text = """
        [[question]]
        id = "one"
        kind = "extraction"
        half = "choose"
        public = "How many?"
        private = "Seven, in secret."
        secrets = { WORD = ["in secret"] }
        check = { number = 7 }
        right = ["7"]
        wrong = ["8"]
    """
    file = tmp_path / "questions.toml"
    file.write_text(text, encoding="utf-8")
    assert load_questions(file)[0].is_right("It is seven.")
    changed = text.replace(old, new, 1) if field != "secrets" else text.replace('["in secret"]', '["in public"]')
    file.write_text(changed, encoding="utf-8")
    with pytest.raises(InvalidInput, match=field):
        load_questions(file)
    with pytest.raises(InvalidInput, match="questions"):
        load_questions(tmp_path / "missing.toml")
