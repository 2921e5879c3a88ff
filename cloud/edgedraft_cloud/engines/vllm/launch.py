"""Starting vLLM in processes of its own, with the settings and the environment that it needs there."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgedraft_cloud.engines.vllm import hooks
from edgedraft_cloud.engines.vllm.target import Target

if TYPE_CHECKING:
    from vllm.v1.engine.core_client import AsyncMPClient

SCHEDULER: Final = "edgedraft_cloud.engines.vllm.scheduler.DraftScheduler"
PROPOSER: Final = "edgedraft_cloud.engines.vllm.worker.NullProposer"
WORKER_EXTENSION: Final = "edgedraft_cloud.engines.vllm.worker.GivenTokens"
TAKE_GIVEN_TOKENS: Final = "take_given_tokens"
"""What is called on it once vLLM runs."""
PAGE: Final = 32
"""Tokens in a page of a KV cache whose size is set here: the fewest that vLLM's CPU kernels are fast with."""
CPU_KV_TOKENS: Final = 16_384
"""Size of the KV cache on a CPU where none is set: memory is no measure of it there."""

_STOP_SECONDS: Final = 10.0
"""How long vLLM's processes may take to leave before they are killed: they have nothing to save."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run a target.

    Attributes:
        target: What to run.
        context: Most tokens of prompt and answer.
        max_block: Most draft tokens in a work.
        step_tokens: Rows that the works of one batch may have.
        step_sessions: Works that one batch may have.
        prompt_tokens: Prompt tokens that one step reads at most.
        prompt_slots: Prompts that are read at a time.
        kv_tokens: Tokens that the KV cache holds; None takes what memory a GPU has.
        park_seconds: After so long with nothing to do a session's KV is given up.
        threads: Threads for the arithmetic on a CPU; None takes one a core.
    """

    target: Target
    context: int
    max_block: int
    step_tokens: int
    step_sessions: int
    prompt_tokens: int
    prompt_slots: int
    kv_tokens: int | None
    park_seconds: float
    threads: int | None


def start(settings: Settings, abandoned: threading.Event) -> AsyncMPClient:
    """Start vLLM's processes and wait until the target is loaded.

    Args:
        settings: How.
        abandoned: Set by `abandon`.

    Raises:
        ImportError: vLLM is not installed.
        ModelError: It is not one that this engine knows.
        ValueError: vLLM does not take the settings, e.g. since the KV cache does not hold one context.
        RuntimeError: Its processes did not come up; they have said why on standard error.
    """
    with _environment(_EVERYWHERE):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.core_client import EngineCoreClient
        from vllm.v1.executor.abstract import Executor

        hooks.check()
        cpu = current_platform.is_cpu()
        with _environment(_cpu_environment(settings.threads) if cpu else {}):
            config = AsyncEngineArgs(**_plain(settings, cpu), **_drafting(settings)).create_engine_config()
            if abandoned.is_set():
                raise RuntimeError("it is not wanted any more")
            return EngineCoreClient.make_async_mp_client(config, Executor.get_class(config), log_stats=False)


def abandon(abandoned: threading.Event) -> None:
    """Let a start that is under way in another thread fail soon."""
    abandoned.set()
    for process in multiprocessing.active_children():
        if process.name.startswith("EngineCore"):
            process.kill()


async def stop(client: AsyncMPClient) -> None:
    """Stop vLLM's processes and give back what talking to them took."""
    await asyncio.to_thread(client.shutdown, _STOP_SECONDS)
    # The sockets are closed; what they were made in vLLM leaves to the garbage collector.
    await asyncio.to_thread(client.resources.ctx.term)


def _plain(settings: Settings, cpu: bool) -> dict[str, Any]:
    """What vLLM would be told in any case."""
    arguments: dict[str, Any] = {
        "model": str(settings.target.folder),
        "skip_tokenizer_init": True,
        "max_model_len": settings.context,
        "max_num_seqs": settings.step_sessions + settings.prompt_slots,
        "max_num_batched_tokens": settings.step_tokens + settings.prompt_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "seed": secrets.randbelow(1 << 31),  # by default every start would draw the same
    }
    kv_tokens = settings.kv_tokens
    if cpu:
        import torch

        kv_tokens = kv_tokens or max(CPU_KV_TOKENS, settings.context)
        # float32 is the fast one where bfloat16 is not in the hardware.
        arguments["dtype"] = "auto" if torch.cpu._is_avx512_bf16_supported() else "float32"
        arguments["enforce_eager"] = True
        arguments["distributed_executor_backend"] = "uni"
        arguments["kv_cache_memory_bytes"] = 1 << 20  # only compared with what is free: the number of pages decides
    if kv_tokens is not None:
        arguments["block_size"] = PAGE
        arguments["num_gpu_blocks_override"] = ceil(kv_tokens / PAGE) + 1  # one page is vLLM's own
    return arguments


def _drafting(settings: Settings) -> dict[str, Any]:
    """What makes it take drafts and given tokens from outside."""
    return {
        "scheduler_cls": SCHEDULER,
        "worker_extension_cls": WORKER_EXTENSION,
        "speculative_config": {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": settings.max_block,
        },
        "additional_config": {
            "edgedraft": {
                "prompt_tokens": settings.prompt_tokens,
                "prompt_slots": settings.prompt_slots,
                "park_seconds": settings.park_seconds,
            }
        },
    }


_EVERYWHERE: Final = {
    # A fork of a process with threads and sockets may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def _cpu_environment(threads: int | None) -> dict[str, str]:
    """Variables without which vLLM is slow on a CPU, or restless."""
    variables = {
        # One process for scheduler and model; a second one helps only where threads are bound to cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads or len(os.sched_getaffinity(0))),
        "KMP_BLOCKTIME": "1",  # ms that a thread spins for work that may come
    }
    intel = Path(sys.prefix) / "lib" / "libiomp5.so"
    if intel.exists():
        variables["LD_PRELOAD"] = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), str(intel))))
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile; what vLLM sets of its own is undone too."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
