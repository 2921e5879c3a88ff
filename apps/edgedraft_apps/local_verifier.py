"""Starts a verifier as a process of its own on loopback, and makes sure that it does not outlive us."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from edgedraft.errors import InvalidInput, VerifierUnavailable

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class VerifierProcess:
    """A verifier that runs.

    Attributes:
        port: Where it listens, on `HOST`.
        pid: Its process.
    """

    port: int
    pid: int


@asynccontextmanager
async def local_verifier(
    model: Path, tls: Path, *, log: Path, arguments: Sequence[str] = ()
) -> AsyncGenerator[int, None]:
    """Like `verifier_process`, for those who only want its port."""
    async with verifier_process(str(model), tls, log=log, arguments=arguments) as verifier:
        yield verifier.port


@asynccontextmanager
async def verifier_process(
    model: str, tls: Path, *, log: Path, arguments: Sequence[str] = ()
) -> AsyncGenerator[VerifierProcess, None]:
    """Run `edgedraft-verifier serve` while the block runs; it stops by itself should this process be killed.

    Args:
        model: The target, as the engine takes it.
        tls: Folder with the server's key and certificate.
        log: Where its log goes.
        arguments: Further flags.

    Yields:
        The process, ready to take sessions.

    Raises:
        InvalidInput: The verifier's packages are not installed.
        VerifierUnavailable: It did not start; the message says why.
    """
    if find_spec("grpc_health") is None:
        raise InvalidInput("verifier", "is not installed", "run `pip install 'edgedraft[cloud]'`")
    command = [sys.executable, "-m", "edgedraft_cloud", "serve", "--model", model, "--tls", str(tls)]
    command += ["--host", HOST, "--port", "0", "--grace-seconds", "1", "--exit-with-stdin", *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stderr:
        # In a session of its own, so that Ctrl-C reaches this process alone, which then stops it in good order.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=stderr, start_new_session=True
        )
    try:
        yield VerifierProcess(await _port(process, log), process.pid)
    finally:
        await stop_process(process)


async def _port(process: Process, log: Path) -> int:
    """Wait for the line that says the port."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise VerifierUnavailable(f"the verifier was not ready after {START_SECONDS:g} s; its log is {log}") from error
    if not line:
        raise VerifierUnavailable(f"the verifier did not start: {_last_words(log)} (its log is {log})")
    port: int = json.loads(line)["port"]
    return port


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.strip()), "it said nothing")


async def stop_process(process: Process) -> None:
    """End a child that stops when its standard input closes, or kill it."""
    assert process.stdin is not None
    process.stdin.close()  # it takes that as the sign to stop
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
