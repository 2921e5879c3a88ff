"""Puts values back where a stream of text mentions their placeholders, also bent or split ones."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from copy import copy
from typing import Final, Self

# A kind is 1 to 4 words, between them spaces, hyphens or underscores, which Markdown may escape. Everything is bounded
# and possessive: no text makes the match slow.
_WORDS: Final = r"[A-Za-z]{1,32}+(?:[ _\\-]{1,3}+[A-Za-z]{1,32}+){0,3}+[ _\\-]{0,3}+"
_BARE_WORDS: Final = r"[A-Za-z]{1,32}+(?:\\?+_[A-Za-z]{1,32}+){0,3}+\\?+_"
_NUMBER: Final = r"\d{1,6}+"
_ENDING: Final = r"(?:['’]?+s)?+"
_EMPHASIS: Final = 3
"""So many underscores around a mention may be Markdown's."""
_BEFORE: Final = r"(?<![A-Za-z0-9\\])" + "".join(rf"(?<![A-Za-z0-9]{'_' * count})" for count in range(1, _EMPHASIS + 1))
_BEHIND: Final = rf"(?!_{{0,{_EMPHASIS}}}[A-Za-z0-9])"
_BRACKETED: Final = (
    rf"\[ {{0,2}}({_WORDS}{_NUMBER})({_ENDING}) {{0,2}}\]"
    rf"|\\\[ {{0,2}}({_WORDS}{_NUMBER})({_ENDING}) {{0,2}}\\\]"
)
_PROSE: Final = rf"{_BEFORE}(?<![.${{])(?=[A-Z])"
_NO_CODE: Final = r"(?!\(|\.\w| ?=)"
"""Names in code look like placeholders without brackets: `name_1`, `row.Name_1`, `Name_1(x)`, `NAME_1 = 2`."""
MENTION: Final = re.compile(rf"{_BRACKETED}|{_BEFORE}({_BARE_WORDS}{_NUMBER})(s?+){_BEHIND}")
"""What looks like a placeholder, as models may write it: `[PERSON_1]`, `[ Person 1 ]`, `[person_1's]`,
`\\[PERSON\\_1\\]`, `Person_1`, `person_1`.

Two of its groups take part: the placeholder without brackets, and an ending.
"""
_MEANT: Final = re.compile(rf"{_BRACKETED}|{_PROSE}({_BARE_WORDS}{_NUMBER})(s?+){_BEHIND}{_NO_CODE}")
"""What is taken for one in an answer: without brackets only what begins with a capital and is no name in code."""
_START: Final = re.compile(rf"\\|\[|{_PROSE}")
_UNFINISHED: Final = re.compile(
    r"\\?\[ {0,2}(?P<bracketed>[A-Za-z][A-Za-z _\\-]{0,140}+\d{0,6}+)?(?:['’]?s?) {0,2}\\?"
    rf"|(?P<bare>[A-Za-z][A-Za-z_\\]{{0,140}}+\d{{0,6}}+)s?(?:_{{0,{_EMPHASIS}}}|[. ])"
    r"|\\"
)
"""What may still become a mention when more text follows."""
_DECIDED: Final = re.compile(rf"[. ].|_{{1,{_EMPHASIS}}}[^_]|_{{{_EMPHASIS + 1}}}|[^_. ]", re.DOTALL)
"""What shows that a bare mention does not go on."""
_LETTERS: Final = 2
"""So many capital letters of a kind behind a bracket, at the very end of a text, are half a placeholder."""
_LONGEST: Final = 160
"""No mention is longer."""


def mention_key(mention: str) -> str:
    """What is the same in all spellings of a placeholder: its letters, and its number without zeros in front."""
    letters = "".join(filter(str.isalpha, mention)).casefold()
    number = "".join(str(unicodedata.decimal(char)) for char in mention if char.isdecimal())
    return letters + number.lstrip("0")


class Restorer:
    """Restores one stream of text.

    Text that may be the beginning of a placeholder waits until it is clear what it is; the result does not depend on
    how the text is cut.

    Args:
        values: The value for each key (`mention_key`) of a placeholder.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._beginnings = {key[:length] for key in values for length in range(len(key) + 1)}
        self._held = ""
        self._before = ""  # the last characters before what is held: a mention begins a word

    def fork(self) -> Self:
        """One that goes on from here on its own, as for text that is not settled yet."""
        return copy(self)

    def push(self, text: str) -> str:
        """Take text; what of it (and of what was held back) can be shown."""
        return self._restore(text, at_end=False)

    def finish(self) -> str:
        """The text ended: what was held back, without half a placeholder."""
        return self._restore("", at_end=True)

    # ------------------------------------------------------------ inside

    def _restore(self, new: str, *, at_end: bool) -> str:
        text = self._before + self._held + new
        out: list[str] = []
        position = shown = len(self._before)
        held = len(text)
        while start := _START.search(text, position):
            begin = start.start()
            position = begin + 1
            mention = _MEANT.match(text, begin)
            if mention and (at_end or text[mention.end() - 1] == "]" or _DECIDED.match(text, mention.end())):
                body, ending = (group for group in mention.groups() if group is not None)
                if (value := self._values.get(mention_key(body))) is not None:
                    out += (text[shown:begin], value, ending)
                    position = shown = mention.end()
            elif self._is_beginning(text, begin):
                held = begin
                break
        out.append(text[shown:held])
        self._before, self._held = text[:held][-_EMPHASIS - 1 :], text[held:]
        if at_end:
            out.append(self._cut_off())
            self._held = ""
        return "".join(out)

    def _is_beginning(self, text: str, begin: int) -> bool:
        """Whether the rest of a text may be the beginning of a mention."""
        if len(text) - begin > _LONGEST:
            return False
        match = _UNFINISHED.fullmatch(text, begin)
        return match is not None and mention_key(match["bracketed"] or match["bare"] or "") in self._beginnings

    def _cut_off(self) -> str:
        """What to show of a beginning that nothing follows."""
        match = _UNFINISHED.fullmatch(self._held)
        body = match and match["bracketed"]
        if not body or body != body.upper() or len(body) < _LETTERS:
            return self._held
        key = mention_key(body)
        if key in self._values and not any(key + digit in self._beginnings for digit in "0123456789"):
            return self._values[key]
        return ""
