"""Who is served and how much of the verifier each may have: the tenants' file, and the bucket that meters tokens."""

from __future__ import annotations

import math
import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final, Self

from edgedraft.errors import InvalidInput
from edgedraft_cloud.authority import device_uri

_WHOLE: Final = {"max_sessions": 1_000_000, "tokens_per_minute": 10**12, "burst": 10**12}
"""Limits that are whole numbers of at least 1, with the most."""
_WEIGHT: Final = (0.001, 1000)
_LEAST_BURST: Final = 256
_PLACE: Final = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")
"""How tomllib says where a mistake is."""


class TokenBucket:
    """Meters a flow of tokens: `burst` at once, and `rate_per_second` in the long run.

    What a step yields is known only after it, so a bucket may be overdrawn and has to be waited for afterwards. Its one
    variable is the time at which it will be full again (the "virtual scheduling" form of the generic cell rate
    algorithm, ITU-T I.371), so that nothing needs to refill it.

    Args:
        rate_per_second: Tokens a second that flow in; more than 0.
        burst: Tokens that a full bucket holds; more than 0. It is full at first.

    Raises:
        InvalidInput: One of them is not a finite number above 0.
    """

    def __init__(self, rate_per_second: float, burst: float) -> None:
        for name, value in (("rate_per_second", rate_per_second), ("burst", burst)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(name, f"is {value}", "use a number above 0")
        self._rate = rate_per_second
        self._fill_seconds = burst / rate_per_second
        self._full_at = -math.inf

    def take(self, tokens: int, now: float) -> None:
        """Take tokens out, whether they are there or not.

        Args:
            tokens: How many; 0 or more.
            now: Time in seconds, on any clock that does not go back.

        Raises:
            InvalidInput: `tokens` is negative.
        """
        if tokens < 0:
            raise InvalidInput("tokens", f"is {tokens}", "use 0 or more")
        self._full_at = max(self._full_at, now) + tokens / self._rate

    def put_back(self, tokens: int) -> None:
        """Give back what was taken and not used."""
        self._full_at -= tokens / self._rate

    def wait(self, now: float) -> float:
        """Seconds until it is no longer overdrawn; 0 where it is not."""
        return max(0.0, self._full_at - self._fill_seconds - now)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant's share of the verifier.

    Attributes:
        name: As certificates have it.
        weight: Its share beside other busy tenants: 2 gets twice the verified tokens of 1.
        max_sessions: Sessions that it may have open at once.
        tokens_per_minute: Settled tokens a minute in the long run; None: no limit.
        burst: Tokens that it may have at once after a rest; None takes a quarter of `tokens_per_minute`, at least 256.

    Raises:
        InvalidInput: Names the limit that is wrong.
    """

    name: str
    weight: float = 1.0
    max_sessions: int = 64
    tokens_per_minute: int | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        device_uri(self.name, "device")
        _check_number("weight", self.weight, *_WEIGHT, whole=False)
        for name, limit in _WHOLE.items():
            value = getattr(self, name)
            if value is not None or name == "max_sessions":
                _check_number(name, value, 1, limit, whole=True)
        if self.burst is not None and self.tokens_per_minute is None:
            raise InvalidInput("burst", "stands without tokens_per_minute", "give both, or neither")

    def bucket(self) -> TokenBucket | None:
        """A new bucket for its tokens, or None where they are not limited."""
        if self.tokens_per_minute is None:
            return None
        burst = self.burst or max(_LEAST_BURST, self.tokens_per_minute // 4)
        return TokenBucket(self.tokens_per_minute / 60, burst)


_KEYS: Final = tuple(field.name for field in fields(Tenant) if field.name != "name")


class Tenants:
    """All tenants that are served.

    Args:
        named: Those with limits of their own.
        default: Limits of everybody else, whatever its name is; None: nobody else is served.
    """

    def __init__(self, named: Mapping[str, Tenant], default: Tenant | None) -> None:
        self._named = dict(named)
        self._default = default

    @classmethod
    def anyone(cls) -> Self:
        """Serve every tenant whose certificate is good, with the limits that `Tenant` has by default."""
        return cls({}, Tenant("default"))

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a tenants' file.

        ```toml
        [default]                 # tenants that are not named below; without it they are not served
        max_sessions = 4

        [tenants.acme]            # stands for itself: nothing of [default] counts here
        weight = 3
        tokens_per_minute = 60_000
        ```

        Raises:
            InvalidInput: The file cannot be read or has a mistake; names the line.
        """
        text = _read(file)
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            line, problem = _place(error, text)
            raise InvalidInput("tenants", f"{file}, line {line}: {problem}", "mend that line") from error
        try:
            return cls._parse(document)
        except _Mistake as mistake:
            line = _line_of(mistake.path, text)
            raise InvalidInput("tenants", f"{file}, line {line}: {mistake.problem}", mistake.cure) from mistake

    @classmethod
    def _parse(cls, document: dict[str, Any]) -> Self:
        default: Tenant | None = None
        named: dict[str, Tenant] = {}
        for key, value in document.items():
            match key:
                case "default":
                    default = _tenant("default", value, ("default",))
                case "tenants":
                    tables = _table(value, ("tenants",))
                    named = {name: _tenant(name, table, ("tenants", name)) for name, table in tables.items()}
                case _:
                    raise _Mistake((key,), f"{shortened(key)} is unknown", "use [default] and [tenants.NAME]")
        if default is None and not named:
            raise _Mistake((), "no tenant is there, so nobody would be served", "write [default] or [tenants.NAME]")
        return cls(named, default)

    def get(self, name: str) -> Tenant | None:
        """The tenant of that name with its limits, or None where it is not served."""
        tenant = self._named.get(name)
        if tenant is None and self._default is not None:
            return replace(self._default, name=name)
        return tenant


class _Mistake(Exception):
    """Something in a tenants' file that is TOML and yet wrong.

    Args:
        path: Keys that lead to it.
        problem: What is wrong.
        cure: What to do about it.
    """

    def __init__(self, path: tuple[str, ...], problem: str, cure: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem
        self.cure = cure


def _tenant(name: str, value: object, path: tuple[str, ...]) -> Tenant:
    table = _table(value, path)
    for key in table:
        if key not in _KEYS:
            raise _Mistake((*path, key), f"{shortened(key)} is unknown", f"use {', '.join(_KEYS)}")
    try:
        return Tenant(name, **table)
    except InvalidInput as error:
        where = (*path, error.field) if error.field in table else path
        raise _Mistake(where, f"{error.field} {error.problem}", error.cure) from error


def _check_number(name: str, value: Any, least: float, most: int, *, whole: bool) -> None:
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise InvalidInput(name, f"is {shortened(value)}", f"use {kind} from {least:,} to {most:,}")


def _table(value: object, path: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Mistake(path, f"{'.'.join(path)} is {shortened(value)}", "write a table")
    return value


def _read(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidInput("tenants", f"{file} cannot be read ({error.strerror})", "check the path") from error
    try:
        # As tomllib does for files.
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput("tenants", f"{file}, line {line}: is no UTF-8", "save the file as UTF-8") from error


def _place(error: Exception, text: str) -> tuple[int, str]:
    """Line and description of what tomllib says."""
    lines = text.rstrip("\n").split("\n")
    problem = str(error)
    if place := _PLACE.search(problem):
        return int(place["line"] or len(lines)), problem[: place.start()]

    # A number of thousands of digits, brackets in brackets: Python's own error, without a place.
    def reached(count: int) -> bool:
        try:
            tomllib.loads("\n".join(lines[:count]))
        except (ValueError, RecursionError) as found:
            return type(found) is type(error)
        return False

    return bisect_left(range(len(lines)), True, key=reached), problem


def _line_of(path: tuple[str, ...], text: str) -> int:
    """Where the statement ends that sets the value at `path`: with it, the file's beginning holds it already."""
    lines = text.split("\n")

    def holds(count: int) -> bool:
        node: object = _beginning(lines, count)
        for key in path:
            if not isinstance(node, dict) or key not in node:
                return False
            node = node[key]
        return True

    return max(1, bisect_left(range(len(lines)), True, key=holds))


def _beginning(lines: list[str], count: int) -> dict[str, Any]:
    """The first `count` lines, or as many as there are before a value that goes on beyond them."""
    for end in range(count, 0, -1):
        try:
            return tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
    return {}
