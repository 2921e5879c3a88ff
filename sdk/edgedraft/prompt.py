"""What the app asks: chat messages or raw text, and the privacy mode under which it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from edgedraft.errors import InvalidInput


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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    Attributes:
        role: `system`, `user`, `assistant`, or what the model's template knows.
        content: Its text; special tokens typed in it stay text.

    Raises:
        InvalidInput: A field is not what it should be.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        for name in ("role", "content"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"message.{name}", f"is {type(getattr(self, name)).__name__}", "pass a string")
        if not self.role:
            raise InvalidInput("message.role", "is empty", "use `user`, `assistant` or `system`")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat, or raw text to go on with.

    Attributes:
        messages: The chat; rendered with the model's own template.
        raw: Text that is taken as it stands, without a template; instead of messages.

    Raises:
        InvalidInput: Both or neither is there, or the text is empty.
    """

    messages: tuple[Message, ...] = ()
    raw: str = ""

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.raw):
            raise InvalidInput("prompt", "needs either messages or raw text", "pass one of them, not empty")
        if self.messages and not any(message.content for message in self.messages):
            raise InvalidInput("prompt", "is empty", "write something in at least one message")

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
        return cls(tuple(_message(index, item) for index, item in enumerate(prompt)))

    def as_dicts(self) -> list[dict[str, str]]:
        """The messages as chat templates want them."""
        return [{"role": message.role, "content": message.content} for message in self.messages]


PromptLike: TypeAlias = str | Prompt | Sequence[Message | Mapping[str, str]]
"""What `generate` takes: a string, a `Prompt`, or messages."""


def _message(index: int, item: Message | Mapping[str, str]) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or not {"role", "content"} <= item.keys():
        raise InvalidInput(f"messages[{index}]", "has no `role` and `content`", "pass both as strings")
    return Message(item["role"], item["content"])
