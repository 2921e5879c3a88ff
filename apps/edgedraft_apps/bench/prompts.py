"""Prompts for a benchmark, from a file: JSON Lines, or plain text with a prompt a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgedraft.errors import InvalidInput

DEFAULT_PROMPTS: Final = Path(__file__).with_name("prompts.jsonl")
"""Prompts of our own, of a dozen kinds."""
_KEYS: Final = ("prompt", "text", "turns")
_CURE: Final = 'write lines of text, or of JSON such as {"prompt": "..."} or {"turns": ["..."]}'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        text: One user message.
        category: What kind of prompt it is, or empty.
    """

    text: str
    category: str = ""


def load_prompts(file: Path, limit: int | None = None) -> list[BenchPrompt]:
    """Read prompts; of several `turns` the first is taken.

    Args:
        file: JSON Lines with `prompt`, `text` or `turns`, and perhaps `category`, if its first line is JSON.
        limit: Take so many, spread evenly over the file, so that every category has its part; None takes all.

    Raises:
        InvalidInput: It cannot be read, holds none, or a line is wrong.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("prompts", f"{file} cannot be read ({error})", _CURE) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InvalidInput("prompts", f"{file} is empty", _CURE)
    as_json = numbered[0][1].startswith("{")
    prompts = [_parse(line, number) if as_json else BenchPrompt(line) for number, line in numbered]
    if limit is None or limit >= len(prompts):
        return prompts
    if limit < 1:
        raise InvalidInput("limit", f"is {limit}", "take at least one prompt")
    return [prompts[index * len(prompts) // limit] for index in range(limit)]


def _parse(line: str, number: int) -> BenchPrompt:
    try:
        data: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInput("prompts", f"line {number} is no JSON ({error})", _CURE) from error
    found = next((data[key] for key in _KEYS if key in data), None) if isinstance(data, dict) else None
    text = found[0] if isinstance(found, list) and found else found
    if not isinstance(text, str) or not text:
        raise InvalidInput("prompts", f"line {number} has no text", _CURE)
    return BenchPrompt(text, str(data.get("category", "")))
