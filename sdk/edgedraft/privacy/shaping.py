"""Traffic shaping as the app asks for it: how far sizes and times of frames may tell of what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from edgedraft.errors import InvalidInput
from edgedraft.wire import check_shaping
from edgedraft.wire import verify_pb2 as pb

SIZES: Final = (64, 256, 1024, 4096)
PACED_SIZES: Final = (256, 4096)
"""A paced frame takes the first of these: its size would tell how many tokens are in it."""
SHAPED_MODES: Final = ("sealed", "cloaked")


@dataclass(frozen=True, slots=True)
class Shaping:
    """What sizes and times of frames may tell, both ways.

    The opening frame always takes a multiple of the largest size, so that prompts of usual length look alike. With
    `pace`, one frame leaves at each beat, an empty one where there is nothing to say, and a session that is over beats
    on in the background until 1, 2, 4, 8, ... times `span_seconds` have passed; the app does not wait for it, but to
    close the client does.

    Attributes:
        sizes: Bytes of a frame, ascending; a frame beyond the last takes a multiple of that. Empty: no padding. None:
            64, 256, 1024, 4096; with a pace 256, 4096, as what a frame holds then goes into one size.
        pace: "steady", or None: frames leave when they are ready.
        beat_seconds: Between two frames of one direction, in whole milliseconds. Each frame waits for half a beat on
            average.
        span_seconds: See above; 0 ends a session when it is over, which tells how long the answer was.

    Raises:
        InvalidInput: A value is out of range.
    """

    sizes: Sequence[int] | None = None
    pace: Literal["steady"] | None = None
    beat_seconds: float = 0.05
    span_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.pace not in (None, "steady"):
            raise InvalidInput("shaping.pace", f"is {self.pace!r}", 'use "steady" or None')
        for name, least in (("beat_seconds", 0.01), ("span_seconds", 0.0)):
            value = getattr(self, name)
            if not least <= value <= 600:
                raise InvalidInput(f"shaping.{name}", f"is {value}", f"use {least:g} to 600")
        if any(not isinstance(size, int) or size < 0 for size in self.sizes or ()):
            raise InvalidInput("shaping.sizes", f"are {self.sizes}", "use whole numbers of bytes")
        try:
            check_shaping(self.wire)
        except InvalidInput as error:
            raise InvalidInput(
                f"shaping{error.field.removeprefix('open.shaping')}", error.problem, error.cure
            ) from None

    @classmethod
    def of_mode(cls, mode: str) -> Self:
        """What a privacy mode has where the app asks for nothing: padding in `sealed` and `cloaked`."""
        return cls(None if mode in SHAPED_MODES else ())

    @property
    def wire(self) -> pb.Shaping:
        """What the device asks the verifier to do."""
        sizes = self.sizes if self.sizes is not None else PACED_SIZES if self.pace else SIZES
        if not self.pace:
            return pb.Shaping(sizes=sizes)
        return pb.Shaping(
            sizes=sizes,
            beat_ms=round(self.beat_seconds * 1000),
            span_beats=round(self.span_seconds / self.beat_seconds),
        )
