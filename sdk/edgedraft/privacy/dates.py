"""The usual spellings of a date, so that a secret date does not leave in another one."""

from __future__ import annotations


def date_spellings(text: str) -> set[str]:
    """Spellings, in compact form, of the dates that stand in a text."""
    return set()
