"""The ledger: every frame that left this device or came to it, decoded, beside what was held back.

The gate writes an entry in the function that hands the bytes to the transport, so nothing leaves without one. No entry
is ever dropped: what memory has no room for goes to an encrypted file, the one that the app has named, or a nameless
temporary one whose key only this process has. If that cannot be written, the frame does not leave.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Literal, Self

from google.protobuf.json_format import MessageToDict

from edgedraft.errors import InvalidInput, LedgerError
from edgedraft.privacy.sealed_file import KEY_BYTES, SealedFile, read_sealed
from edgedraft.wire import given_flags
from edgedraft.wire import verify_pb2 as pb

Direction = Literal["up", "down"]
Message = pb.ClientFrame | pb.ServerFrame | pb.DescribeRequest | pb.DescribeResponse

ENTRY_BYTES: Final = 600
"""What an entry takes in memory, roughly, beside its frame."""


@dataclass(frozen=True, slots=True)
class Held:
    """A token that stayed on the device.

    Attributes:
        position: Where in the answer; the wire has a placeholder there.
        token: Its id.
        text: Its text.
    """

    position: int
    token: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One frame.

    Attributes:
        number: Counts the entries of the ledger from 1.
        generation: Which generation of the client, from 1; 0: none.
        at: When it was handed to the transport or came from it, in seconds since 1970 UTC.
        direction: "up" left the device, "down" came to it.
        mode: The privacy mode; empty outside generations.
        kind: What is in it: "open", "draft", "close", "opened", "verdict", "finished", "go_away", "describe",
            "acknowledgement", or "empty".
        position: Where in the answer its tokens begin, if it is a draft or a verdict.
        tokens: Token ids in it.
        text: Their text.
        given: For each token of a draft, whether the device decided it; empty where none is given.
        held: What was held back: on this device only, no part of the frame.
        frame: The bytes as the transport had them, padding included.
    """

    number: int
    generation: int
    at: float
    direction: Direction
    mode: str
    kind: str
    position: int
    tokens: tuple[int, ...]
    text: str
    given: tuple[bool, ...]
    held: tuple[Held, ...]
    frame: bytes

    @property
    def size(self) -> int:
        """Bytes, before TLS."""
        return len(self.frame)

    @property
    def message(self) -> Message:
        """The frame, parsed."""
        types: dict[tuple[bool, Direction], type[Message]] = {
            (True, "up"): pb.DescribeRequest,
            (True, "down"): pb.DescribeResponse,
            (False, "up"): pb.ClientFrame,
            (False, "down"): pb.ServerFrame,
        }
        return types[self.kind == "describe", self.direction].FromString(self.frame)

    def as_json(self) -> dict[str, Any]:
        """All of it, with every field that was in the frame, and the bytes in base64."""
        message = self.message
        padding = 0
        if isinstance(message, pb.ClientFrame | pb.ServerFrame):
            padding = len(message.padding)
            message.ClearField("padding")
        return {
            **self._plain(),
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
            "size": self.size,
            "padding": padding,
            "fields": MessageToDict(message, preserving_proto_field_name=True),
        }

    def pack(self) -> bytes:
        """For a file."""
        return json.dumps(self._plain()).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """From a file.

        Raises:
            LedgerError: It is none of this version.
        """
        try:
            plain = json.loads(data)
            for name in ("tokens", "given"):
                plain[name] = tuple(plain[name])
            plain["held"] = tuple(Held(**each) for each in plain["held"])
            plain["frame"] = base64.b64decode(plain["frame"])
            return cls(**plain)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError("the ledger has an entry of another version; use the one that wrote it") from error

    def _plain(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "held": [asdict(held) for held in self.held],
            "frame": base64.b64encode(self.frame).decode(),
        }


