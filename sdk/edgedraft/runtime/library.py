"""The compiled library on TVM's runtime: loading it, checking the CPU, and how many threads it may use.

Only `tvm_ffi` and TVM's small runtime library are loaded; `import tvm` would bring in the compiler.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform
import threading
from pathlib import Path
from typing import Any

import tvm_ffi

from edgedraft.errors import InvalidInput, ModelFormatError
from edgedraft.runtime.cpu import missing_features

_SHARE_ALL_CORES = -3  # TVM's affinity mode in which no thread is bound to one core

# How often TVM's threads look for work before they sleep: long enough to last from loop to loop, about a millisecond;
# TVM's own number burns a fifth of a second of every core after each step. It can only be said in the environment.
_SPINS = "2000"

_pool = threading.local()
"""What this thread's pool was last set to; TVM keeps one pool for each thread that calls it."""


class Library:
    """The functions of a `model.so`.

    Args:
        path: The file.
        features: CPU features that its code needs, in Linux's names.
        threads: CPU threads to compute with; None takes all that this process may use.

    Raises:
        ModelFormatError: The file is missing or damaged, or this CPU lacks a feature.
        InvalidInput: `threads` is not positive, or more than this process may use.
    """

    def __init__(self, path: Path, features: tuple[str, ...], threads: int | None) -> None:
        cpus = _usable_cpus()
        self._threads = len(cpus) if threads is None else threads
        if not 1 <= self._threads <= len(cpus):
            raise InvalidInput("threads", f"is {threads}, but this process may use {len(cpus)} CPUs", "give 1 to that")
        if missing := missing_features(features):
            raise ModelFormatError(
                f"{path}: compiled for CPUs with {', '.join(missing)}, which this one lacks; "
                "build the model again on this machine"
            )
        _load_runtime()
        try:
            module = tvm_ffi.load_module(str(path))
            self._step, self._top_blocks = module["step"], module["top_blocks"]
        except (RuntimeError, AttributeError) as error:
            raise ModelFormatError(
                f"{path}: cannot be loaded ({error}); build the model again with `edgedraft models build`"
            ) from error

    def step(self, *arguments: Any) -> None:
        """Call `step`; other Python threads run meanwhile."""
        self._use_threads()
        self._step(*arguments)

    def top_blocks(self, *arguments: Any) -> None:
        """Call `top_blocks`; other Python threads run meanwhile."""
        self._use_threads()
        self._top_blocks(*arguments)

    def _use_threads(self) -> None:
        if getattr(_pool, "threads", None) != self._threads:
            configure = tvm_ffi.get_global_func("runtime.config_threadpool")
            configure(_SHARE_ALL_CORES, self._threads, [str(cpu) for cpu in _usable_cpus()])
            _pool.threads = self._threads


def tensor(array: Any) -> Any:
    """Show a NumPy array to the library, without a copy."""
    return tvm_ffi.from_dlpack(array)


@functools.cache
def _load_runtime() -> None:
    """Load TVM's runtime, which compiled code calls back into to run its loops on threads."""
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", _SPINS)
    package = importlib.util.find_spec("tvm")
    if package is None or not package.submodule_search_locations:
        raise ModelFormatError("compiled models need TVM's runtime; `pip install apache-tvm`")
    names = {"Darwin": "libtvm_runtime.dylib", "Windows": "tvm_runtime.dll"}
    name = names.get(platform.system(), "libtvm_runtime.so")
    ctypes.CDLL(str(Path(package.submodule_search_locations[0], "lib", name)), ctypes.RTLD_GLOBAL)


def _usable_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
