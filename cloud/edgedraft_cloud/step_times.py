"""How long a step takes over the rows in it, measured, and how many rows a step should have: the room.

The roofline of a step (Williams, Waterman, Patterson 2009, CACM 52(4)) is flat while it is bound by reading the
weights, and rises with the rows once it is bound by arithmetic: t(rows) = base + slope · max(0, rows - knee).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from edgedraft.errors import Overloaded
from edgedraft_cloud.engines.base import Engine, EngineInfo, Sampling, Work

STRETCH: Final = 4.0
"""A step may take this many times as long as one of a single row. Where arithmetic binds, such a step does at least
three quarters of the rows a second that the largest would do, and a session that waits for it waits that much less."""
_MEMORY: Final = 0.8
"""Weight of what was measured before against one new measurement."""
_OUTLIER: Final = 2.0
"""A step that takes more times what those like it take stood still for some other reason, and counts as so much."""
_FORGET: Final = 0.999
"""What is left, after each further step, of a time that such a one has changed."""
_TOLD: Final = 1e-9
"""Beyond rounding: what the determinant of a fit must have of the product of its diagonal."""
_REPEATS: Final = 2
_PROMPT: Final = 8


@dataclass(frozen=True, slots=True)
class Roofline:
    """A fit of the formula above; seconds and rows."""

    base: float
    slope: float
    knee: float

    def seconds(self, rows: float) -> float:
        """Time of a step."""
        return self.base + self.slope * max(0.0, rows - self.knee)

    @property
    def room(self) -> float:
        """Rows of a step that takes `STRETCH` times as long as the shortest; infinite where it never does."""
        if self.slope <= 0:
            return math.inf
        return self.knee + (STRETCH - 1) * self.base / self.slope


class StepTimes:
    """Keeps what steps took and fits a roofline to it.

    Args:
        most_rows: Rows that the engine takes in one step; the room is never larger.
        fixed: The room, if it is set and not measured.

    Attributes:
        rate: Tokens a second that steps settle, all sessions together; 0 before the first.
    """

    def __init__(self, most_rows: int, fixed: int | None = None) -> None:
        self._most = most_rows
        self._fixed = fixed
        self._points: dict[int, tuple[float, float]] = {}
        self._doubtful: set[int] = set()
        self._fit: Roofline | None = None
        self._rows = 0.0
        self.rate = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a step that read no prompt.

        Args:
            rows: Draft tokens and one more a session, at least 1.
            seconds: How long it took.
        """
        if seconds <= 0:
            return  # a clock too coarse to tell
        bucket = _bucket(rows)
        known = self._points.get(bucket)
        usual = math.inf
        if known is not None:
            usual = known[1]
        elif self.roofline is not None:
            usual = self.roofline.seconds(rows)
        self._doubtful.discard(bucket)
        if seconds > _OUTLIER * usual:
            seconds = _OUTLIER * usual
            self._doubtful.add(bucket)
        if known is not None:
            old_rows, old_seconds = known
            rows_mean = _MEMORY * old_rows + (1 - _MEMORY) * rows
            self._points[bucket] = rows_mean, _MEMORY * old_seconds + (1 - _MEMORY) * seconds
        else:
            self._points[bucket] = float(rows), seconds
        self._fit = None
        for doubtful in self._doubtful:
            if doubtful > _bucket(self.room):  # so far that no step comes to set it right
                rows_mean, old_seconds = self._points[doubtful]
                self._points[doubtful] = rows_mean, _FORGET * old_seconds

    def earned(self, rows: int, tokens: int, seconds: float) -> None:
        """Take in what a step was good for.

        Args:
            rows: As for `observe`.
            tokens: Settled tokens, all sessions together.
            seconds: How long it took.
        """
        if seconds <= 0:
            return
        memory = _MEMORY if self.rate else 0.0
        self._rows = memory * self._rows + (1 - memory) * rows
        self.rate = memory * self.rate + (1 - memory) * tokens / seconds

    @property
    def row_price(self) -> float:
        """Tokens that the engine could settle in the time that one more row of a step takes.

        A row is worth it if it settles more than that (Dinkelbach 1967, Management Science 13(7): the best ratio of two
        sums, tokens and seconds here, is where each part earns that very ratio). Rows below the knee are free.
        """
        line = self.roofline
        return 0.0 if line is None or self._rows <= line.knee else line.slope * self.rate

    @property
    def roofline(self) -> Roofline | None:
        """The best fit to what was measured, or None before there are two points."""
        if self._fit is None and len(self._points) > 1:
            self._fit = fit(sorted(self._points.values()))
        return self._fit

    @property
    def room(self) -> int:
        """Rows that the next step should have at most."""
        if self._fixed is not None:
            return min(self._fixed, self._most)
        line = self.roofline
        if line is None:
            return self._most
        return max(2, int(min(line.room, self._most)))


