"""Settings of a verifier: a TOML file, overruled by flags, checked once at the edge."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final, Self

from edgedraft.errors import InvalidInput

ENGINES: Final = ("embedded", "vllm", "trace")
LEVELS: Final = ("debug", "info", "warning", "error")
_WHOLE: Final = {
    "port": (0, 65_535),
    "max_sessions": (1, 4096),
    "window": (1, 4096),
    "max_block": (1, 256),
    "run_ahead": (0, 4096),
    "sealed_run_ahead": (0, 4096),
    "kv_tokens": (64, 2**31),
    "context": (64, 2**22),
    "step_tokens": (8, 65_536),
    "metrics_port": (0, 65_535),
}
"""Settings that are whole numbers, with the least and the most."""
_SECONDS: Final = {
    "grace_seconds": (0.0, 3600.0),
    "resume_seconds": (0.0, 3600.0),
    "idle_seconds": (1.0, 86_400.0),
    "session_seconds": (1.0, 7 * 86_400.0),
}
"""Settings that are times, in seconds, with the least and the most."""
_TEXT: Final = {
    "model": "use a path or a name",
    "host": "use an address or a name of this machine",
    "verify_ms": 'write it in quotes, e.g. "30"',
    "otlp_endpoint": "use http://host:port",
}
"""Settings that are text, with how to mend them."""
_HOST: Final = re.compile(r"[\w.:%-]+")
"""Names and addresses; whether there is such a machine shows when the verifier listens."""
_PATHS: Final = ("tls", "tenants")
_OPTIONAL: Final = ("threads", "kv_tokens", "context", "step_tokens", "metrics_port", "otlp_endpoint")
"""Settings that may be left out, for the verifier to choose or to do without."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """All settings of `edgedraft-verifier serve`.

    Attributes:
        model: The target: an artifact folder (`embedded`), a folder of safetensors or a hub id (`vllm`), a trace file
            (`trace`).
        tls: Folder with `key.pem`, `cert.pem` and `ca.pem` of the server.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        engine: Which engine runs the target: `embedded`, `vllm`, or `trace`, which only replays one for timing.
        tenants: TOML file with the tenants and their limits; None takes every tenant whose certificate is good.
        threads: Threads for the arithmetic; None picks a default.
        max_sessions: Sessions that may be open at once.
        window: Unverified tokens that a session may have in flight.
        max_block: Draft tokens in one frame.
        run_ahead: Tokens that the cloud may settle by itself beyond what a device has acknowledged; 0 is off.
        sealed_run_ahead: The same in sealed mode, where the device may have another word for each of them.
        kv_tokens: Tokens that the KV cache holds, all sessions together; None takes 16,384, and on a GPU what it holds.
        context: Most tokens of prompt and answer, not for `embedded`; None takes the model's.
        step_tokens: Draft and decoded tokens that one step takes; None measures where a step gets slower.
        verify_ms: Only for `trace`: time of a step in milliseconds, as `base` or `base+per_token@knee`.
        grace_seconds: How long live sessions may take to leave when the verifier stops.
        resume_seconds: How long a session whose device is gone waits for it to come back; 0: not at all.
        idle_seconds: How long a session may go without a frame of its device.
        session_seconds: How long a session may live.
        metrics_port: Port for Prometheus, on `host`; None serves no metrics.
        otlp_endpoint: OpenTelemetry collector for traces, e.g. `http://localhost:4317`; None sends none.
        log_level: `debug`, `info`, `warning` or `error`.

    Raises:
        InvalidInput: Names the setting that is wrong.
    """

    model: str
    tls: Path
    host: str = "127.0.0.1"
    port: int = 7443
    engine: str = "embedded"
    tenants: Path | None = None
    threads: int | None = None
    max_sessions: int = 16
    window: int = 32
    max_block: int = 16
    run_ahead: int = 64
    sealed_run_ahead: int = 4
    kv_tokens: int | None = None
    context: int | None = None
    step_tokens: int | None = None
    verify_ms: str = "30"
    grace_seconds: float = 10.0
    resume_seconds: float = 60.0
    idle_seconds: float = 600.0
    session_seconds: float = 3600.0
    metrics_port: int | None = None
    otlp_endpoint: str | None = None
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name, (least, most) in {**_WHOLE, "threads": (1, 1024)}.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                _check_whole(name, value, least, most)
        for name, (shortest, longest) in _SECONDS.items():
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not shortest <= seconds <= longest:
                raise InvalidInput(name, f"is {_shown(seconds)}", f"use {shortest:g} to {longest:g}")
        for name, cure in _TEXT.items():
            text = getattr(self, name)
            if not (isinstance(text, str) and text) and not (text is None and name in _OPTIONAL):
                raise InvalidInput(name, f"is {_shown(text)}", cure)
        for name in (*_TEXT, *_PATHS):
            if "\0" in str(getattr(self, name)):
                raise InvalidInput(name, "has a NUL character in it", "take it out")
        if not _HOST.fullmatch(self.host):
            raise InvalidInput("host", f"is {_shown(self.host)}", _TEXT["host"])
        if self.metrics_port == self.port != 0:
            raise InvalidInput("metrics_port", f"is {self.port}, as port is", "choose another, or 0 for a free one")
        if self.engine not in ENGINES:
            raise InvalidInput("engine", f"is {_shown(self.engine)}", f"use one of: {', '.join(ENGINES)}")
        if self.log_level not in LEVELS:
            raise InvalidInput("log_level", f"is {_shown(self.log_level)}", f"use one of: {', '.join(LEVELS)}")
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
        for name in _PATHS:
            if name in settings:
                if not isinstance(settings[name], str | Path):
                    raise InvalidInput(name, f"is {_shown(settings[name])}", "use a path")
                settings[name] = _at_home(name, settings[name])
        if isinstance(settings["model"], Path):
            settings["model"] = str(settings["model"])
        if isinstance(settings["model"], str):
            _at_home("model", settings["model"])  # what becomes of it is the engine's to say
        return cls(**settings)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(name, f"is {_shown(value)}", f"use a whole number from {least} to {most}")


def _shown(value: object) -> str:
    """A value as an error quotes it, at no length that a file may have made it."""
    try:
        return shortened(value)
    except ValueError:
        return "a number of thousands of digits"  # which Python does not write


def _at_home(name: str, path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidInput(name, f"is {_shown(str(path))}, of a user who is not here", "write the path out") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise InvalidInput("config", f"{file} cannot be read ({error.strerror})", "check the path") from error
    except (ValueError, RecursionError) as error:  # also of numbers that are too long, brackets that are too deep
        raise InvalidInput("config", f"{file} is no TOML ({error})", "mend that line") from error
