"""What is ours in vLLM's worker process: a stand-in for a draft model, and given tokens in the rejection sampler.

The stand-in proposes nothing, for the drafts come from outside. It is also the place where three faults of vLLM 0.32
are mended, since vLLM makes it early and in the right process.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from edgedraft_cloud.engines.vllm.messages import GIVEN


class NullProposer:
    """Opens the way for drafts (the rejection sampler, rows for them in a step) and proposes none.

    Args:
        vllm_config: As vLLM passes it.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        del vllm_config
        mend_empty_constraints()
        if current_platform.is_cpu():
            mend_expand_kernel()
            mend_generator()

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """No draft for anybody."""
        return [[] for _ in sampled_token_ids]

    def load_model(self, *_: Any, **__: Any) -> None:
        """There is none."""


class GivenTokens:
    """Becomes a part of vLLM's worker, by the setting `worker_extension_cls`; its names must be new there."""

    model_runner: Any

    def take_given_tokens(self) -> None:
        """Let the rejection sampler take given tokens as they stand; called once, before the first session."""
        runner = self.model_runner
        execute, process = runner.execute_model, runner.rejection_sampler.apply_logits_processors
        given: dict[str, list[bool]] = {}

        @functools.wraps(execute)
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal given
            given = getattr(scheduler_output, GIVEN, {})
            return execute(scheduler_output, *args, **kwargs)

        @functools.wraps(process)
        def apply_logits_processors(
            logits: torch.Tensor, sampling: SamplingMetadata, drafts: SpecDecodeMetadata
        ) -> torch.Tensor:
            logits = process(logits, sampling, drafts)
            if given:
                rows = given_rows(given, runner.input_batch.req_ids, drafts.num_draft_tokens)
                only(logits, rows, drafts.draft_token_ids)
            return logits

        runner.execute_model = execute_model
        runner.rejection_sampler.apply_logits_processors = apply_logits_processors


def given_rows(given: Mapping[str, Sequence[bool]], names: Sequence[str], counts: Sequence[int]) -> list[int]:
    """Rows of given tokens among those of all drafts.

    Args:
        given: One flag a token, of sessions that have any.
        names: Sessions of the step, in the order of their rows.
        counts: Draft tokens of each.
    """
    rows: list[int] = []
    start = 0
    for name, count in zip(names, counts, strict=False):  # vLLM's list of names may have empty places behind them
        rows += (start + index for index, flag in enumerate(given.get(name, ())[:count]) if flag)
        start += count
    return rows


def only(logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor) -> None:
    """Make rows point masses, which every temperature, top-k and top-p leaves as they are.

    Args:
        logits: Changed in place, [drafts, vocab].
        rows: Which.
        tokens: The drafts, [drafts]; those of the rows get all of the probability.
    """
    if rows:
        chosen = torch.tensor(rows, device=logits.device)
        logits[chosen] = -torch.inf
        logits[chosen, tokens[chosen].to(torch.long)] = 0.0


def expand_kernel_works() -> bool:
    """Whether each request's temperature, top-k and top-p reach the rows of its drafts.

    They do not where the kernel writes into a converted copy of its output.
    """
    expanded = rejection_sampler.expand_batch_to_tokens(torch.tensor([0.5, 2.0]), torch.tensor([1, 3]), 3)
    return bool(torch.equal(expanded, torch.tensor([0.5, 2.0, 2.0])))


def mend_expand_kernel() -> None:
    """Replace the kernel where it does not work.

    Raises:
        RuntimeError: That did not help.
    """
    if expand_kernel_works():
        return
    with warnings.catch_warnings():  # it looks into every module that is loaded, deprecated names and all
        warnings.simplefilter("ignore")
        register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": _expand})
    if not expand_kernel_works():
        raise RuntimeError(
            "vLLM's sampling parameters do not reach the rows of drafts, and its kernel cannot be replaced"
        )


def _expand(
    output: torch.Tensor,  # [rows]
    values: torch.Tensor,  # [requests]
    ends: torch.Tensor,  # [requests], rows up to and with each request's
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    values = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(values.repeat_interleave(torch.diff(ends, prepend=ends.new_zeros(1)).to(torch.long)))


def mend_empty_constraints() -> None:
    """Let a step have no drafts at all while a session wants top-k: vLLM looks for the largest of no numbers."""
    constrain = rejection_sampler.apply_sampling_constraints

    @functools.wraps(constrain)
    def constrain_any(logits: torch.Tensor, ends: torch.Tensor, sampling: SamplingMetadata) -> torch.Tensor:
        return constrain(logits, ends, sampling) if len(logits) else logits

    rejection_sampler.apply_sampling_constraints = constrain_any


def mend_generator() -> None:
    """Let a session with a seed read its prompt in pieces.

    After each piece vLLM takes back what it drew for nothing, which a CPU's generator answers with an error that ends
    the process. With one that stays where it is, the draws depend on the number of pieces too; their distribution is
    the same.
    """
    try:
        torch.Generator("cpu").get_offset()
    except RuntimeError:
        torch.Generator = _Generator


class _Generator(torch.Generator):
    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        del offset