def _bucket(rows: int) -> int:
    """Two to an octave: enough for a knee, and few enough that each is measured often."""
    return round(2 * math.log2(rows))


def fit(points: list[tuple[float, float]]) -> Roofline:
    """Least squares over every knee that is one of the points.

    Args:
        points: (rows, seconds), at least two of different rows, ascending.
    """
    rows = np.array([point[0] for point in points])
    seconds = np.array([point[1] for point in points])
    knees = rows[:-1]
    # A row a knee. Relative errors, since the times span more than one order of magnitude: for each knee the normal
    # equations of base / seconds + slope * over / seconds = 1.
    one = 1 / seconds
    over = np.maximum(0.0, rows - knees[:, None]) / seconds
    ones, mixed, overs = (one**2).sum(), over @ one, (over**2).sum(axis=1)
    determinant = ones * overs - mixed**2
    told = determinant > _TOLD * ones * overs  # else the times are so far apart that only one of them counts
    determinant[~told] = 1.0
    base = (overs * one.sum() - mixed * over.sum(axis=1)) / determinant
    slope = (ones * over.sum(axis=1) - mixed * one.sum()) / determinant
    errors = ((base[:, None] * one + slope[:, None] * over - 1) ** 2).sum(axis=1)
    errors[~told | (base <= 0) | (slope < 0)] = math.inf
    best = int(errors.argmin())
    if not math.isfinite(errors[best]):
        return Roofline(float(seconds.mean()), 0.0, float(rows[-1]))
    return Roofline(float(base[best]), float(slope[best]), float(knees[best]))


async def measure(engine: Engine, times: StepTimes) -> None:
    """Run steps of ever more rows on an idle engine, until one takes clearly more than `STRETCH` times the shortest.

    Args:
        engine: Started, with no session.
        times: Takes in what was found.

    Raises:
        VerifierUnavailable: The engine died.
    """
    info = engine.info
    block = min(info.max_block, (info.context_length - _PROMPT) // (2 + _REPEATS) - 1)
    shortest = math.inf
    rows = 1
    while rows <= most_rows(info):
        seconds = await _time(engine, _chains(rows, block))
        if seconds is None:
            return
        times.observe(rows, seconds)
        shortest = min(shortest, seconds)
        if seconds > 1.5 * STRETCH * shortest:
            return
        rows = max(rows + 1, math.ceil(rows * math.sqrt(2)))


def most_rows(info: EngineInfo) -> int:
    """Rows that an engine takes in one step."""
    blocks = info.max_sessions * (info.max_block + 1)
    return blocks if info.max_rows is None else min(info.max_rows, blocks)


def _chains(rows: int, block: int) -> list[int]:
    """Draft tokens a session that make up so many rows, with as few sessions as that takes."""
    sessions = math.ceil(rows / (block + 1))
    share, rest = divmod(rows - sessions, sessions)
    return [share + (index < rest) for index in range(sessions)]


async def _time(engine: Engine, chains: list[int]) -> float | None:
    """The shortest of a few steps with such chains; None where the engine has no room for that."""
    sessions: list[str] = []
    try:
        for index in range(len(chains)):
            name = f"measure-{index}-of-{sum(chains) + len(chains)}"
            try:
                await engine.open(name, [0] * _PROMPT, Sampling(), "measure")
            except Overloaded:
                return None
            sessions.append(name)
        unread = set(sessions)
        while unread:
            unread -= {outcome.session for outcome in (await engine.step()).outcomes}
        works = [Work(name, (0,) * chain) for name, chain in zip(sessions, chains, strict=True)]
        # The first of each size may compile or allocate something.
        await _run(engine, works)
        return min([await _run(engine, works) for _ in range(_REPEATS)])
    finally:
        for name in sessions:
            engine.release(name)


async def _run(engine: Engine, works: list[Work]) -> float:
    """Seconds of the step that took these works."""
    batch = engine.submit(works)
    while (step := await engine.step()).batch < batch:
        pass
    return step.seconds
