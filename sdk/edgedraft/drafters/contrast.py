"""How far two views of a text are apart in what they expect next: the arithmetic behind `Drafter.contrast`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedraft.drafters.base import Candidates, Contrast


def compare(private: NDArray[np.float32], public: NDArray[np.float32], k: int) -> Contrast:
    """Compare the distributions that two rows of logits stand for, at temperature 1.

    Args:
        private: Logits under the private view, [vocab].
        public: Logits under the public view, [vocab].
        k: How many candidates to return, 1 to vocab.
    """
    p, q = _softmax(private), _softmax(public)
    best = np.argpartition(p, len(p) - k)[len(p) - k :]
    # By id where probabilities are equal, so that the same rows always give the same order.
    best = best[np.lexsort((best, -p[best]))]
    candidates = Candidates(tuple(best.tolist()), tuple(p[best].tolist()))
    distance = 0.5 * float(np.abs(p - q).sum(dtype=np.float64))
    return Contrast(candidates, tuple(q[best].tolist()), distance)


def compare_listed(private: Candidates, public: Candidates, k: int) -> Contrast:
    """Compare two lists of choices; what a list leaves over counts as one choice more, the same in both.

    Args:
        private: All choices under the private view.
        public: All choices under the public view.
        k: How many candidates to return.
    """
    p, q = (dict(zip(view.ids, view.probs, strict=True)) for view in (private, public))
    apart = sum(abs(p.get(token, 0.0) - q.get(token, 0.0)) for token in p | q)
    left_over = abs(sum(p.values()) - sum(q.values()))
    candidates = Candidates(private.ids[:k], private.probs[:k])
    return Contrast(candidates, tuple(q.get(token, 0.0) for token in candidates.ids), (apart + left_over) / 2)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    exponentials: NDArray[np.float32] = np.exp(logits - logits.max())
    # Summed in double: the vocabulary is large, and most of it small.
    exponentials /= exponentials.sum(dtype=np.float64)
    return exponentials
