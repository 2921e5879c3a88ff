"""What counts as public: what stands there word for word, and nothing that only looks so without its spaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import LeakError
from edgedraft.privacy.guard import Guard
from edgedraft.privacy.normalise import words
from edgedraft.privacy.public import PublicText, mark, windows

texts = st.text("ab1 |", max_size=20)


def shown(public: str) -> PublicText:
    text = PublicText()
    text.publish(mark(words(public)))
    return text


@given(texts, st.integers(1, 8))
def test_windows_are_all_runs_with_the_marks_inside(text, size):
    marked = mark(words(text))
    found = windows(marked, size)
    compact = marked.replace("|", "")
    assert [each for each, _ in found] == [compact[at : at + size] for at in range(len(compact) - size + 1)]
    assert all(inside in marked and inside.replace("|", "") == each for each, inside in found)
    assert not any(inside.startswith("|") or inside.endswith("|") for _, inside in found)


@given(st.lists(texts, max_size=4), texts)
def test_it_shows_what_stands_in_one_of_its_texts(published, asked):
    text, marked = PublicText(), mark(words(asked))
    for each in published:
        text.publish(mark(words(each)))
    if marked:
        all_of_it = [f"|{mark(words(each))}|" for each in published]
        assert text.shows(marked) == any(marked in each for each in all_of_it)
        assert text.shows(marked, whole=True) == any(f"|{marked}|" in each for each in all_of_it)


@pytest.mark.parametrize(
    ("public", "name", "told"),
    [
        ("Shorten and rewrite the note.", "Andrew Miller", "Andrew"),
        ("Be smart in your answer.", "Martin Berg", "Martin"),
        ("Write about cooperation.", "Tom Cooper", "Cooper"),
        ("Reply to the reporter.", "Jane Porter", "Porter"),
        ("Cover at least one topic.", "Clint Easton", "Easton"),
        ("Say it in a few words.", "Ina Berg", "Ina"),
        ("This is a note.", "Isa Berg", "Isa"),
        ("Use lindqvistian words.", "Maria Lindqvist", "Lindqvist"),
    ],
)
@pytest.mark.parametrize("order", ["first", "later"])
def test_a_name_is_free_only_where_it_stands_as_a_word(public, name, told, order):
    data = told.encode()
    guard = Guard([name], [name], public if order == "first" else "", lambda token: data)
    guard.extend(public_text=public)
    trail, held = guard.step(guard.root(), 0)
    assert held or guard.session().leave(0, trail)
    guard.extend(public_text=f"{public} Ask {told}.")
    trail, held = guard.step(guard.root(), 0)
    assert not held


def test_questions_to_one_document_publish_it_once():
    document = "\n".join(f"Line {number} of a long report about nothing at all." for number in range(200))
    guard = Guard(["4929123477"], [], document, lambda _: b"")
    for number in range(50):
        guard.extend(public_text=f"{document}\nQuestion {number}: what does it say?")
    assert len(guard._patterns._public._text) < 8 * len(document)


@pytest.mark.parametrize(
    ("public", "secret"),
    [
        ("Shorten and rewrite the note.", "Andrew Miller"),
        ("Page 1 of 2, at most 34 words.", "1234"),
        ("a\nndrew", "Andrew"),
    ],
)
def test_what_was_published_leaves_though_it_looks_private_without_its_spaces(public, secret):
    guard = Guard([secret], [f"{secret} is ill."], public, lambda _: b"")
    guard.check_public(public, "prompt")
    guard.extend(public_text=f"{public}\nAnd then?")
    guard.check_public(f"{public}\nAnd then?", "prompt")
    with pytest.raises(LeakError):
        guard.check_public(f"{public}\nAsk {secret}.", "prompt")
