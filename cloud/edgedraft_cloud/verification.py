"""The rule by which the target accepts drafts: lossless at every temperature.

A draft token is the drafter's first choice, i.e. a point mass q. Speculative sampling (Leviathan et al. 2023,
arXiv 2211.17192, section 2.3) then accepts x with probability p(x) and otherwise samples from p without x,
renormalised; at temperature 0 that is: accept while the draft is the target's own choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedraft_cloud.engines.base import Sampling

Row = NDArray[np.float32]
Probabilities = NDArray[np.float64]


def verify(
    logits: NDArray[np.float32],
    draft: Sequence[int],
    given: Sequence[bool],
    sampling: Sampling,
    draws: np.random.Generator,
) -> tuple[list[int], int]:
    """Judge a chain of draft tokens.

    Args:
        logits: The target's, after the token before the chain and after each token of it, [len(draft) + 1, vocab].
        draft: The chain, perhaps empty.
        given: One flag a token: take it as it stands; empty where none is.
        sampling: How the target chooses.
        draws: Where the randomness comes from.

    Returns:
        The settled tokens (the accepted ones and the one that the target puts after them), and how many were accepted.
    """
    for index, token in enumerate(draft):
        if given and given[index]:
            continue
        if sampling.temperature == 0:
            chosen = int(np.argmax(logits[index]))
            if chosen != token:
                return [*draft[:index], chosen], index
            continue
        p = probabilities(logits[index], sampling)
        if draws.random() >= p[token]:
            p[token] = 0.0
            return [*draft[:index], _sample(p, draws)], index
    return [*draft, choose(logits[len(draft)], sampling, draws)], len(draft)


def choose(row: Row, sampling: Sampling, draws: np.random.Generator) -> int:
    """The target's next token.

    Args:
        row: Logits, [vocab].
        sampling: How to choose.
        draws: Where the randomness comes from.
    """
    if sampling.temperature == 0:
        return int(np.argmax(row))
    return _sample(probabilities(row, sampling), draws)


def probabilities(row: Row, sampling: Sampling) -> Probabilities:
    """The distribution that is sampled from: temperature, then top-k, then top-p.

    Args:
        row: Logits, [vocab].
        sampling: With a temperature above 0.

    Returns:
        Probabilities that sum to 1, [vocab].
    """
    scaled = row.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        kept = np.argpartition(scaled, -sampling.top_k)[-sampling.top_k :]
        masked = np.full_like(scaled, -np.inf)
        masked[kept] = scaled[kept]
        scaled = masked
    p: Probabilities = np.exp(scaled - scaled.max())
    p /= p.sum()
    if sampling.top_p < 1:
        # All tokens below this share of what may be cut cannot make it up together: only the others need sorting.
        likely = np.flatnonzero(p >= (1 - sampling.top_p) / len(p))
        order = likely[np.argsort(-p[likely], kind="stable")]
        # A token stays if what lies before it has not reached top_p yet: the smallest set that covers it.
        before = np.cumsum(p[order]) - p[order]
        kept = order[before < sampling.top_p]
        nucleus = np.zeros_like(p)
        nucleus[kept] = p[kept] / p[kept].sum()
        p = nucleus
    return p


def _sample(weights: Probabilities, draws: np.random.Generator) -> int:
    """Draw an index by weights that need not sum to 1."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, draws.random() * cumulative[-1], side="right"))
    # Rounding may land behind the last weight above 0.
    return min(index, int(np.flatnonzero(weights)[-1]))
