"""Compile a model's library: kernels by TVM, and a shared library by whatever linker this machine has."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import tvm

from edgedraft.errors import CompileError
from edgedraft.runtime.manifest import LIBRARY, ModelConfig
from edgedraft_models.kernels.linear import FORMATS
from edgedraft_models.kernels.step import decoder_module
from edgedraft_models.targets import NATIVE, Target, find_target

_LINK_SECONDS = 120


def compile_model(folder: Path, *, target: str = NATIVE, progress: Callable[[str, float], None] | None = None) -> None:
    """Compile the model of an artifact folder and put `model.so` into it.

    Args:
        folder: Holds at least `mlc-chat-config.json`.
        target: See `edgedraft_models.targets.find_target`.
        progress: Told what is being done and the share of the work that is done, 0 to 1.

    Raises:
        ModelNotFound: There is no config.
        ModelFormatError: The config is damaged.
        CompileError: The shape or the target is not supported, no linker was found, or a tool failed.
    """
    report = progress or (lambda stage, share: None)
    config = ModelConfig.load(folder)
    machine = find_target(target)
    check_shape(config)
    report("kernels", 0.0)
    module = decoder_module(config)
    report("code", 0.2)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".compile-") as scratch:
        obj, library = Path(scratch, "model.o"), Path(scratch, LIBRARY)
        _generate(module, machine, obj)
        report("link", 0.9)
        link(obj, library)
        library.replace(folder / LIBRARY)
    report("done", 1.0)


def check_shape(config: ModelConfig) -> None:
    """Check that the kernels' blocks fit the model.

    Raises:
        CompileError: A size is not the multiple that it must be.
    """
    inputs = FORMATS[config.quantization].granularity
    for name, value, multiple in (
        ("hidden_size", config.hidden_size, inputs),
        ("intermediate_size", config.intermediate_size, inputs),
        ("num_attention_heads · head_dim", config.num_attention_heads * config.head_dim, inputs),
        ("head_dim", config.head_dim, 16),
        ("vocab_size", config.vocab_size, 8),
    ):
        if value % multiple:
            other = "; build it as q0f16, which is less strict" if value % FORMATS["q0f16"].granularity == 0 else ""
            raise CompileError(
                f"{name} is {value}; the kernels for {config.quantization} need a multiple of {multiple}{other}"
            )


def link(obj: Path, library: Path) -> None:
    """Make a shared library of one object file that needs no other library.

    Args:
        obj: The object file.
        library: Where to put the library.

    Raises:
        CompileError: There is no linker, or it failed.
    """
    command = _linker()
    arguments = [*command, "-shared", "-nostdlib", "-o", str(library), str(obj)]
    try:
        subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=_LINK_SECONDS)
    except subprocess.CalledProcessError as error:
        raise CompileError(f"{' '.join(command)} could not link {library.name}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{' '.join(command)} did not finish within {_LINK_SECONDS} seconds") from error


def _linker() -> list[str]:
    for name in ("cc", "gcc", "clang", "ld.lld", "ld"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CompileError("no linker was found; install gcc or clang, or `pip install ziglang`")


def _generate(module: tvm.IRModule, target: Target, obj: Path) -> None:
    # The rewrite would merge local buffers, which then could not be kept in registers. LLVM finds common expressions.
    settings = {"tirx.disable_storage_rewrite": True, "tirx.disable_cse_tir": True}
    try:
        with tvm.transform.PassContext(opt_level=3, config=settings):
            compiled = tvm.tirx.build(module, target=tvm.target.Target(target.llvm))
        compiled.write_to_file(str(obj), "o")
    except tvm.error.InternalError as error:
        raise CompileError(f"TVM could not compile the kernels for {target.name}: {error}") from error
