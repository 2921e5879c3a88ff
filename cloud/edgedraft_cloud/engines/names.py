"""Names that an engine gives to sessions within itself, none of them twice.

A session that was released may come again under its id while something of its former self is still on its way.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgedraft_cloud.engines.base import SessionId


class Names:
    """Sessions that are open, and what they are called inside."""

    def __init__(self) -> None:
        self._names: dict[SessionId, str] = {}
        self._sessions: dict[str, SessionId] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[SessionId]:
        return iter(self._names)

    def add(self, session: SessionId) -> str:
        """A new name for a session that is not open."""
        self._count += 1
        name = f"{session}/{self._count}"
        self._names[session], self._sessions[name] = name, session
        return name

    def of(self, session: SessionId) -> str | None:
        """The name of a session; None where it is not open."""
        return self._names.get(session)

    def session(self, name: str) -> SessionId | None:
        """Whose name it is; None where that was released."""
        return self._sessions.get(name)

    def drop(self, session: SessionId) -> str | None:
        """Release a session; the name that it had."""
        name = self._names.pop(session, None)
        if name is not None:
            del self._sessions[name]
        return name

    def clear(self) -> None:
        """Release all."""
        self._names.clear()
        self._sessions.clear()


def session_of(name: str) -> SessionId:
    """Whose name it is or was."""
    return name.rpartition("/")[0]
