"""Folders come to be whole or not at all, and full disks have a name."""

import errno
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from edgedraft.errors import DiskFull, ModelSourceError
from edgedraft_models.progress import silent
from edgedraft_models.store import Store, default_home, folder_in_making, require_space, writing_to

Usage = namedtuple("Usage", "total used free")


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def fill(destination: Path, text: str, error: BaseException | None = None) -> None:
    with folder_in_making(destination) as folder:
        (folder / "file").write_text(text)
        if error:
            raise error


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit()])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        fill(tmp_path / "a", "new", error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_the_old_folder_stays_after_an_error(tmp_path: Path, error: BaseException) -> None:
    fill(tmp_path / "a", "old")
    with pytest.raises(type(error)):
        fill(tmp_path / "a", "new", error)
    assert contents(tmp_path) == {"a/file": "old"}


def test_a_new_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    fill(tmp_path / "a", "old")
    (tmp_path / "a" / "more").write_text("gone afterwards")
    fill(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a/file": "new"}


def test_leftovers_of_a_crash_are_cleared(tmp_path: Path) -> None:
    (tmp_path / ".a.part").mkdir()
    (tmp_path / ".a.part" / "half").write_text("")
    fill(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a/file": "new"}


def test_a_crash_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    fill(tmp_path / ".a.old", "old")
    with pytest.raises(ValueError, match="stop"):
        fill(tmp_path / "a", "new", ValueError("stop"))
    assert contents(tmp_path) == {"a/file": "old"}


def test_a_crash_before_the_clean_up_keeps_the_new_one(tmp_path: Path) -> None:
    fill(tmp_path / ".a.old", "old")
    fill(tmp_path / "a", "new")
    fill(tmp_path / ".a.old", "old")
    with pytest.raises(ValueError, match="stop"):
        fill(tmp_path / "a", "newer", ValueError("stop"))
    assert contents(tmp_path) == {"a/file": "new"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_while_writing(tmp_path: Path, code: int) -> None:
    with pytest.raises(DiskFull, match=r"no room left.*EDGEDRAFT_HOME"):
        fill(tmp_path / "a", "new", OSError(code, os.strerror(code)))
    assert list(tmp_path.iterdir()) == []


def test_file_size_limit_of_the_system_is_a_full_disk(tmp_path: Path) -> None:
    """A real write that fails, in a process of its own."""
    program = """
import pathlib, resource, signal, sys
from edgedraft.errors import DiskFull
from edgedraft_models.store import folder_in_making
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with folder_in_making(pathlib.Path(sys.argv[1]) / "a") as folder:
        (folder / "file").write_bytes(bytes(2000))
except DiskFull:
    print("full")
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "full\n"
    assert list(tmp_path.iterdir()) == []


def test_missing_permission_says_where_to_go() -> None:
    with (
        pytest.raises(ModelSourceError, match="/ro/x: Permission denied; set HF_HOME"),
        writing_to(Path("/a"), "HF_HOME"),
    ):
        raise OSError(errno.EACCES, "", "/ro/x")


def test_other_errors_of_the_system_pass() -> None:
    with pytest.raises(OSError, match="odd"), writing_to(Path("/a")):
        raise OSError(errno.EIO, "odd")


def test_too_little_room_is_seen_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 5_000_000))
    require_space(tmp_path / "not" / "there", 5_000_000)
    with pytest.raises(DiskFull, match="7 MB are needed and 5 MB are free"):
        require_space(tmp_path / "not" / "there", 7_000_000)


def test_home_is_where_the_variable_says(tmp_path: Path) -> None:
    assert default_home({"EDGEDRAFT_HOME": str(tmp_path)}) == tmp_path
    assert default_home({"EDGEDRAFT_HOME": "~/models"}) == Path.home() / "models"
    assert default_home({}) == default_home({"EDGEDRAFT_HOME": ""})
    assert default_home({}).name == "edgedraft"


def test_a_second_process_waits_for_the_first(store: Store) -> None:
    program = """
import pathlib, sys
from edgedraft_models import Store
with Store(pathlib.Path(sys.argv[1])).lock("m", lambda stage, *_: print(stage, flush=True)):
    print("mine", flush=True)
"""
    with store.lock("m", silent):
        child = subprocess.Popen([sys.executable, "-c", program, store.home], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "wait for another process that builds m\n"
        assert child.poll() is None
    assert child.communicate(timeout=60)[0] == "mine\n"
    assert child.returncode == 0


def test_other_models_are_not_held_up(store: Store) -> None:
    reports: list[str] = []
    with store.lock("a", silent), store.lock("b", lambda stage, *_: reports.append(stage)):
        assert reports == []
