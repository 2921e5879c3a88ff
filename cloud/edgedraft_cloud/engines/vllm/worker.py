"""What stands in for a draft model in vLLM's worker process: nothing, for the drafts come from outside.

It is also the place where three faults of vLLM 0.32 are mended, since vLLM makes it early and in the right process.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.metadata import SamplingMetadata


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
