"""Typed placeholders for private values, the same one for the same value over a conversation, and the way back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from edgedraft.privacy.detect import Finding
from edgedraft.privacy.restore import MENTION, Restorer, mention_key

_LITERAL: Final = "TEXT"
"""Kind of what looks like a placeholder in the prompt itself: it is cloaked too, so that it comes back as it was."""
_ONE_SPELLING: Final = {"EMAIL", "PHONE", "BANK_ACCOUNT", "CARD", "NATIONAL_ID", "IP", "MAC", "BIRTH_DATE", "PERSON"}
"""Kinds whose value is the same however it is spaced or cased; others, such as passwords, are as they are written."""
_SHORTEST_NAME: Final = 3
_FREE_STANDING: Final = 6
"""From so many letters and digits on, a value is looked for inside longer words too."""


def compact(text: str) -> str:
    """Its letters and digits, without case."""
    return "".join(filter(str.isalnum, text)).casefold()


def value_pattern(value: str) -> str:
    """A regular expression that finds a value in any case, spaced and punctuated anyhow; to use with IGNORECASE.

    Short ones are found as whole words only.
    """
    chars = [char for char in value if char.isalnum()]
    if not chars:
        return re.escape(value)
    loose = r"[\W_]{0,3}".join(map(re.escape, chars))
    if len(chars) >= _FREE_STANDING:
        return loose
    before = "" if _without_spaces(chars[0]) else r"(?<![^\W_])"
    after = "" if _without_spaces(chars[-1]) else r"(?![^\W_])"
    return f"{before}{loose}{after}"


def _without_spaces(char: str) -> bool:
    """Whether it is of a script that puts no spaces between words: Thai, Chinese, Japanese and their neighbours."""
    return "\u0e00" <= char <= "\u0eff" or "\u2e80" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff"


class Cloak:
    """The values of one conversation and their placeholders, such as `[PERSON_1]`.

    ```python
    cloak = Cloak()
    cloak.learn(text, findings)
    hidden = cloak.hide(text, findings)
    restorer = cloak.restorer()
    ```
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}  # key of a placeholder: value
        self._placeholders: dict[str, str] = {}  # identity of a value: placeholder
        self._kinds: dict[str, str] = {}  # compact form of a value: its kind
        self._names: dict[str, str] = {}  # first or last name: placeholder
        self._secrets: list[tuple[str, str]] = []
        self._counts: Counter[str] = Counter()
        self._reserved: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    @property
    def secrets(self) -> Sequence[tuple[str, str]]:
        """Each value, and its kind."""
        return self._secrets

    def learn(self, text: str, findings: Iterable[Finding]) -> None:
        """Give placeholders to what was found in a text.

        Args:
            text: Any text of the conversation.
            findings: Spans in it.
        """
        for finding in findings:
            self._placeholder(text[finding.start : finding.end], finding.kind)

    def hide(self, text: str, findings: Sequence[Finding] = ()) -> str:
        """Replace what was found in a text, and whatever else in it is a value known by now.

        Args:
            text: The text.
            findings: Spans in it, in order; no two overlap.

        Returns:
            The text with placeholders.
        """
        self.learn(text, findings)
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

    # ------------------------------------------------------------ inside

    def _placeholder(self, value: str, kind: str) -> str:
        form = compact(value) or value
        kind = self._kinds.setdefault(form, kind)
        identity = form if kind in _ONE_SPELLING else value
        if identity not in self._placeholders:
            number = self._number(kind)
            self._placeholders[identity] = self._assign(f"[{kind}_{number}]", value)
            self._secrets.append((value, kind))
            self._pattern = None
            words = value.split()
            if kind == "PERSON" and len(words) > 1:
                for name, part in (("FIRST_NAME", words[0]), ("LAST_NAME", words[-1])):
                    if len(part) >= _SHORTEST_NAME and part.isalpha() and part not in self._names:
                        self._names[part] = self._assign(f"[{name}_{number}]", part)
        return self._placeholders[identity]

    def _literal(self, text: str) -> str:
        """Stand in for what looks like a placeholder in the prompt, so that it comes back as it is."""
        if text not in self._placeholders:
            self._placeholders[text] = self._assign(f"[{_LITERAL}_{self._number(_LITERAL)}]", text)
        return self._placeholders[text]

    def _number(self, kind: str) -> int:
        keys = [mention_key(kind)] + ([mention_key("FIRST_NAME"), mention_key("LAST_NAME")] if kind == "PERSON" else [])
        self._counts[kind] += 1
        while any(f"{key}{self._counts[kind]}" in self._reserved for key in keys):
            self._counts[kind] += 1
        return self._counts[kind]

    def _assign(self, placeholder: str, value: str) -> str:
        self._values[mention_key(placeholder)] = value
        return placeholder

    def _hide_known(self, text: str) -> Iterator[str]:
        """Replace known values, and what looks like a placeholder between them."""
        position = 0
        for match in self._known().finditer(text) if text else ():
            value = match.group()
            yield self._hide_literals(text[position : match.start()])
            yield self._names.get(value) or self._placeholder(value, self._kinds[compact(value) or value])
            position = match.end()
        yield self._hide_literals(text[position:])

    def _hide_literals(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            body = next(group for group in match.groups() if group is not None)
            if mention_key(body) in self._values:
                return self._literal(match.group())
            self._reserved.add(mention_key(body))
            return match.group()

        return MENTION.sub(replace, text)

    def _known(self) -> re.Pattern[str]:
        """Finds all known values and names, longer ones first."""
        if self._pattern is None:
            values = sorted((value for value, _ in self._secrets), key=len, reverse=True)
            patterns = [f"(?i:{value_pattern(value)})" for value in values]
            patterns += [rf"(?<![^\W_]){re.escape(name)}(?![^\W_])" for name in self._names]
            self._pattern = re.compile("|".join(patterns) or r"(?!)")
        return self._pattern
