"""The detectors that come with Edgedraft, most certain first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from edgedraft.privacy.detect.registry import Detector

_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}+@(?:[\w-]{1,63}+\.)+[^\W\d_]{2,24}(?!\w)")


def email(text: str) -> Iterable[tuple[int, int]]:
    """E-mail addresses."""
    return (match.span() for match in _EMAIL.finditer(text))


STANDARD: Final[dict[str, Detector]] = {"EMAIL": email}
