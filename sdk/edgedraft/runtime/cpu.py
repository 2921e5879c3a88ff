"""What this CPU can do, in Linux's names."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from pathlib import Path


def missing_features(needed: Iterable[str]) -> list[str]:
    """Those of some CPU features that this machine lacks; none where the system does not say."""
    return sorted(set(needed) - _features()) if platform.system() == "Linux" else []


@functools.cache
def _features() -> frozenset[str]:
    text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    lines = (line.partition(":") for line in text.splitlines())
    words = next((value for key, _, value in lines if key.strip() in ("flags", "Features")), "")
    return frozenset(words.split())