class Ledger:
    """Keeps the entries of one client. May be read from another thread.

    Args:
        token_bytes: The bytes of a token's text; None takes the client's, as soon as it has this ledger.
        file: Where to write every entry, encrypted: a new file. None: memory, and what it has no room for goes to a
            temporary file.
        key: 32 random bytes that encrypt the file; `ledger_key` has one beside an identity.
        memory_bytes: What entries may take in memory, roughly.
        clock: Seconds since 1970 UTC.

    Raises:
        InvalidInput: The file is there already, or a setting is wrong.
        LedgerError: The file cannot be made.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes] | None = None,
        *,
        file: Path | None = None,
        key: bytes | None = None,
        memory_bytes: int = 16 * 2**20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if (file is None) != (key is None):
            raise InvalidInput("ledger_key", "and a ledger file go together", "pass both or none")
        if memory_bytes < 0:
            raise InvalidInput("memory_bytes", f"is {memory_bytes}", "use 0 or more")
        self.token_bytes = token_bytes
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: list[Entry] = []
        self._recent_bytes = 0
        self._count = 0
        self._pages = 0
        self._file = SealedFile.create(file, key) if file is not None and key is not None else None
        self._named = self._file is not None
        self._closed = False

    def page(self, mode: str) -> Page:
        """The page of a new generation in a privacy mode."""
        with self._lock:
            self._pages += 1
            return Page(self, self._pages, mode)

    def record(
        self, page: Page | None, direction: Direction, message: Message, frame: bytes, held: Sequence[tuple[int, int]]
    ) -> None:
        """Write an entry; only the gate does.

        Args:
            page: Of the generation, if it is one's.
            direction: "up" or "down".
            message: The frame's content.
            frame: Its bytes.
            held: Position and token of what was held back from it.

        Raises:
            LedgerError: It cannot be written: the frame must not leave.
        """
        kind, position, tokens, given = _content(message)
        with self._lock:
            if self._closed:
                raise LedgerError("the ledger is closed; nothing leaves without an entry")
            entry = Entry(
                self._count + 1,
                0 if page is None else page.number,
                self._clock(),
                direction,
                "" if page is None else page.mode,
                kind,
                position,
                tokens,
                self.text_of(tokens),
                given,
                tuple(Held(place, token, self.text_of((token,))) for place, token in held),
                frame,
            )
            if self._file is not None and self._named:
                self._file.write(entry.pack())
            self._count += 1
            self._recent.append(entry)
            self._recent_bytes += len(frame) + ENTRY_BYTES
            if self._recent_bytes > self._memory_bytes:
                self._spill()

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens; empty where nobody has said what they stand for."""
        if self.token_bytes is None:
            return ""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")

    def entries(self) -> list[Entry]:
        """All entries, oldest first.

        Raises:
            LedgerError: The file that holds the older ones was changed.
        """
        with self._lock:
            if len(self._recent) == self._count or self._file is None:
                return list(self._recent)
            older = self._file.read()[: self._count - len(self._recent)]
            return [*map(Entry.unpack, older), *self._recent]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries())

    def as_json(self) -> list[dict[str, Any]]:
        """All entries as JSON has them."""
        return [entry.as_json() for entry in self.entries()]

    def close(self) -> None:
        """End it, and the file if there is one; it can still be read. May be called again.

        Raises:
            LedgerError: The file cannot be written.
        """
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.end()

    def _spill(self) -> None:
        """Make room: what the named file has already is forgotten here, the rest moves to the temporary one."""
        if self._file is None:
            self._file = SealedFile(TemporaryFile(prefix="edgedraft-"), secrets.token_bytes(KEY_BYTES))  # noqa: SIM115  it closes it
        if not self._named:
            for entry in self._recent:
                self._file.write(entry.pack())
        self._recent.clear()
        self._recent_bytes = 0


@dataclass(frozen=True, slots=True)
class Page:
    """The entries of one generation.

    Attributes:
        ledger: Where they are.
        number: Of the generation.
        mode: Its privacy mode.
    """

    ledger: Ledger
    number: int
    mode: str

    def record(self, direction: Direction, message: Message, frame: bytes, held: Sequence[tuple[int, int]]) -> None:
        """Write an entry; only the gate does.

        Raises:
            LedgerError: It cannot be written: the frame must not leave.
        """
        self.ledger.record(self, direction, message, frame, held)

    def entries(self) -> list[Entry]:
        """The entries, oldest first.

        Raises:
            LedgerError: The file that holds the older ones was changed.
        """
        return [entry for entry in self.ledger.entries() if entry.generation == self.number]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries())

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens; empty where nobody has said what they stand for."""
        return self.ledger.text_of(tokens)

    def was_on_wire(self, tokens: Sequence[int]) -> bool:
        """Whether each of these, the answer from its beginning, has left or come at its place before."""
        if not tokens:
            return True
        seen = {
            place
            for entry in self.entries()
            if entry.kind in ("draft", "verdict")
            for place in enumerate(entry.tokens, entry.position)
        }
        return seen.issuperset(enumerate(tokens))

    def as_json(self) -> list[dict[str, Any]]:
        """The entries as JSON has them."""
        return [entry.as_json() for entry in self.entries()]


def read_ledger(file: Path, key: bytes) -> Iterator[Entry]:
    """The entries of a file, oldest first.

    Raises:
        LedgerError: As `read_sealed` says; what came before is genuine.
    """
    return map(Entry.unpack, read_sealed(file, key))


def _content(message: Message) -> tuple[str, int, tuple[int, ...], tuple[bool, ...]]:
    """What kind of frame it is, where its tokens are, what they are, and which of them are given."""
    if not isinstance(message, pb.ClientFrame | pb.ServerFrame):
        return "describe", 0, (), ()
    kind: str | None = message.WhichOneof("frame")
    match message:
        case pb.ClientFrame() if kind == "open":
            return kind, 0, (*message.open.prompt, *message.open.resume_tokens), ()
        case pb.ClientFrame() if kind == "draft":
            draft = message.draft
            return kind, draft.position, tuple(draft.tokens), given_flags(draft) if draft.given else ()
        case pb.ServerFrame() if kind == "verdict":
            return kind, message.verdict.position, tuple(message.verdict.tokens), ()
        case pb.ClientFrame() if kind is None and message.settled:
            return "acknowledgement", 0, (), ()
        case _:
            return kind or "empty", 0, (), ()
