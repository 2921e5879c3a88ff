"""What the app asks: chat messages or raw text, which of it is private, and the mode under which it is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from edgedraft.errors import InvalidInput

if TYPE_CHECKING:
    from edgedraft.privacy.detect import Detectors
    from edgedraft.privacy.view import View


_LONGEST_KIND: Final = 32
_LONGEST_ROLE: Final = 32


class Mode(StrEnum):
    """What the cloud may see of the prompt. Each mode is a promise; see the README."""

    SEALED = "sealed"
    """The cloud sees the public view and the draft tokens that pass the guard; private words come from the device."""
    CLOAKED = "cloaked"
    """The cloud sees the prompt with placeholders for private spans; the output is the target's, restored here."""
    OPEN = "open"
    """The cloud sees the prompt, over TLS; the output is the target's."""
    LOCAL = "local"
    """Nothing leaves the device; the output is the drafter's own."""


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """A piece of a message, public unless said otherwise.

    Attributes:
        text: What it says.
        private: Whether it stays on the device in mode `sealed`.
        secret: Whether it never leaves, in `sealed` and `cloaked`, nor a piece of it; a secret part is private.
        kind: Of a secret: what it is, e.g. `person`; its placeholder in mode `cloaked` is named for it.

    Raises:
        InvalidInput: A field is not what it should be.
    """

    text: str
    private: bool = False
    secret: bool = False
    kind: str = ""

    def __post_init__(self) -> None:
        _check_string("part.text", self.text)
        _check_string("part.kind", self.kind)
        # None and 0 count as false: whoever passed them may have meant anything, and false is public.
        _check_bool("part.private", self.private)
        _check_bool("part.secret", self.secret)
        # A placeholder is told from other words of an answer by its few words.
        words = re.fullmatch(r"[A-Za-z]+(?:[_ -][A-Za-z]+){0,3}", self.kind)
        if self.kind and (words is None or len(self.kind) > _LONGEST_KIND):
            limit = f"1 to 4 words of {_LONGEST_KIND} letters in all"
            raise InvalidInput("part.kind", f"is not {limit}", "use a word such as `person`")
        if self.kind and not self.secret:
            raise InvalidInput("part.kind", "is given for a part that is no secret", "set secret=True, or leave it out")
        if self.secret:
            if not any(map(str.isalnum, self.text)):
                raise InvalidInput("part.text", "is a secret without a letter or digit", "mark text that can be told")
            object.__setattr__(self, "private", True)

    def __repr__(self) -> str:
        # Private text must not end up in logs and tracebacks.
        return f"Part(<{len(self.text)} private characters>)" if self.private else f"Part({self.text!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """One message of a chat.

    Attributes:
        role: `system`, `user`, `assistant`, or what the model's template knows: 1 to 32 letters a to z, digits, `_` and
            `-`. It is public.
        content: Its text, all of it private, or its parts. Special tokens typed in it stay text.

    Raises:
        InvalidInput: A field is not what it should be.
    """

    role: str
    content: str | Sequence[Part]

    def __post_init__(self) -> None:
        _check_string("message.role", self.role)
        if not self.role:
            raise InvalidInput("message.role", "is empty", "use `user`, `assistant` or `system`")
        # What it says is not quoted: private text may have been passed in its place.
        if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{_LONGEST_ROLE}}}", self.role):
            limit = f"1 to {_LONGEST_ROLE} letters a to z, digits, `_` and `-`"
            raise InvalidInput("message.role", f"is not {limit}", "use `user`, `assistant` or `system`")
        if isinstance(self.content, str):
            return
        if not isinstance(self.content, Sequence) or not all(isinstance(part, Part) for part in self.content):
            raise InvalidInput("message.content", f"is {type(self.content).__name__}", "pass a string or parts")
        object.__setattr__(self, "content", tuple(self.content))

    def __repr__(self) -> str:
        return f"Message({self.role!r}, {list(self.parts)!r})"

    @classmethod
    def public(cls, role: str, text: str) -> Self:
        """A message that the cloud may see."""
        return cls(role, (Part(text),))

    @classmethod
    def marked(cls, role: str, text: str, *, private: bool = False) -> Self:
        r"""A message with marks around its secrets: `Write to [[Alice]]`, or `[[Alice|person]]` to name the kind.

        A backslash takes the meaning away: `\[[`, and `\]]` or `\|` within a mark.

        Args:
            role: Who speaks.
            text: What is said.
            private: Whether the text without marks is private too; else it is public.

        Raises:
            InvalidInput: A mark is empty, not closed, or within another one.
        """
        return cls(role, tuple(_parse_marks(text, private)))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts; plain text is one private part."""
        return (Part(self.content, private=True),) if isinstance(self.content, str) else tuple(self.content)

    @property
    def text(self) -> str:
        """All it says, as the device sees it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Prompt:
    """A chat, or raw text to go on with.

    ```python
    Prompt(public="Answer my question about the note.", private=note)
    ```

    Attributes:
        messages: The chat; rendered with the model's own template.
        raw: Text that is taken as it stands, without a template, all of it private; instead of messages.

    Args:
        messages: See above.
        raw: See above.
        public: One user message instead: what the cloud may see of it,
        private: and, in a paragraph behind it, what it may not.

    Raises:
        InvalidInput: None or more than one of messages, raw text and a message's text is there, or it is empty.
    """

    messages: tuple[Message, ...]
    raw: str

    def __init__(self, messages: Sequence[Message] = (), raw: str = "", *, public: str = "", private: str = "") -> None:
        for name, value in (("raw", raw), ("public", public), ("private", private)):
            _check_string(f"prompt.{name}", value)
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise InvalidInput("prompt.messages", f"is {type(messages).__name__}", "pass a sequence of messages")
        for index, message in enumerate(messages):
            if not isinstance(message, Message):
                raise InvalidInput(f"messages[{index}]", f"is {type(message).__name__}", "pass a Message")
        if bool(messages) + bool(raw) + bool(public or private) != 1:
            raise InvalidInput(
                "prompt", "needs messages, raw text, or public and private text", "pass one of them, not empty"
            )
        if public or private:
            head = f"{public}\n\n" if public and private else public
            parts = (Part(head), Part(private, private=True))
            messages = (Message("user", tuple(part for part in parts if part.text)),)
        if messages and not any(message.text for message in messages):
            raise InvalidInput("prompt", "is empty", "write something in at least one message")
        object.__setattr__(self, "messages", tuple(messages))
        object.__setattr__(self, "raw", raw)

    def __repr__(self) -> str:
        return f"Prompt(<{len(self.raw)} private characters>)" if self.raw else f"Prompt({list(self.messages)!r})"

    @classmethod
    def of(cls, prompt: PromptLike) -> Prompt:
        """Accept what apps like to pass: a string is one user message, mappings have `role` and `content`.

        Raises:
            InvalidInput: It is none of these, or empty.
        """
        if isinstance(prompt, Prompt):
            return prompt
        if isinstance(prompt, str):
            return cls((Message("user", prompt),))
        if not isinstance(prompt, Iterable):
            raise InvalidInput("prompt", f"is {type(prompt).__name__}", "pass a string, a Prompt or messages")
        return cls(tuple(_message(index, item) for index, item in enumerate(prompt)))

    @classmethod
    def marked(cls, text: str, *, private: bool = False) -> Prompt:
        """One user message with marks around its secrets; see `Message.marked`."""
        return cls((Message.marked("user", text, private=private),))

    def as_dicts(self) -> list[dict[str, str]]:
        """The messages as chat templates want them, with all their text."""
        return [{"role": message.role, "content": message.text} for message in self.messages]

    def public_view(self, mode: Mode = Mode.SEALED, *, detectors: Detectors | None = None) -> View:
        """Exactly what the cloud would see of it; nothing is sent.

        Args:
            mode: The privacy mode.
            detectors: What finds secrets; None takes the standard ones.

        Raises:
            LeakError: Public text holds a secret.
        """
        # Here only: views are made of prompts, so that module needs this one.
        from edgedraft.privacy.view import make_views

        return make_views(self, mode, detectors=detectors).public


PromptLike: TypeAlias = str | Prompt | Sequence[Message | Mapping[str, Any]]
"""What `generate` takes: a string, a `Prompt`, or messages.

