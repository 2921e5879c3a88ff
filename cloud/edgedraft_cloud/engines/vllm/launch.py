"""Starting vLLM in processes of its own, with the settings and the environment that it needs there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgedraft_cloud.engines.vllm.target import Target

if TYPE_CHECKING:
    from vllm.v1.engine.core_client import AsyncMPClient

_SCHEDULER: Final = "edgedraft_cloud.engines.vllm.scheduler.DraftScheduler"
_PROPOSER: Final = "edgedraft_cloud.engines.vllm.worker.NullProposer"
_CPU_BLOCK: Final = 32
"""Tokens in a KV page on a CPU: the fewest that its kernels are fast with."""


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


def start(settings: Settings) -> AsyncMPClient:
    """Start vLLM's processes and wait until the target is loaded.

    Raises:
        ValueError: vLLM does not take the settings, e.g. since the KV cache holds not even one context.
        RuntimeError: Its processes did not come up; they have said why on standard error.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.executor.abstract import Executor

    cpu = current_platform.is_cpu()
    with _environment(_cpu_environment(settings.threads) if cpu else {}):
        arguments = AsyncEngineArgs(**_arguments(settings), **(_cpu_arguments() if cpu else {}))
        config = arguments.create_engine_config()
        return EngineCoreClient.make_async_mp_client(config, Executor.get_class(config), log_stats=False)


def _arguments(settings: Settings) -> dict[str, Any]:
    block = {} if settings.kv_tokens is None else {"block_size": _CPU_BLOCK}
    return {
        "model": str(settings.target.folder),
        "skip_tokenizer_init": True,
        "max_model_len": settings.context,
        "max_num_seqs": settings.step_sessions + settings.prompt_slots,
        "max_num_batched_tokens": settings.step_tokens + settings.prompt_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "scheduler_cls": _SCHEDULER,
        "speculative_config": {
            "method": "custom_class",
            "model": _PROPOSER,
            "num_speculative_tokens": settings.max_block,
        },
        "additional_config": {
            "edgedraft": {
                "prompt_tokens": settings.prompt_tokens,
                "prompt_slots": settings.prompt_slots,
                "park_seconds": settings.park_seconds,
            }
        },
        "num_gpu_blocks_override": (
            # One page is vLLM's own.
            None if settings.kv_tokens is None else ceil(settings.kv_tokens / _CPU_BLOCK) + 1
        ),
        **block,
    }


def _cpu_arguments() -> dict[str, Any]:
    import torch

    return {
        # float32 is the fast one where bfloat16 is not in the hardware.
        "dtype": "auto" if torch.cpu._is_avx512_bf16_supported() else "float32",
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        # Only compared with what is free; the number of pages above decides.
        "kv_cache_memory_bytes": 1 << 20,
    }


def _cpu_environment(threads: int | None) -> dict[str, str]:
    environment = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # One process for scheduler and model; a second one only helps where threads are bound to cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads or len(os.sched_getaffinity(0))),
        # How many ms a thread spins for work that may come: a process that rests must not burn a core.
        "KMP_BLOCKTIME": "1",
    }
    intel = Path(sys.prefix) / "lib" / "libiomp5.so"
    if intel.exists():
        environment["LD_PRELOAD"] = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), str(intel))))
    return environment


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started here; what vLLM sets meanwhile is undone too."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
