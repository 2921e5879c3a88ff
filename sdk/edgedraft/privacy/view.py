"""The two views of a prompt: what the device sees, what the cloud may see, and what is kept between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from edgedraft.errors import LeakError
from edgedraft.privacy.cloak import Cloak
from edgedraft.privacy.detect import Detectors, Finding, uncovered
from edgedraft.privacy.patterns import GuardLimits, Patterns
from edgedraft.privacy.reading import contains
from edgedraft.privacy.values import Secret, ValueFinder, form_of
from edgedraft.prompt import Mode, Part, Prompt

WITHHELD: Final = "[private text]"
"""Stands for private text in the public view of a sealed prompt; always the same, so it tells nothing of the length."""
_WHOLE: Final = GuardLimits(secret_words=64, secret_chars=64)
_PIECE: Final = 6
"""So many letters and digits of a secret may not stand on the public side where it straddles the border."""


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
    for text in texts:
        text.check_public(sure, spellings)
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
        text.check_spellings(seen, cloak.secrets, spellings)
    view = _with_texts(prompt, hidden)
    private = tuple(text.whole for text, spans in found if spans)
    common = tuple(text.whole for text in _of_system(prompt, texts))
    return Views(Mode.CLOAKED, view, view, tuple(cloak.secrets), private, cloak, common)


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
        for finding in detectors.find(self.whole):
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

    def check_spellings(self, seen: str, secrets: Iterable[Secret], spellings: Patterns) -> None:
        """See that no whole secret stands in what the cloud will see, in any spelling that the guard knows.

        Raises:
            LeakError: One does.
        """
        if contains(seen, spellings, cut=False):
            kinds = (secret.kind for secret in secrets if contains(seen, _spellings([secret]), cut=False))
            kind = next(kinds, "SECRET")
            name = kind.lower().replace("_", " ")
            raise LeakError(f"another spelling of a secret ({name})", self._place, "mark it there too")

    def to_cloak(self, detectors: Detectors) -> list[Finding]:
        """What the app marked, and what detectors find besides, in order; no two overlap."""
        found = [rest for finding in detectors.find(self.whole) for rest in uncovered(finding, self._marks)]
        return sorted(self._marks + [finding for finding in found if form_of(self.whole[finding.start : finding.end])])

    def _leak(self, kind: str, start: int, end: int) -> LeakError:
        name = kind.lower().replace("_", " ")
        return LeakError(
            f"a secret ({name})",
            f"{self._place}, characters {start} to {end} of its public text",
            "make that part private",
        )


def _spellings(secrets: Iterable[Secret]) -> Patterns:
    """The whole secrets, in every spelling that the guard knows."""
    patterns = Patterns(_WHOLE)
    for secret in secrets:
        patterns.add_secret(secret.text, is_name=False)
    return patterns


def _may_be_a_word(secret: Secret) -> bool:
    """Whether what a detector takes for a name may be a word like any other, which public text is free to say."""
    return secret.kind == "PERSON" and len(secret.text.split()) == 1


def _kind(part: Part) -> str:
    return re.sub("[ -]", "_", part.kind).upper() or "SECRET"