A message's content may be a list of mappings too, each with `text` and perhaps `private`, `secret` and `kind`; what
does not say that it is public (`"private": False`) is private.
"""

_MARK: Final = re.compile(r"\\(?:\[\[|\]\]|\|)|\[\[|\]\]|\|")
_PART_KEYS: Final = {"type", "text", "private", "secret", "kind"}


def _check_string(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInput(field, f"is {type(value).__name__}", "pass a string")


def _check_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(field, f"is {type(value).__name__}", "pass True or False")


def _message(index: int, item: Message | Mapping[str, Any]) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or not {"role", "content"} <= item.keys():
        raise InvalidInput(f"messages[{index}]", "has no `role` and `content`", "pass both as strings")
    content = item["content"]
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = tuple(_part(f"messages[{index}].content[{place}]", part) for place, part in enumerate(content))
    return Message(item["role"], content)


def _part(field: str, item: Part | Mapping[str, Any]) -> Part:
    if isinstance(item, Part):
        return item
    if not isinstance(item, Mapping) or "text" not in item or item.get("type", "text") != "text":
        raise InvalidInput(field, "has no `text`", "pass text parts only")
    if unknown := item.keys() - _PART_KEYS:
        raise InvalidInput(field, f"has unknown keys {sorted(map(str, unknown))}", f"use {sorted(_PART_KEYS)}")
    for name in ("private", "secret"):
        _check_bool(f"{field}.{name}", item.get(name, True))
    return Part(item["text"], item.get("private", True), item.get("secret", False), item.get("kind", ""))


def _parse_marks(text: str, private: bool) -> Iterable[Part]:
    _check_string("message.content", text)
    pieces: list[str] = []
    opened: int | None = None
    bar: int | None = None  # how many pieces stood before the last `|` of this mark
    position = 0
    for match in _MARK.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        sign = match.group()
        if sign == "[[":
            if opened is not None:
                raise InvalidInput("message.content", f"has a mark within a mark at {match.start()}", "close the first")
            if before := "".join(pieces):
                yield Part(before, private)
            pieces, opened, bar = [], match.start(), None
        elif sign == "]]" and opened is not None:
            value = "".join(pieces if bar is None else pieces[:bar])
            if not any(map(str.isalnum, value)):
                raise InvalidInput(
                    "message.content", f"has a mark without a letter or digit at {opened}", "mark the whole secret"
                )
            yield Part(value, secret=True, kind="" if bar is None else "".join(pieces[bar + 1 :]).strip())
            pieces, opened = [], None
        else:
            if sign == "|" and opened is not None:
                bar = len(pieces)
            literal = sign.startswith("\\") and (sign != r"\|" or opened is not None)
            pieces.append(sign[1:] if literal else sign)
    if opened is not None:
        raise InvalidInput("message.content", f"has a mark at {opened} that is not closed", "write `]]` behind it")
    if rest := "".join([*pieces, text[position:]]):
        yield Part(rest, private)
