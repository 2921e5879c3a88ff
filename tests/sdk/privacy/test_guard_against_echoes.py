"""Law: nothing private leaves, however a drafter dresses up, splits, takes back and spreads what it echoes."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from wire_reader import DIGIT_NAMES, Sender, Tap, Tokens, pieces_of_secret, runs_of_words

from edgedraft.privacy.guard import Guard

FULL_WIDTH = {chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)}


def in_words(names: str) -> Callable[[str], str]:
    """Digits as words, each by itself."""
    spelled = {str(digit): f" {word} " for digit, word in enumerate(names.split())}
    return lambda text: "".join(spelled.get(char, char) for char in text)


DRESSES: dict[str, Callable[[str], str]] = {
    "verbatim": str,
    "upper case": str.upper,
    "turned case": str.swapcase,
    "letter by letter": " ".join,
    "with dashes": "-".join,
    "one character a line": "\n".join,
    "zero-width": "\u200b".join,
    "soft hyphens": "\u00ad".join,
    "with accents": lambda text: "".join(f"{char}\u0301" for char in text),
    "full width": lambda text: "".join(FULL_WIDTH.get(char, char) for char in text),
    "without spaces": lambda text: text.replace(" ", ""),
    "grouped by three": lambda text: ",".join(text[start : start + 3] for start in range(0, len(text), 3)),
    **{f"digits as {names.split()[1]}..": in_words(names) for names in DIGIT_NAMES},
    "shouted words for digits": lambda text: in_words(DIGIT_NAMES[0])(text).upper(),
    "words for digits, letter by letter": lambda text: " ".join(in_words(DIGIT_NAMES[0])(text)),
}

secrets = st.one_of(
    st.text("0123456789", min_size=4, max_size=19),
    st.text("abcdefghijklmnoprstuvw0123456789", min_size=3, max_size=16),
    st.lists(st.text("abcdefghijklmnoprstuvwé", min_size=2, max_size=9), min_size=1, max_size=3).map(" ".join),
    st.from_regex(r"[A-Z]{2}[0-9]{2} [A-Z]{4} [0-9]{4} [0-9]{4} [0-9]{2}", fullmatch=True),
    st.from_regex(r"\+[1-9][0-9] [0-9]{2} [0-9]{4} [0-9]{4}", fullmatch=True),
    st.from_regex(r"[a-z]{3,8}\.[a-z]{3,8}@[a-z]{4,8}\.(com|nl)", fullmatch=True),
)
words = st.text("abcdefghijklmnopqrstuvwxyzäéß", min_size=1, max_size=9)
private_texts = st.lists(words, min_size=5, max_size=14).map(" ".join)
# What the drafter does next: a slice of the prompt in a dress, and before it perhaps a rollback or a new session.
moves = st.tuples(
    st.sampled_from(["go on", "roll back", "another session"]),
    st.integers(1, 12),
    st.sampled_from(sorted(DRESSES)),
    st.integers(0, 40),
    st.integers(1, 60),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.sampled_from([1, 3, 100]),
)


def play(guard: Guard, tokens: Tokens, prompt: str, program) -> Tap:
    tap = Tap()
    senders = [Sender(guard, tokens, tap)]
    for what, count, dress, start, length, lengths, block in program:
        if what == "roll back":
            senders[0].roll_back(count)
        elif what == "another session":
            if len(senders) < 3:
                senders.append(Sender(guard, tokens, tap))
            senders.append(senders.pop(0))
        echo = DRESSES[dress]((prompt * 2)[start : start + length])
        ids = tokens.split(echo, lengths)
        for begin in range(0, len(ids), block):
            senders[0].send(*ids[begin : begin + block])
    return tap


@given(secrets, private_texts, st.lists(moves, min_size=1, max_size=8))
def test_nothing_private_leaves(secret: str, private: str, program):
    tokens = Tokens()
    prompt = f"{private}. {secret} "
    tap = play(Guard([secret], [private], "", tokens.bytes), tokens, prompt, program)
    texts = tap.texts()
    assert pieces_of_secret(secret, texts) == set()
    assert runs_of_words(private, texts) == set()


@given(secrets, private_texts, st.sampled_from(sorted(DRESSES)), st.integers(1, 9))
def test_the_search_finds_what_a_guard_that_sleeps_lets_go(secret: str, private: str, dress: str, length: int):
    """The law can fail: the same search, with a guard that knows of nothing."""
    tokens = Tokens()
    prompt = f"{private}. {secret} "
    program = [("go on", 1, dress, 0, len(prompt), [length], 4)]
    texts = play(Guard([], [], "", tokens.bytes), tokens, prompt, program).texts()
    assert pieces_of_secret(secret, texts) != set() or (dress != "verbatim" and len(secret) < 6)
    assert runs_of_words(private, texts) != set() or all(len(run) < 8 for run in runs_of_words(private, {private}))


@given(secrets, private_texts, st.data())
def test_what_stands_in_the_public_view_may_leave(secret: str, private: str, data):
    tokens = Tokens()
    prompt = f"{private}. {secret} "
    guard = Guard([secret], [private], prompt, tokens.bytes)
    sender = Sender(guard, tokens, Tap())
    lengths = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    assert not any(sender.send(*tokens.split(prompt, lengths)))
