"""A verifier that reads all it gets: a slow and plain search for private text, written apart from the guard."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgedraft.privacy.guard import Guard, GuardSession, Trail

PLACEHOLDER = b" ___"
DIGIT_NAMES = (
    "zero one two three four five six seven eight nine",
    "nul een twee drie vier vijf zes zeven acht negen",
    "null eins zwei drei vier funf sechs sieben acht neun",
    "zero un deux trois quatre cinq six sept huit neuf",
    "cero uno dos tres cuatro cinco seis siete ocho nueve",
)
SPELLED = {word: str(digit) for names in DIGIT_NAMES for digit, word in enumerate(names.split())}
_SPELLED = re.compile(rf"\b({'|'.join(sorted(SPELLED, key=len, reverse=True))})\b", re.IGNORECASE)


class Tokens:
    """A vocabulary that grows: any bytes are a token."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._bytes: list[bytes] = []

    def id(self, data: bytes) -> int:
        if data not in self._ids:
            self._ids[data] = len(self._bytes)
            self._bytes.append(data)
        return self._ids[data]

    def bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def split(self, text: str, lengths: Iterable[int] = ()) -> list[int]:
        """Tokens of so many bytes, in turn; without lengths as a tokenizer might: words in pieces of five letters."""
        data = text.encode()
        sizes = list(lengths)
        if not sizes:
            parts = re.findall(r" ?[^\W\d_]{1,5}|\d|\s+|[^\w\s]+|_", text)
            assert "".join(parts) == text
            return [self.id(part.encode()) for part in parts]
        parts_of_bytes, start, turn = [], 0, 0
        while start < len(data):
            end = start + sizes[turn % len(sizes)]
            parts_of_bytes.append(data[start:end])
            start, turn = end, turn + 1
        return [self.id(part) for part in parts_of_bytes]


@dataclass
class Sender:
    """One session's device: sends what the guard lets go, a placeholder for the rest, and may roll back."""

    guard: Guard
    tokens: Tokens
    tapped: Tap
    path: list[tuple[Trail, bytes]] = field(default_factory=list)  # what the verifier holds at each position

    def __post_init__(self) -> None:
        self.watch: GuardSession = self.guard.session()
        self.sent: list[bytes] = []
        self.tapped.in_order.append(self.sent)
        self.tapped.standing.append(self.path)

    def send(self, *tokens: int) -> list[bool]:
        """Draft all of them, then send them; which were held back."""
        trails = [self.path[-1][0] if self.path else self.guard.root()]
        for token in tokens:
            trails.append(self.guard.step(trails[-1], token)[0])
        return [self._let_out(token, trail) for token, trail in zip(tokens, trails[1:], strict=True)]

    def _let_out(self, token: int, trail: Trail) -> bool:
        held = trail.held or self.watch.leave(token, trail)
        data = PLACEHOLDER if held else self.tokens.bytes(token)
        self.path.append((trail, data))
        self.sent.append(data)
        self.tapped.everything.append(data)
        return held

    def roll_back(self, count: int) -> None:
        self.tapped.cut.append(self.path[:])
        del self.path[max(len(self.path) - count, 0) :]


@dataclass
class Tap:
    """All that left: of each session, of all of them, and each path that stood at the verifier at some time."""

    in_order: list[list[bytes]] = field(default_factory=list)
    everything: list[bytes] = field(default_factory=list)
    standing: list[list[tuple[Trail, bytes]]] = field(default_factory=list)
    cut: list[list[tuple[Trail, bytes]]] = field(default_factory=list)

    def texts(self) -> set[str]:
        paths = [[data for _, data in path] for path in [*self.standing, *self.cut]]
        whole = {b"".join(parts) for parts in [*self.in_order, self.everything, *paths]}
        # With the placeholders left out the verifier may put together what stood around them.
        whole |= {data.replace(PLACEHOLDER, b"") for data in whole}
        return {data.decode(errors="replace") for data in whole}


def plain(text: str) -> str:
    """Letters and digits alone, without case and accents."""
    text = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in text if char.isalnum())


def visible(text: str) -> str:
    """Without accents and without characters that nobody sees."""
    text = unicodedata.normalize("NFKD", text)
    return "".join(char for char in text if unicodedata.category(char) not in {"Cf", "Mn", "Mc", "Me"})


def readings(text: str) -> set[str]:
    """The text, and the text with spelled digits as digits."""
    shown = visible(text)
    return {plain(shown), plain(_SPELLED.sub(lambda match: SPELLED[match.group().lower()], shown))}


def sayings(piece: str) -> set[str]:
    """A piece, and the piece with its digits as words of one language, where that is too long to be a coincidence."""
    spelled = ("".join(names.split()[int(char)] if char.isdigit() else char for char in piece) for names in DIGIT_NAMES)
    return {piece, *(said for said in spelled if len(said) >= 8)}


def pieces_of_secret(secret: str, texts: Iterable[str], public: str = "", size: int = 6) -> set[str]:
    """Pieces of a secret that stand in one of the texts and not in the public one; short secrets only as words."""
    whole = plain(secret)
    if len(whole) < size:
        return {whole for text in texts if any(whole == word for word in _words_joined(text, len(whole)))}
    pieces = {whole[start : start + size] for start in range(len(whole) - size + 1)}
    shown = readings(public)
    return {
        piece
        for text in texts
        for reading in readings(text)
        for piece in pieces
        if any(said in reading for said in sayings(piece)) and not any(piece in known for known in shown)
    }


def runs_of_words(private: str, texts: Iterable[str], public: str = "", count: int = 5) -> set[str]:
    """Runs of so many words of a private text that stand in one of the texts and not in the public one."""
    words = [plain(word) for word in re.findall(r"[^\W_]+", private)]
    runs = {"".join(words[start : start + count]) for start in range(len(words) - count + 1)}
    shown = readings(public)
    return {
        run
        for text in texts
        for reading in readings(text)
        for run in runs
        if len(run) >= 8 and run in reading and not any(run in known for known in shown)
    }


def _words_joined(text: str, length: int) -> set[str]:
    """All that consecutive words make, up to a length."""
    words = [plain(word) for word in re.findall(r"[^\W_]+", visible(text))]
    found = set()
    for start in range(len(words)):
        joined = ""
        for word in words[start:]:
            joined += word
            if len(joined) > length:
                break
            found.add(joined)
    return found
