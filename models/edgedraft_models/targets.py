"""What models can be compiled for: a table of targets by name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import tvm

from edgedraft.errors import CompileError

NATIVE = "native"

_X86_64 = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"}
_V3_FEATURES = ("avx2", "bmi2", "f16c", "fma", "movbe")
_AVX512_FEATURES = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine.

    Attributes:
        name: As users say it.
        llvm: TVM's description of it.
        features: CPU features that code for it needs, in Linux's names (`/proc/cpuinfo`).
    """

    name: str
    llvm: dict[str, Any]
    features: tuple[str, ...]


def find_target(name: str) -> Target:
    """Look up a target.

    Args:
        name: `native` (this machine) or `x86-64-v3` (any x86-64 with AVX2, FMA and F16C, so most since 2013).

    Raises:
        CompileError: The name is not known, or this machine is of a kind that is not supported.
    """
    if name == "x86-64-v3":
        return Target(name, _X86_64, _V3_FEATURES)
    if name != NATIVE:
        raise CompileError(f"target {name!r} is not known; take native or x86-64-v3")
    machine = platform.machine().lower()
    if platform.system() != "Linux" or machine not in ("x86_64", "aarch64"):
        raise CompileError(f"{platform.system()} on {machine} is not supported; compile on Linux, x86-64 or aarch64")
    if machine == "aarch64":
        return Target(name, {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}, ())
    has = _host_features()
    missing = [feature for feature in _V3_FEATURES if feature not in has]
    if missing:
        raise CompileError(
            f"this CPU lacks {', '.join(missing)}; an x86-64 of the Haswell generation or later is needed"
        )
    if not has.issuperset(_AVX512_FEATURES):
        return Target(name, _X86_64, _V3_FEATURES)
    attributes = [f"+{feature}" for feature in _AVX512_FEATURES]
    return Target(name, {**_X86_64, "mattr": attributes}, _V3_FEATURES + _AVX512_FEATURES)


def _host_features() -> set[str]:
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {name for name, present in features.items() if present}
