"""Stop strings that are found across tokens, and never shown, not even in part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edgedraft.errors import InvalidInput

MAX_STOPS: Final = 16
MAX_STOP_LENGTH: Final = 256


class StopMatcher:
    """Cuts a stream of text at the first stop string that is complete; of two that end together, at the longer.

    Args:
        stops: Stop strings.

    Raises:
        InvalidInput: Too many, an empty or a too long one.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if len(stops) > MAX_STOPS:
            raise InvalidInput("stop", f"has {len(stops)} strings, the limit is {MAX_STOPS}", "pass fewer")
        for index, stop in enumerate(stops):
            if not isinstance(stop, str) or not stop:
                raise InvalidInput(f"stop[{index}]", "is not a string with text", "leave it out")
            if len(stop) > MAX_STOP_LENGTH:
                raise InvalidInput(
                    f"stop[{index}]", f"has {len(stop)} characters, the limit is {MAX_STOP_LENGTH}", "use its beginning"
                )
        self._stops = sorted(stops, key=len, reverse=True)
        self._longest = len(self._stops[0]) if self._stops else 0
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take text; what of it (and of what was held back) can be shown.

        Once a stop string was complete, `stopped` is set and nothing more comes.
        """
        if self.stopped:
            return ""
        if not self._stops:
            return text
        start = len(self._held)
        self._held += text
        for end in range(start + 1, len(self._held) + 1):
            for stop in self._stops:
                if self._held.endswith(stop, 0, end):
                    shown = self._held[: end - len(stop)]
                    self._held = ""
                    self.stopped = True
                    return shown
        keep = self._beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """The text ended: what was held back turned out to be no stop string."""
        shown, self._held = self._held, ""
        return shown

    def _beginning(self) -> int:
        """Length of the longest suffix that may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            suffix = self._held[-length:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
