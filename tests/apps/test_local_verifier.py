"""The verifier beside the demo: its errors are relayed, and it never outlives the demo."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgedraft.errors import InvalidInput, VerifierUnavailable
from edgedraft_apps import local_verifier as module
from edgedraft_apps.local_verifier import local_verifier

SECONDS = 60


def demo(home: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "edgedraft_apps", "demo", "--max-tokens", "600", *arguments]
    environment = {**os.environ, "EDGEDRAFT_HOME": str(home)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def children(pid: int) -> list[int]:
    """Processes whose parent this is, handles to them: they can be waited for without being their parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found.append(os.pidfd_open(int(entry.name)))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
    return found


def has_ended(handle: int) -> bool:
    return bool(select.select([handle], [], [], SECONDS)[0])


@pytest.fixture
def home(default_pair) -> Path:
    """The store that holds the default pair."""
    return default_pair.drafter.parents[2]


async def test_why_it_did_not_start_is_said(certificates, tmp_path):
    with pytest.raises(VerifierUnavailable, match=r"nothing.*is not there.*verifier\.log"):
        async with local_verifier(tmp_path / "nothing", certificates.server(), log=tmp_path / "verifier.log"):
            pass


async def test_without_its_packages_the_cure_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"edgedraft\[cloud\]"):
        async with local_verifier(tmp_path, tmp_path, log=tmp_path / "verifier.log"):
            pass


async def test_it_serves_within_the_block_and_is_gone_after_it(default_pair, certificates, tmp_path):
    async with local_verifier(default_pair.target, certificates.server(), log=tmp_path / "verifier.log") as port:
        (process,) = children(os.getpid())
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
    assert has_ended(process)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_the_demo_answers_and_reports(default_pair, home):
    process = demo(home, "--max-tokens", "12", "--rtt", "20", "--prompt", "Say hello.")
    out, errors = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, errors
    assert "> Say hello." in out
    assert "over mTLS, 20 ms of RTT added" in out
    for figure in ("tokens", "α", "rounds", "rollbacks", "RTT", "up", "down", "wait hidden"):
        assert f"\n{figure}  " in out


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_demo_that_is_stopped_leaves_no_process(default_pair, home, blow):
    with demo(home) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("> "):
            assert process.poll() is None
        started = children(process.pid)
        assert len(started) == 1
        process.send_signal(blow)
        process.communicate()
    assert process.returncode == (-blow if blow is signal.SIGKILL else 128 + blow)
    assert all(map(has_ended, started))
