"""A file of encrypted records, in which a change, a gap, another order and a missing end are noticed on reading.

Each record is encrypted by AES-256-GCM under a key of this file alone (HKDF-SHA256 of the caller's key and the file's
id). Its number is the nonce, so that a record fits in its own place only. The last record says that it is the last.

    file    = magic, id (16 bytes), record*
    record  = length (4 bytes, big-endian), ciphertext of one kind byte and the content
"""

from __future__ import annotations

import os
import secrets
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgedraft.errors import InvalidInput, LedgerError

KEY_BYTES: Final = 32
KEY_FILE: Final = "ledger.key"
_MAGIC: Final = b"edgedraft ledger 1\n"
_ID_BYTES: Final = 16
_MOST_BYTES: Final = 64 * 2**20
_CONTENT: Final = b"c"
_LAST: Final = b"l"


class SealedFile:
    """Writes records; each is handed to the system before `write` returns. Can be read back also after its end.

    Args:
        file: Open for writing and reading, empty; it is closed when this goes.
        key: 32 bytes.
    """

    def __init__(self, file: IO[bytes], key: bytes) -> None:
        self._file = file
        self._key = key
        identity = secrets.token_bytes(_ID_BYTES)
        self._number = 0
        self._ended = False
        self._broken = False
        weakref.finalize(self, file.close)
        self._cipher = _cipher(key, identity)
        self._put(_MAGIC + identity)

    @classmethod
    def create(cls, path: Path, key: bytes) -> SealedFile:
        """Make a file that only this user can read.

        Raises:
            InvalidInput: It is there already.
            LedgerError: It cannot be made.
        """
        _check_key(key)
        try:
            return cls(os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b"), key)
        except FileExistsError:
            raise InvalidInput("ledger", f"{path} is there already", "name a new file for each run") from None
        except OSError as error:
            raise LedgerError(f"{path} cannot be made ({error.strerror}); choose another place") from error

    def write(self, content: bytes) -> None:
        """Add a record.

        Raises:
            LedgerError: It cannot be written.
        """
        self._write(_CONTENT + content)

    def read(self) -> list[bytes]:
        """All records so far.

        Raises:
            LedgerError: The file was changed behind our back.
        """
        self._file.seek(0)
        try:
            return list(_records(self._file, self._key, whole=False))
        finally:
            self._file.seek(0, os.SEEK_END)

    def end(self) -> None:
        """Write the last record; may be called again.

        Raises:
            LedgerError: It cannot be written.
        """
        if not self._ended:
            self._ended = True
            self._write(_LAST)

    def _write(self, plain: bytes) -> None:
        self._number += 1
        sealed = self._cipher.encrypt(_nonce(self._number), plain, None)
        self._put(len(sealed).to_bytes(4) + sealed)

    def _put(self, data: bytes) -> None:
        problem = "it could not be before"  # half a record may stand there now
        try:
            if not self._broken:
                self._file.write(data)
                self._file.flush()
                return
        except OSError as error:
            problem = str(error.strerror)
        self._broken = True
        raise LedgerError(f"the ledger cannot be written ({problem}); nothing leaves without an entry")


def read_sealed(path: Path, key: bytes) -> Iterator[bytes]:
    """The records of a file, each as soon as it is found to be whole and in its place.

    Raises:
        LedgerError: It cannot be read, is no such file or of another key, was changed, or has no end: a part of it was
            cut off, or what wrote it still runs or was killed. What came before is genuine.
    """
    try:
        with path.open("rb") as file:
            yield from _records(file, key, whole=True)
    except OSError as error:
        raise LedgerError(f"{path} cannot be read ({error.strerror})") from error


def _records(file: IO[bytes], key: bytes, *, whole: bool) -> Iterator[bytes]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise LedgerError("the file is no ledger")
    cipher = _cipher(key, file.read(_ID_BYTES))
    number = 0
    while head := file.read(4):
        number += 1
        length = int.from_bytes(head)
        sealed = file.read(length) if length <= _MOST_BYTES else b""
        if len(head) < 4 or len(sealed) < length:
            raise LedgerError(f"the ledger is cut off within record {number}")
        try:
            plain = cipher.decrypt(_nonce(number), sealed, None)
        except InvalidTag:
            raise LedgerError(
                f"record {number} of the ledger was changed or is out of its place, or the key is another file's"
            ) from None
        if plain[:1] == _LAST:
            if file.read(1):
                raise LedgerError(f"the ledger goes on behind its last record, number {number}")
            return
        yield plain[1:]
    if whole:
        raise LedgerError(
            f"the ledger has no end behind record {number}: it was cut off, or what wrote it still runs or was killed"
        )


def _cipher(key: bytes, identity: bytes) -> AESGCM:
    _check_key(key)
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt=identity, info=_MAGIC).derive(key))


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise InvalidInput("ledger_key", f"has {len(key)} bytes", f"pass {KEY_BYTES} random bytes")


def _nonce(number: int) -> bytes:
    return number.to_bytes(12)


def ledger_key(folder: Path, *, create: bool = False) -> bytes:
    """The key that lies beside an identity, readable by this user alone.

    Args:
        folder: The identity's.
        create: Make one if there is none.

    Raises:
        LedgerError: There is none, it cannot be read or made, is open to others or is no key.
    """
    path = folder / KEY_FILE
    try:
        if create and not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
        mode, key = path.stat().st_mode, path.read_bytes()
    except FileNotFoundError as error:
        raise LedgerError(f"{error.filename} is not there; it is made with the first ledger file") from error
    except OSError as error:
        raise LedgerError(f"{path} cannot be used ({error.strerror}); check its permissions") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LedgerError(f"{path} is open to others (mode {stat.S_IMODE(mode):o}); run chmod 600 on it")
    if len(key) != KEY_BYTES:
        raise LedgerError(f"{path} has {len(key)} bytes, a key has {KEY_BYTES}; put the right one back")
    return key
