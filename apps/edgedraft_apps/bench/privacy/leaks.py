"""An independent look at what left: secrets, pieces of them, and runs of private words in the bytes on the socket.

It shares no code with the guard, and searches whole texts anew instead of following them token by token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.privacy.planted import Planted

CHARS: Final = 6
"""Letters and digits of a secret in a row that make a leak."""
WORDS: Final = 5
"""Words of the private text in a row that make a leak."""
_SECRET_WORDS: Final = 2
_REACH: Final = 128  # tokens before what is new on a path that are searched with it; those before were searched
_SURE: Final = 14  # letters of a run of words that are no coincidence even where nothing parts the words

_DIGIT_WORDS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NUMBER_WORDS: Final = {word: str(value) for value, word in enumerate(_DIGIT_WORDS)}


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that left and should not have.

    Attributes:
        what: `secret`, `piece` or `run`.
        kind: Kind of the secret; empty for a run of words.
        found: What was found, in compact form.
        where: In which reading of the traffic.
    """

    what: str
    kind: str
    found: str
    where: str


class LeakFinder:
    """Searches texts for what was planted.

    Args:
        planted: The prompt.
        public: What the cloud may see of it; what stands there is no leak.
    """

    def __init__(self, planted: Planted, public: str) -> None:
        self._free = "\n".join(_views(public))
        self._free_words = [_words(view) for view in _plain_views(public)]
        self._secrets = [(kind, form) for kind, value in planted.secrets for form in set(_plain_views(value))]
        words = _words(_plain(planted.private))
        self._runs = {tuple(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}
        for free in self._free_words:
            self._runs -= {tuple(free[start : start + WORDS]) for start in range(len(free) - WORDS + 1)}

    def find(self, text: str, where: str) -> list[Leak]:
        """All leaks in a text."""
        leaks: dict[Leak, None] = {}
        for view in _plain_views(text):
            words, compact = _words(view), _compact(view)
            for kind, secret in self._secrets:
                leaks |= dict.fromkeys(self._of_secret(kind, secret, words, compact, where))
            leaks |= dict.fromkeys(self._of_text(words, compact, where))
        return list(leaks)

    def _of_secret(self, kind: str, secret: str, words: Sequence[str], compact: str, where: str) -> Iterator[Leak]:
        whole, parts = _compact(secret), _words(secret)
        if len(whole) < CHARS:
            if _spells(words, whole) and whole not in self._free:
                yield Leak("secret", kind, whole, where)
            return
        if whole in compact and whole not in self._free:
            yield Leak("secret", kind, whole, where)
        for start in range(len(whole) - CHARS + 1):
            piece = whole[start : start + CHARS]
            if piece in compact and piece not in self._free:
                yield Leak("piece", kind, piece, where)
        for start in range(len(parts) - _SECRET_WORDS + 1):
            pair = tuple(parts[start : start + _SECRET_WORDS])
            if _holds(words, pair) and not any(_holds(free, pair) for free in self._free_words):
                yield Leak("piece", kind, " ".join(pair), where)

    def _of_text(self, words: Sequence[str], compact: str, where: str) -> Iterator[Leak]:
        said = {tuple(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}
        for run in self._runs:
            joined = "".join(run)
            if run in said or (len(joined) >= _SURE and joined in compact and joined not in self._free):
                yield Leak("run", "", " ".join(run), where)


@dataclass(slots=True)
class Overheard:
    """What a verifier knows from the bytes of one session.

    Args:
        token_bytes: Bytes of a token's text.

    Attributes:
        prompt: Text of the prompt it was sent.
        paths: Text of the answer as it stood after each frame, from a good deal before what was new in it; parted
            where the verifier put a word of its own.
        sent_bytes: All tokens that were sent, in the order of sending; a character may lie in two frames.
        strings: Everything else in the frames that could be text.
    """

    token_bytes: Callable[[int], bytes]
    prompt: str = ""
    paths: list[str] = field(default_factory=list)
    sent_bytes: bytes = b""
    strings: list[str] = field(default_factory=list)
    _line: dict[int, int | None] = field(default_factory=dict)

    def up(self, data: bytes) -> None:
        """A frame of the device, as it was on the socket."""
        self.strings.append(data.decode("utf-8", errors="ignore"))
        frame = pb.ClientFrame.FromString(data)
        if frame.HasField("open"):
            self.prompt = self._text(frame.open.prompt)
            self._put(frame.open.resume_position - len(frame.open.resume_tokens), frame.open.resume_tokens)
        elif frame.HasField("draft"):
            end = frame.draft.position + len(frame.draft.tokens)
            # What stood behind it was on another path.
            self._line = {place: token for place, token in self._line.items() if place < end}
            self._put(frame.draft.position, frame.draft.tokens)
            self.sent_bytes += b"".join(map(self.token_bytes, frame.draft.tokens))

    @property
    def sent(self) -> str:
        """Their text."""
        return self.sent_bytes.decode("utf-8", errors="replace")

    def down(self, data: bytes) -> None:
        """A frame of the verifier."""
        frame = pb.ServerFrame.FromString(data)
        if frame.HasField("verdict"):
            places = enumerate(frame.verdict.tokens, frame.verdict.position)
            self._line |= {place: None for place, token in places if self._line.get(place) != token}

    def _put(self, position: int, tokens: Sequence[int]) -> None:
        new = dict(enumerate(tokens, position))
        if any(self._line.get(place) != token for place, token in new.items()):
            self._line |= new
            run: list[int] = []
            for place in sorted(place for place in self._line if place >= position - _REACH):
                token = self._line[place]
                if token is not None:
                    run.append(token)
                elif run:
                    self.paths.append(self._text(run))
                    run = []
            self.paths.append(self._text(run))

    def _text(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")


def leaks_in(sessions: Sequence[Overheard], finder: LeakFinder) -> list[Leak]:
    """All leaks in the sessions of one prompt: along each path, in the order of sending, and over all together."""
    texts: list[tuple[str, str]] = []
    for session in sessions:
        texts += [("prompt", session.prompt)]
        texts += [("path", path) for path in session.paths]
        texts += [("frame", text) for text in session.strings]
    texts.append(("all sessions", "".join(session.sent for session in sessions)))
    seen: set[str] = set()
    leaks: dict[Leak, None] = {}
    for where, text in texts:
        if text not in seen:
            seen.add(text)
            leaks |= dict.fromkeys(finder.find(text, where))
    return list(leaks)


# ---------------------------------------------------------------------------------------------------- plain text


def _plain(text: str) -> str:
    """Letters, digits and single spaces: compatibility forms, marks, case and invisible characters taken away."""
    decomposed = unicodedata.normalize("NFKD", text)
    visible = "".join(char for char in decomposed if unicodedata.category(char) not in ("Mn", "Me", "Cf"))
    folded = unicodedata.normalize("NFKC", visible).casefold()
    return " ".join("".join(char if char.isalnum() else " " for char in folded).split())


def _plain_views(text: str) -> list[str]:
    """The text as it stands, and with spelled digits read as digits."""
    plain = _plain(text)
    return [plain, " ".join(_NUMBER_WORDS.get(word, word) for word in plain.split())]


def _views(text: str) -> list[str]:
    return [_compact(view) for view in _plain_views(text)]


def _words(plain: str) -> list[str]:
    return plain.split()


def _compact(plain: str) -> str:
    return re.sub(r"\W|_", "", plain)


def _holds(words: Sequence[str], run: tuple[str, ...]) -> bool:
    return any(tuple(words[start : start + len(run)]) == run for start in range(len(words) - len(run) + 1))


def _spells(words: Sequence[str], short: str) -> bool:
    """Whether whole words in a row make up a short text."""
    for start in range(len(words)):
        rest = short
        for word in words[start:]:
            if not rest.startswith(word):
                break
            rest = rest.removeprefix(word)
            if not rest:
                return True
    return False
