"""Plain vLLM in a process of its own, as the yardstick: what it says to prompts, and how fast.

`run_plain` starts it; the module run as a program is the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from edgedraft.errors import EdgedraftError, InvalidInput

STOP_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PlainTask:
    """What it is to do.

    Attributes:
        model: Folder of safetensors.
        prompts: Token ids of each.
        tokens: To generate after each, greedily, whatever they are.
        batches: Numbers of prompts to decode at a time; each is timed.
        context: Most tokens of prompt and answer.
        speculative: vLLM's `speculative_config`, e.g. for a draft model beside the target; None for none.
        waves: How many times `batches[i]` prompts are decoded.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    tokens: int
    batches: Sequence[int]
    context: int
    speculative: Mapping[str, Any] | None = None
    waves: int = 2


@dataclass(frozen=True, slots=True)
class PlainResult:
    """What it found.

    Attributes:
        answers: Token ids after each prompt.
        rates: Tokens a second, all prompts of a batch together, by its size.
        accepted: Draft tokens that were right, of those that a draft model made; NaN without one.
    """

    answers: list[list[int]]
    rates: dict[int, float]
    accepted: float = field(default=float("nan"))


async def run_plain(task: PlainTask, folder: Path) -> PlainResult:
    """Run it, and nothing of it is left when this returns or is cancelled.

    Args:
        task: What to do.
        folder: For its files and its log.

    Raises:
        InvalidInput: vLLM is not installed.
        EdgedraftError: It failed.
    """
    if find_spec("vllm") is None:
        raise InvalidInput("vllm", "is not installed", "run `pip install 'edgedraft[cloud-cpu]'`, or vLLM for a GPU")
    asked, answer, log = (folder / name for name in ("plain-task.json", "plain-result.json", "plain.log"))
    asked.write_text(json.dumps(asdict(task)), encoding="utf-8")
    answer.unlink(missing_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(asked), str(answer)),
            env={**os.environ, **_environment()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
        raise EdgedraftError(f"plain vLLM failed: {lines[-1]}")
    data = json.loads(answer.read_text(encoding="utf-8"))
    return PlainResult(data["answers"], {int(key): rate for key, rate in data["rates"].items()}, data["accepted"])


def _environment() -> dict[str, str]:
    """What makes vLLM fast on a CPU; without effect on a GPU."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "KMP_BLOCKTIME": "1",
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
    }


def _work(task: PlainTask) -> PlainResult:
    from vllm import LLM, SamplingParams

    rows = max(task.batches, default=1) * 32 + 2048
    llm = LLM(
        model=task.model,
        skip_tokenizer_init=True,
        max_model_len=task.context,
        max_num_seqs=max(task.batches, default=1),
        max_num_batched_tokens=rows,
        enable_prefix_caching=False,  # every wave reads its prompts
        disable_log_stats=False,
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        block_size=32,
        num_gpu_blocks_override=max(task.batches, default=1) * (-(-task.context // 32) + 1) + 1,
        kv_cache_memory_bytes=1 << 20,
        **({} if task.speculative is None else {"speculative_config": dict(task.speculative)}),
    )
    params = SamplingParams(temperature=0.0, max_tokens=task.tokens, ignore_eos=True, detokenize=False)

    def ask(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    answers = [token_ids for ids in task.prompts for token_ids in ask([ids])]
    rates: dict[int, float] = {}
    for batch in task.batches:
        started, count = time.perf_counter(), 0
        for wave in range(task.waves):
            first = wave * batch
            prompts = [task.prompts[(first + index) % len(task.prompts)] for index in range(batch)]
            count += sum(map(len, ask(prompts)))
        rates[batch] = count / (time.perf_counter() - started)
    return PlainResult(answers, rates, _acceptance(llm))


def _acceptance(llm: Any) -> float:
    """The share of drafted tokens that was accepted, from vLLM's own counters."""
    counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    drafted = counts.get("vllm:spec_decode_num_draft_tokens", 0)
    return float(counts.get("vllm:spec_decode_num_accepted_tokens", 0) / drafted) if drafted else float("nan")


def main() -> None:
    """Read the task, do it, write the result."""
    asked, answer = map(Path, sys.argv[1:])
    found = _work(PlainTask(**json.loads(asked.read_text(encoding="utf-8"))))
    answer.write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
