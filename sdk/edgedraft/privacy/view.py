"""The two views of a prompt: what the device sees, what the cloud may see, and what is kept between them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from edgedraft.errors import LeakError
from edgedraft.privacy.cloak import Cloak
from edgedraft.privacy.dates import date_spellings
from edgedraft.privacy.detect import Detectors, Finding, uncovered
from edgedraft.privacy.normalise import LETTERS, words
from edgedraft.privacy.patterns import GuardLimits, Patterns, name_words
from edgedraft.privacy.reading import contains
from edgedraft.privacy.values import Secret, ValueFinder, behind_marks, form_of, stands_alone
from edgedraft.prompt import Mode, Part, Prompt

WITHHELD: Final = "[private text]"
"""Stands for private text in the public view of a sealed prompt; always the same, so it tells nothing of the length."""
_WHOLE: Final = GuardLimits(secret_words=64, secret_chars=64)
_PIECE: Final = 6
"""So many letters and digits of a secret may not stand on the public side."""
_PIECE_OF_A_NAME: Final = 3
_VALUE: Final = 12
"""A secret of more words is a text, and pieces of it are words that others say too."""
_DATE: Final = 4
"""A date has so many words at most: `12th of March 1984`."""
_WORD: Final = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f\u0900-\u0dff])*")
_LETTERS: Final = re.compile(LETTERS)
_USUAL_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class View:
    """A prompt as one side sees it.

    Attributes:
        messages: The chat, as chat templates want it.
        raw: Text without a template, instead of messages. Both are empty where nothing is seen.
    """

    messages: tuple[dict[str, str], ...] = ()
    raw: str = ""

    @property
    def text(self) -> str:
        """All of it, to read."""
        return self.raw or "\n\n".join(f"{message['role']}: {message['content']}" for message in self.messages)


@dataclass(frozen=True, slots=True)
class Views:
    """Both views of a prompt, and what a guard between them has to know.

    Attributes:
        mode: The privacy mode.
        device: What the drafter sees: the whole prompt, or the cloaked one in mode `cloaked`.
        public: What the cloud sees; empty in mode `local`.
        secrets: What was marked as secret, or found by a detector where it is private.
        private_texts: The private texts, secrets included; in mode `cloaked` those with a secret, of which the words
            around it are seen. Empty in the other modes.
        cloak: Restores the answer in mode `cloaked`, else None.
        common_texts: Those of the private texts that stand in system messages: prompts of different matters share them.
    """

    mode: Mode
    device: View = field(repr=False)
    public: View
    secrets: tuple[Secret, ...] = ()
    private_texts: tuple[str, ...] = field(default=(), repr=False)
    cloak: Cloak | None = None
    common_texts: tuple[str, ...] = field(default=(), repr=False)


def make_views(prompt: Prompt, mode: Mode, *, detectors: Detectors | None = None, cloak: Cloak | None = None) -> Views:
    """Split a prompt for a mode.

    Args:
        prompt: What the app asks.
        mode: The privacy mode.
        detectors: What finds secrets; None takes the standard ones.
        cloak: Of the conversation, so that a value keeps its placeholder; None begins one.

    Raises:
        LeakError: Public text holds a secret.
    """
    whole = View(tuple(prompt.as_dicts()), prompt.raw)
    match mode:
        case Mode.OPEN:
            return Views(mode, whole, whole)
        case Mode.LOCAL:
            return Views(mode, whole, View())
        case Mode.SEALED:
            return _seal(prompt, whole, detectors or Detectors.standard())
        case Mode.CLOAKED:
            return _cloak(prompt, detectors or Detectors.standard(), cloak or Cloak())


def _seal(prompt: Prompt, whole: View, detectors: Detectors) -> Views:
    texts = [_Text.of(prompt, index) for index in range(len(prompt.messages) or 1)]
    marked = [secret for text in texts for secret in text.marked]
    found = [secret for text in texts for secret in text.found(detectors)]
    secrets = dict.fromkeys(marked + found)  # a set that keeps its order
    sure = marked + [secret for secret in found if not _may_be_a_word(secret)]
    spellings = _spellings(sure)
    pieces = _Pieces(marked, sure)
    for text in (*texts, *_roles(prompt, detectors)):
        text.check_public(sure, spellings)
        text.check_pieces(pieces)
    public = [text.public for text in texts]
    return Views(
        Mode.SEALED,
        whole,
        _with_texts(prompt, public),
        tuple(secrets),
        tuple(private for text in texts for private in text.private),
        common_texts=tuple(private for text in _of_system(prompt, texts) for private in text.private),
    )


def _cloak(prompt: Prompt, detectors: Detectors, cloak: Cloak) -> Views:
    texts = [_Text.of(prompt, index) for index in range(len(prompt.messages) or 1)]
    findings = [text.to_cloak(detectors) for text in texts]
    found = list(zip(texts, findings, strict=True))
    # All of them first: what one message tells to be private is so in the others.
    cloak.learn(Secret(text.whole[span.start : span.end], span.kind) for text, spans in found for span in spans)
    hidden = [cloak.hide(text.whole, spans) for text, spans in found]
    spellings = _spellings(cloak.secrets)
    for text, seen in zip(texts, hidden, strict=True):
        for piece in cloak.around(seen):
            text.check_spellings(piece, cloak.secrets, spellings)
    for role in _roles(prompt, detectors):
        role.check_public(cloak.secrets, spellings)
        role.check_pieces(_Pieces(cloak.secrets, ()))
    view = _with_texts(prompt, hidden)
    private = tuple(text.whole for text, spans in found if spans)
    common = tuple(text.whole for text in _of_system(prompt, texts))
    return Views(Mode.CLOAKED, view, view, tuple(cloak.secrets), private, cloak, common)


def _roles(prompt: Prompt, detectors: Detectors) -> Iterator[_Text]:
    """The roles that are none of the usual ones, each once: they leave as they stand.

    Raises:
        LeakError: Detectors find something but a name in one.
    """
    seen = set(_USUAL_ROLES)
    for index, message in enumerate(prompt.messages):
        if message.role not in seen:
            seen.add(message.role)
            # A name in a role has no capitals.
            role = _Text(f"messages[{index}].role", (Part(message.role.title()),))
            list(role.found(detectors))
            yield role


def _of_system(prompt: Prompt, texts: Sequence[_Text]) -> list[_Text]:
    return [text for message, text in zip(prompt.messages, texts, strict=False) if message.role == "system"]


def _with_texts(prompt: Prompt, texts: Sequence[str]) -> View:
    if prompt.raw:
        return View(raw=texts[0])
    messages = zip(prompt.messages, texts, strict=True)
    return View(tuple({"role": message.role, "content": text} for message, text in messages))


class _Text:
    """The text of one message, with what is private in it."""

    def __init__(self, place: str, parts: Sequence[Part]) -> None:
        self._place = place
        self.whole = "".join(part.text for part in parts)
        self._marks: list[Finding] = []
        self._stretches: list[tuple[int, int, bool]] = []
        position = 0
        for private, group in groupby((part for part in parts if part.text), key=lambda part: part.private):
            start = position
            for part in group:
                end = position + len(part.text)
                if part.secret:
                    self._marks.append(Finding(position, end, _kind(part)))
                position = end
            self._stretches.append((start, position, private))

    @classmethod
    def of(cls, prompt: Prompt, index: int) -> _Text:
        if prompt.raw:
            return cls("prompt.raw", (Part(prompt.raw, private=True),))
        return cls(f"messages[{index}]", prompt.messages[index].parts)

    @property
    def marked(self) -> list[Secret]:
        """What the app marked as secret."""
        return [Secret(self.whole[mark.start : mark.end], mark.kind) for mark in self._marks]

    @property
    def private(self) -> list[str]:
        """The private stretches."""
        return [self.whole[start:end] for start, end, private in self._stretches if private]

    @property
    def public(self) -> str:
        """What the cloud may see of it in mode `sealed`."""
        return "".join(WITHHELD if private else self.whole[start:end] for start, end, private in self._stretches)

    def found(self, detectors: Detectors) -> Iterable[Secret]:
        """What detectors find where it is private.

        Raises:
            LeakError: They find something but a name where it is public.
        """
        for finding in self._find(detectors):
            for start, end, private in self._stretches:
                begin, stop = max(start, finding.start), min(end, finding.end)
                piece = self.whole[begin:stop]
                if private and form_of(piece):
                    yield Secret(piece, finding.kind)
                elif private or finding.kind == "PERSON":
                    pass  # a name in public text is private only if it is so elsewhere: most are of the famous
                elif (begin, stop) == (finding.start, finding.end) or len(form_of(piece)) >= _PIECE:
                    raise self._leak(finding.kind, begin, stop)

    def check_public(self, secrets: Sequence[Secret], spellings: Patterns) -> None:
        """See that no secret of this prompt stands in public text too.

        Raises:
            LeakError: One does.
        """
        kinds = {form_of(secret.text): secret.kind for secret in secrets}
        finder = ValueFinder(secret.text for secret in secrets)
        for start, end, private in self._stretches:
            if not private:
                for found in finder.find(self.whole[start:end]):
                    raise self._leak(kinds[found.form], start + found.start, start + found.end)
                self.check_spellings(self.whole[start:end], secrets, spellings)

    def check_pieces(self, pieces: _Pieces) -> None:
        """See that no telling piece of a secret stands in public text.

        Raises:
            LeakError: One does.
        """
        for start, end, private in self._stretches:
            for found in () if private else pieces.find(self.whole[start:end]):
                place = f"{self._place}, characters {start + found.start} to {start + found.end} of its public text"
                name = found.kind.lower().replace("_", " ")
                raise LeakError(f"a piece of a secret ({name})", place, "mark it there too, or make that part private")

    def check_spellings(self, seen: str, secrets: Iterable[Secret], spellings: Patterns) -> None:
        """See that no whole secret stands in what the cloud will see, in any spelling that the guard knows.

        Raises:
            LeakError: One does.
        """
        if not contains(seen, spellings, cut=False):
            return
        for secret in secrets:
            if contains(_without_words_around(seen, secret.text), _spellings([secret]), cut=False):
                name = secret.kind.lower().replace("_", " ")
                raise LeakError(f"another spelling of a secret ({name})", self._place, "mark it there too")

    def to_cloak(self, detectors: Detectors) -> list[Finding]:
        """What the app marked, and what detectors find besides, in order; no two overlap."""
        found = [rest for finding in self._find(detectors) for rest in uncovered(finding, self._marks)]
        return sorted(self._marks + [finding for finding in found if form_of(self.whole[finding.start : finding.end])])

    def _find(self, detectors: Detectors) -> list[Finding]:
        """What detectors find, each with the accents that belong to its last letter."""
        findings = detectors.find(self.whole)
        taken = {finding.start for finding in findings}
        ends = (behind_marks(self.whole, finding.end) for finding in findings)
        return [
            finding if taken.intersection(range(finding.end, end)) else Finding(finding.start, end, finding.kind)
            for finding, end in zip(findings, ends, strict=True)
        ]

    def _leak(self, kind: str, start: int, end: int) -> LeakError:
        name = kind.lower().replace("_", " ")
        return LeakError(
            f"a secret ({name})",
            f"{self._place}, characters {start} to {end} of its public text",
            "make that part private",
        )


class _Pieces:
    """What tells of a secret without being the whole of it.

    Args:
        marked: Secrets of which the app said where they begin and end: two words in a row of them tell, and one if
            they are written like a name.
        found: Others, of which the words tell if they are somebody's name.
    """

    def __init__(self, marked: Sequence[Secret], found: Iterable[Secret]) -> None:
        self._names: dict[str, str] = {}  # by spelling: kind
        self._runs: dict[str, str] = {}  # by form: kind
        values: list[str] = []
        for secret in (*marked, *(secret for secret in found if secret.kind == "PERSON")):
            for word in name_words(secret.text, sure=secret.kind == "PERSON"):
                self._names.update(dict.fromkeys((word, word.upper()), secret.kind))
                values.append(word)
        for secret in marked:
            for run in _runs(secret):
                self._runs[form_of(run)] = secret.kind
                values.append(run)
        self._finder = ValueFinder(values)

    def find(self, text: str) -> Iterator[Finding]:
        """Those in a public text; a name is one only as it is written, so that `a rose` is none."""
        for start, end, form in self._finder.find(text):
            if name := self._names.get(unicodedata.normalize("NFC", text[start:end])):
                yield Finding(start, end, name)
            elif form in self._runs and stands_alone(text, start, end):
                yield Finding(start, end, self._runs[form])


def _runs(secret: Secret) -> Iterator[str]:
    """The least runs of words that tell of a secret, and its single words that look like a key."""
    found = list(_WORD.finditer(secret.text))
    spelled = words(secret.text)
    if len(found) > _VALUE or (len(found) <= _DATE and date_spellings(spelled)):
        return  # other dates have the same day and month
    is_name = bool(name_words(secret.text, sure=secret.kind == "PERSON"))
    least = _PIECE_OF_A_NAME if is_name else _PIECE
    for first, match in enumerate(found):
        if len(form_of(match.group())) >= _PIECE and any(map(str.isdigit, match.group())):
            yield match.group()
        for last in found[first + 1 :]:
            run = secret.text[match.start() : last.end()]
            if len(form_of(run)) >= least:
                yield run
                break


def _spellings(secrets: Iterable[Secret]) -> Patterns:
    """The whole secrets, in every spelling that the guard knows."""
    patterns = Patterns(_WHOLE)
    for secret in secrets:
        patterns.add_secret(secret.text, is_name=False, whole=True)
    return patterns


def _without_words_around(text: str, secret: str) -> str:
    """A text without the words that a secret word is only a part of, as a name is of `Christianity`."""
    form = form_of(secret)
    if not _LETTERS.fullmatch(secret):
        return text
    return _LETTERS.sub(lambda word: "" if form in form_of(word.group()) != form else word.group(), text)


def _may_be_a_word(secret: Secret) -> bool:
    """Whether what a detector takes for a name may be a word like any other, which public text is free to say."""
    return secret.kind == "PERSON" and len(secret.text.split()) == 1


def _kind(part: Part) -> str:
    return re.sub("[ -]", "_", part.kind).upper() or "SECRET"
