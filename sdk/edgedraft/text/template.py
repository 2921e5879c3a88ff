"""The model's own chat template, rendered in a sandbox: a template is data from a model, not code that we trust."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgedraft.errors import InvalidInput, ModelFormatError

MAX_TEMPLATE_LENGTH: Final = 256 * 1024


class ChatTemplate:
    """Renders messages into the text that the model was trained on.

    Args:
        source: Jinja source, as in `tokenizer_config.json`.
        variables: Names that templates use, such as `bos_token`.

    Raises:
        ModelFormatError: The source is no template, or too long.
    """

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE_LENGTH:
            raise ModelFormatError(
                f"chat_template has {len(source)} characters, the limit is {MAX_TEMPLATE_LENGTH}; use a shorter one"
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelFormatError(f"chat_template, line {error.lineno}: {error.message}; fix the template") from error
        self._variables = dict(variables or {})

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Render messages.

        Args:
            messages: Each with `role` and `content`.
            add_generation_prompt: Whether to end with the beginning of the assistant's answer.

        Raises:
            InvalidInput: The template refuses these messages.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(
                "messages", f"do not suit the chat template ({error})", "check roles and order"
            ) from error


def _to_json(value: Any, indent: int | None = None) -> str:
    # As chat templates expect it: no HTML escapes, and characters as they are.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
