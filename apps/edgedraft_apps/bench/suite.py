"""What every suite works with: a verifier of its own, certificates, and a way to tell how far it is."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from edgedraft.identity import Identity
from edgedraft_apps.local_verifier import HOST, verifier_process
from edgedraft_cloud.authority import DevelopmentAuthority

T = TypeVar("T")
Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class RunningVerifier:
    """A verifier under test.

    Attributes:
        address: `host:port`.
        pid: Its process.
    """

    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Suite:
    """The surroundings of a suite.

    Attributes:
        folder: For certificates and logs; a temporary one.
        quick: Measure for a short time: a try-out, not a figure to quote.
        progress: Told how far it is.
    """

    folder: Path
    quick: bool
    progress: Progress

    def seconds(self, full: float) -> float:
        """How long to measure, where `full` is right for a figure to quote."""
        return full / 6 if self.quick else full

    def devices(self, tenant: str, count: int) -> list[Identity]:
        """Identities of devices of a tenant."""
        authority = DevelopmentAuthority(self.folder / "ca")
        return [Identity.load(authority.device(tenant, f"device-{number}")) for number in range(count)]

    @asynccontextmanager
    async def verifier(self, engine: str, model: str, *arguments: str) -> AsyncGenerator[RunningVerifier, None]:
        """Run a verifier while the block runs.

        Args:
            engine: Its engine.
            model: The target.
            arguments: Further flags of `edgedraft-verifier serve`.

        Raises:
            VerifierUnavailable: It did not start.
        """
        tls = DevelopmentAuthority(self.folder / "ca").server()
        flags = ("--engine", engine, "--log-level", "warning", *arguments)
        async with verifier_process(model, tls, log=self.folder / "verifier.log", arguments=flags) as process:
            yield RunningVerifier(f"{HOST}:{process.port}", process.pid)

    def tenants(self, **weights: float) -> Path:
        """A file of tenants with weights, and room for many sessions."""
        file = self.folder / "tenants.toml"
        default = "[default]\nmax_sessions = 4096\n"
        file.write_text(
            default
            + "".join(
                f"[tenants.{name}]\nweight = {weight}\nmax_sessions = 4096\n" for name, weight in weights.items()
            ),
            encoding="utf-8",
        )
        return file


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; Ctrl-C and SIGTERM cancel it, so that it stops its processes, and then end this one."""
    terminated = False

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        # An exception out of a signal's handler could come up anywhere, in the middle of gRPC's callbacks too.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if terminated:
            sys.exit(128 + signal.SIGTERM)
        raise
