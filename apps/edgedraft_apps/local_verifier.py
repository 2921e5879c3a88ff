"""Starts a verifier as a process of its own on loopback, and makes sure that it does not outlive us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from edgedraft.errors import VerifierError

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0


@asynccontextmanager
async def local_verifier(model: Path, tls: Path, *, log: Path, arguments: tuple[str, ...] = ()) -> AsyncIterator[int]:
    """Run `edgedraft-verifier serve` while the block runs; yields its port.

    Args:
        model: Artifact folder of the target.
        tls: Folder with the server's key and certificate.
        log: Where its log goes.
        arguments: Further flags.

    Raises:
        VerifierError: It did not start; the message holds the end of its log.
    """
    command = [sys.executable, "-m", "edgedraft_cloud", "serve", "--model", str(model), "--tls", str(tls)]
    command += ["--host", "127.0.0.1", "--port", "0", "--grace-seconds", "1", "--exit-with-stdin", *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as log_file:
        # A session of its own: Ctrl-C in the terminal reaches us, and we stop it in good order.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
        )
        try:
            yield await _port(process, log)
        finally:
            await _stop(process)


async def _port(process: asyncio.subprocess.Process, log: Path) -> int:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise VerifierError(f"the verifier did not start within {START_SECONDS:.0f} s; see {log}") from error
    if not line:
        await process.wait()
        raise VerifierError(f"the verifier did not start: {_last_lines(log) or 'it said nothing'} (log: {log})")
    port: int = json.loads(line)["port"]
    return port


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it may end by itself at this moment
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
