"""Settings of a verifier: a TOML file, overruled by flags, checked once at the edge."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from edgedraft.errors import InvalidInput

ENGINES: Final = ("embedded",)
LEVELS: Final = ("debug", "info", "warning", "error")
_WHOLE: Final = {
    "port": (0, 65_535),
    "max_sessions": (1, 4096),
    "window": (1, 4096),
    "max_block": (1, 256),
    "run_ahead": (0, 4096),
    "kv_tokens": (64, 2**31),
}
"""Settings that are whole numbers, with the least and the most."""
_MAX_GRACE: Final = 3600


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """All settings of `edgedraft-verifier serve`.

    Attributes:
        model: Artifact folder of the target.
        tls: Folder with `key.pem`, `cert.pem` and `ca.pem` of the server.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        engine: Which engine runs the target.
        threads: Threads for the arithmetic; None picks a default.
        max_sessions: Sessions that may be open at once.
        window: Unverified tokens that a session may have in flight.
        max_block: Draft tokens in one frame.
        run_ahead: Tokens that the cloud may settle by itself beyond what a device has acknowledged; 0 is off.
        kv_tokens: Tokens that the KV cache holds, all sessions together.
        grace_seconds: How long live sessions may take to leave when the verifier stops.
        log_level: `debug`, `info`, `warning` or `error`.

    Raises:
        InvalidInput: Names the setting that is wrong.
    """

    model: Path
    tls: Path
    host: str = "127.0.0.1"
    port: int = 7443
    engine: str = "embedded"
    threads: int | None = None
    max_sessions: int = 16
    window: int = 32
    max_block: int = 16
    run_ahead: int = 64
    kv_tokens: int = 16_384
    grace_seconds: float = 10.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            _check_whole(name, getattr(self, name), least, most)
        if self.threads is not None:
            _check_whole("threads", self.threads, 1, 1024)
        grace = self.grace_seconds
        if not isinstance(grace, int | float) or isinstance(grace, bool) or not 0 <= grace <= _MAX_GRACE:
            raise InvalidInput("grace_seconds", f"is {grace!r}", f"use 0 to {_MAX_GRACE}")
        if not isinstance(self.host, str) or not self.host:
            raise InvalidInput("host", f"is {self.host!r}", "use an address or a name of this machine")
        if self.engine not in ENGINES:
            raise InvalidInput("engine", f"is {self.engine!r}", f"use one of: {', '.join(ENGINES)}")
        if self.log_level not in LEVELS:
            raise InvalidInput("log_level", f"is {self.log_level!r}", f"use one of: {', '.join(LEVELS)}")
        if self.max_block > self.window:
            raise InvalidInput(
                "max_block", f"is {self.max_block}, the window is {self.window}", "make the window at least as large"
            )

    @classmethod
    def load(cls, file: Path | None, flags: Mapping[str, Any]) -> Self:
        """Read a file and let flags overrule it.

        Args:
            file: TOML with the names of the attributes; None: no file.
            flags: Settings from the command line; None values are as good as absent.

        Raises:
            InvalidInput: The file cannot be read, or a setting is unknown, missing or wrong.
        """
        settings = {} if file is None else _read(file)
        settings |= {name: value for name, value in flags.items() if value is not None}
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known:
                raise InvalidInput(name, "is no setting of the verifier", f"use one of: {', '.join(sorted(known))}")
        for name in ("model", "tls"):
            if name not in settings:
                raise InvalidInput(name, "is missing", f"pass --{name} or write it into the config file")
            if not isinstance(settings[name], str | Path):
                raise InvalidInput(name, f"is {settings[name]!r}", "use the path of a folder")
            settings[name] = Path(settings[name]).expanduser()
        return cls(**settings)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(name, f"is {value!r}", f"use a whole number from {least} to {most}")


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise InvalidInput("config", f"{file} cannot be read ({error.strerror})", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("config", f"{file} is no TOML ({error})", "mend that line") from error
