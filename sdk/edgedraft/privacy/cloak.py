"""Typed placeholders for private values, the same one for the same value over a conversation, and the way back."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from edgedraft.privacy.detect import Finding
from edgedraft.privacy.normalise import LETTERS
from edgedraft.privacy.patterns import name_words
from edgedraft.privacy.restore import MENTION, Restorer, mention_key
from edgedraft.privacy.values import Secret, ValueFinder, form_of

_LITERAL: Final = "TEXT"
"""Kind of what looks like a placeholder in the prompt itself: it is cloaked too, so that it comes back as it was."""
_ONE_SPELLING: Final = {"EMAIL", "PHONE", "BANK_ACCOUNT", "CARD", "NATIONAL_ID", "IP", "MAC", "BIRTH_DATE", "PERSON"}
"""Kinds whose value is the same however it is spaced or cased; others, such as passwords, are as they are written."""
_MAY_BE_NAMES: Final = {"PERSON", "SECRET"}
_NAME: Final = "NAME"
"""Kind of a word of a name that is neither the first nor the last."""
_PARTS: Final = re.compile(f"{LETTERS}(?:[-'’]{LETTERS})*")
_SHORTEST_NAME: Final = 3
_ANY_CASE: Final = 6
"""A first or last name of so many letters is one in any case."""


class Cloak:
    """The values of one conversation and their placeholders, such as `[PERSON_1]`.

    ```python
    cloak = Cloak()
    hidden = cloak.hide(text, findings)
    restorer = cloak.restorer()
    ```
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}  # key of a placeholder: value
        self._placeholders: dict[str, str] = {}  # identity of a value: placeholder
        self._literals: dict[str, str] = {}  # what looks like a placeholder in the prompt: placeholder
        self._kinds: dict[str, str] = {}  # form of a value: its kind
        self._names: dict[str, str] = {}  # a name's word in NFC, and the form of a long one: placeholder
        self._secrets: list[Secret] = []
        self._counts: Counter[str] = Counter()
        self._reserved: set[str] = set()
        self._finder = ValueFinder()

    @property
    def secrets(self) -> Sequence[Secret]:
        """The values."""
        return self._secrets

    def learn(self, secrets: Iterable[Secret]) -> None:
        """Give placeholders to values, before texts are hidden in which they stand."""
        secrets = list(secrets)
        wholes: dict[str, Secret] = {}  # by form of a word: the name it stands in first
        for secret in secrets:
            words = secret.text.split()
            if secret.kind == "PERSON" and len(words) > 1:
                for word in words:
                    wholes.setdefault(form_of(word), secret)
        # In the order in which they appear, so that a conversation that goes on keeps its numbers. A name's word before
        # the whole name is told to be of the same person.
        for secret in secrets:
            if secret.kind == "PERSON" and (whole := wholes.get(form_of(secret.text))):
                self._placeholder(whole.text, whole.kind)
            self._placeholder(secret.text, secret.kind)

    def hide(self, text: str, findings: Sequence[Finding] = ()) -> str:
        """Replace what was found in a text, and whatever else in it is a value known by now.

        Args:
            text: The text.
            findings: Spans in it, in order; no two overlap.

        Returns:
            The text with placeholders.
        """
        self.learn(Secret(text[finding.start : finding.end], finding.kind) for finding in findings)
        out: list[str] = []
        position = 0
        for finding in findings:
            out += self._hide_known(text[position : finding.start])
            out.append(self._placeholder(text[finding.start : finding.end], finding.kind))
            position = finding.end
        return "".join([*out, *self._hide_known(text[position:])])

    def restorer(self) -> Restorer:
        """Puts the values back into one answer as it streams."""
        return Restorer(dict(self._values))

    def restore(self, text: str) -> str:
        """Put the values back into a whole text."""
        restorer = self.restorer()
        return restorer.push(text) + restorer.finish()

    def around(self, hidden: str) -> list[str]:
        """What stands before, between and behind the placeholders of a text that was hidden."""
        pieces: list[str] = []
        position = 0
        for match in MENTION.finditer(hidden):
            if mention_key(_body(match)) in self._values:
                pieces.append(hidden[position : match.start()])
                position = match.end()
        return [*pieces, hidden[position:]]

    # ------------------------------------------------------------ inside

    def _placeholder(self, value: str, kind: str) -> str:
        if kind == "PERSON" and _nfc(value) in self._names:
            return self._names[_nfc(value)]
        form = form_of(value)
        kind = self._kinds.setdefault(form, kind)
        identity = form if kind in _ONE_SPELLING else value
        if identity not in self._placeholders:
            number = self._number(kind)
            self._placeholders[identity] = self._assign(f"[{kind}_{number}]", value)
            self._secrets.append(Secret(value, kind))
            self._finder.add(value)
            if kind in _MAY_BE_NAMES and len(value.split()) > 1:
                self._learn_names(value, number, is_person=kind == "PERSON")
        return self._placeholders[identity]

    def _learn_names(self, value: str, number: int, *, is_person: bool) -> None:
        """Give placeholders to the words of a name, which tell of it by themselves."""
        words = _nfc(value).split()
        ends = {words[0]: f"[FIRST_NAME_{number}]", words[-1]: f"[LAST_NAME_{number}]"} if is_person else {}
        known = {part: each for part, each in ends.items() if len(part) >= _SHORTEST_NAME and _PARTS.fullmatch(part)}
        for part in [*known, *name_words(value, sure=is_person)]:
            if part not in self._names:
                placeholder = known.get(part) or f"[{_NAME}_{self._number(_NAME)}]"
                self._names[part] = self._assign(placeholder, part)
                if is_person:
                    form = form_of(part)
                    # A short one may be a word: `Rose` and `ROSE` are names, `rose` is none.
                    spellings = {part.title(), part.upper()} | ({form} if len(form) >= _ANY_CASE else set())
                    for spelling in spellings:
                        self._names.setdefault(spelling, self._names[part])
                self._finder.add(part)

    def _literal(self, text: str) -> str:
        """Stand in for what looks like a placeholder in the prompt, so that it comes back as it is."""
        if text not in self._literals:
            self._literals[text] = self._assign(f"[{_LITERAL}_{self._number(_LITERAL)}]", text)
        return self._literals[text]

    def _number(self, kind: str) -> int:
        keys = [mention_key(kind)] + ([mention_key("FIRST_NAME"), mention_key("LAST_NAME")] if kind == "PERSON" else [])
        self._counts[kind] += 1
        # Two kinds may read alike in an answer, `E_MAIL` and `EMAIL`.
        while any(f"{key}{self._counts[kind]}" in taken for key in keys for taken in (self._reserved, self._values)):
            self._counts[kind] += 1
        return self._counts[kind]

    def _assign(self, placeholder: str, value: str) -> str:
        self._values[mention_key(placeholder)] = value
        return placeholder

    def _hide_known(self, text: str) -> Iterator[str]:
        """Replace known values, and what looks like a placeholder between them."""
        position = 0
        for start, end, form in self._finder.find(text):
            value = text[start:end]
            known = self._placeholder(value, self._kinds[form]) if form in self._kinds else self._name(value, form)
            if known:
                yield self._hide_literals(text[position:start])
                yield known
                position = end
        yield self._hide_literals(text[position:])

    def _name(self, value: str, form: str) -> str | None:
        """The placeholder of a name's word; a short one is a name only if it is written like one, not as `rose`."""
        return self._names.get(_nfc(value)) or (self._names.get(form) if len(form) >= _ANY_CASE else None)

    def _hide_literals(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            key = mention_key(_body(match))
            if key in self._values and not match.group()[0].islower():
                return self._literal(match.group())
            self._reserved.add(key)  # also where it is a name in code such as `name_1`, which is not restored
            return match.group()

        return MENTION.sub(replace, text)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _body(match: re.Match[str]) -> str:
    """What stands in a mention's brackets, or the mention if it has none."""
    return next(group for group in match.groups() if group is not None)
