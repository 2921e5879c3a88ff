"""Logs as JSON lines: events, ids, counts and times, never a word of a prompt or an answer."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a record; what the code passes as `extra` becomes fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record.

        An exception is cut down to its type and to where it was raised, and a message to its first line: the text of an
        exception, which asyncio puts on the lines below, may quote what a device sent.
        """
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage().partition("\n")[0],
        }
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["raised_at"] = [f"{Path(file).name}:{number}" for file, number, _, _ in extract_tb(record.exc_info[2])]
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send the logs of this process to standard error.

    Args:
        level: `debug`, `info`, `warning` or `error`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
