"""Where models live on disk, and how a folder comes to be there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from edgedraft.errors import DiskFull, ModelSourceError
from edgedraft_models.progress import Progress

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def default_home(environ: Mapping[str, str]) -> Path:
    """The folder that holds everything: `EDGEDRAFT_HOME` if it is set, else the user's cache folder."""
    home = environ.get("EDGEDRAFT_HOME")
    return Path(home).expanduser().absolute() if home else platformdirs.user_cache_path("edgedraft")


@dataclass(frozen=True)
class Store:
    """The models below one home folder.

    Attributes:
        home: Made when first written to.
    """

    home: Path

    def model(self, name: str) -> Path:
        """Folder of all that belongs to one model."""
        return self.home / "models" / name

    def source(self, name: str) -> Path:
        """Folder of a model's downloaded originals."""
        return self.model(name) / "source"

    def hf(self, name: str) -> Path:
        """Folder with a model as float16 safetensors, which transformers and vLLM load."""
        return self.model(name) / "hf"

    def artifact(self, name: str, quantization: str, target: str) -> Path:
        """Folder with a model compiled for one target."""
        return self.model(name) / f"{quantization}-{target}"

    @contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Keep other processes from making folders of the same model meanwhile; wait for them if they are at it."""
        folder = self.model(name)
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / ".lock").open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"wait for another process that builds {name}", 0, 1, "")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextmanager
def folder_in_making(destination: Path) -> Iterator[Path]:
    """Make a folder under another name and put it in place when all went well.

    Whatever was at the destination stays as it was until then; after an error, Ctrl-C or a crash nothing else changed.
    The caller holds the model's lock.

    Args:
        destination: The folder to make or to replace.

    Yields:
        An empty folder beside it.

    Raises:
        DiskFull: There is no room left.
        ModelSourceError: The place cannot be written to.
    """
    part, old = (destination.with_name(f".{destination.name}.{kind}") for kind in ("part", "old"))
    with writing_to(destination):
        if old.exists():  # a crash came between the two renames below, or before the clean-up after them
            if destination.exists():
                shutil.rmtree(old)
            else:
                old.rename(destination)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            yield part
            if destination.exists():
                destination.rename(old)
            part.rename(destination)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def writing_to(path: Path, setting: str = "EDGEDRAFT_HOME") -> Iterator[None]:
    """Translate a full disk and missing permissions into the project's errors.

    Args:
        path: What is being written.
        setting: The environment variable with which a user moves it elsewhere.

    Raises:
        DiskFull: There is no room left.
        ModelSourceError: The user may not write there.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFull(f"{path}: no room left on the disk; free some, or set {setting} to another one") from error
        if error.errno in _NOT_ALLOWED:
            raise ModelSourceError(
                f"{error.filename or path}: {os.strerror(error.errno)}; set {setting} to a folder that you may write to"
            ) from error
        raise


def require_space(path: Path, needed: int, setting: str = "EDGEDRAFT_HOME") -> None:
    """Check that so many bytes fit on the disk of a path; `setting` is as in `writing_to`.

    Raises:
        DiskFull: They do not.
    """
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskFull(
            f"{path}: {needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free; "
            f"free some, or set {setting} to another disk"
        )
