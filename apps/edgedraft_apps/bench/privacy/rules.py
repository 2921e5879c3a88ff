"""Rules by which a device and a target could decide a token together, as pure functions; one became mode `sealed`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgedraft.errors import InvalidInput

LogProbs = NDArray[np.float32]

MEASURES: Final = ("variation", "divergence", "ratio", "first")
TARGETS: Final = ("verdict", "steer", "fuse")


@dataclass(frozen=True, slots=True)
class Expected:
    """What three say about the next token; log-probabilities, float32 [vocab].

    Attributes:
        private: The drafter, with the private prompt.
        public: The drafter, with the public view.
        target: The target, with the public view.
    """

    private: LogProbs
    public: LogProbs
    target: LogProbs


@dataclass(frozen=True, slots=True)
class Decision:
    """A token and who decided it.

    Attributes:
        token: The token.
        drafted: Whether the device's token was a draft that the target judged.
        accepted: Whether that draft stands as the target's own choice.
        vetoed: Whether the device put its own token in the place of the target's.
    """

    token: int
    drafted: bool
    accepted: bool
    vetoed: bool = False

    @property
    def by_device(self) -> bool:
        """Whether the device decided."""
        return not self.drafted or self.vetoed


@dataclass(frozen=True, slots=True)
class Rule:
    """A gate, what the target does below it, and a cut.

    Attributes:
        measure: How far private and public view are apart, all 0 to 1. `variation`: total variation. `divergence`:
            Jensen-Shannon, base 2. `ratio`: 1 − q_pub/q_priv of the private view's first choice, a log-ratio on another
            scale. `first`: 1 where the first choices differ.
        theta: The device decides above it; 1 never.
        target: What the target does with the draft otherwise. `verdict`: its own first choice stands. `steer`
            (SpecSteer, arXiv 2603.16219): the draft stands if p > tau · q_pub, else the first of
            p · (q_priv / q_pub)^beta. `fuse`: the latter always.
        tau: Of `steer`.
        beta: Of `steer` and `fuse`.
        cut: The device vetoes a token that has less than this share of its own first choice's probability; 0 never.

    Raises:
        InvalidInput: A value is out of range.
    """

    measure: str = "variation"
    theta: float = 1.0
    target: str = "verdict"
    tau: float = 0.0
    beta: float = 0.0
    cut: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("measure", MEASURES), ("target", TARGETS)):
            if getattr(self, name) not in known:
                raise InvalidInput(f"rule.{name}", f"is {getattr(self, name)!r}", f"use {', '.join(known)}")
        for name in ("theta", "cut"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"rule.{name}", f"is {getattr(self, name)}", "use 0 to 1")

    @property
    def name(self) -> str:
        """Its settings, as they matter; the same for rules that do the same."""
        gate = [f"{self.measure} > {self.theta:g}"] if self.theta < 1 else []
        steer = {"verdict": [], "steer": [f"steer τ {self.tau:g} β {self.beta:g}"], "fuse": [f"fuse β {self.beta:g}"]}
        cut = [f"cut {self.cut:g}"] if self.cut else []
        return ", ".join([*gate, *steer[self.target], *cut]) or "verdict"

    def decide(self, expected: Expected) -> Decision:
        """Decide a token, greedily."""
        draft = int(np.argmax(expected.private))
        if self.theta < 1 and distance(self.measure, expected) > self.theta:
            return Decision(draft, drafted=False, accepted=False)
        token = self._targets_token(draft, expected)
        if self.cut and expected.private[token] < expected.private[draft] + np.log(self.cut):
            return Decision(draft, drafted=True, accepted=False, vetoed=True)
        return Decision(token, drafted=True, accepted=token == draft)

    def _targets_token(self, draft: int, expected: Expected) -> int:
        if self.target == "verdict":
            return int(np.argmax(expected.target))
        if self.target == "steer" and np.exp(expected.target[draft]) > self.tau * np.exp(expected.public[draft]):
            return draft
        return int(np.argmax(expected.target + self.beta * (expected.private - expected.public)))


def distance(measure: str, expected: Expected) -> float:
    """How far the private and the public view of the drafter are apart, 0 to 1; see `Rule.measure`."""
    return _DISTANCES[measure](expected.private, expected.public)


def log_softmax(logits: NDArray[np.float32]) -> LogProbs:
    """Log-probabilities of logits, both float32 [vocab]."""
    shifted = logits - logits.max()
    log_probs: LogProbs = shifted - np.log(np.exp(shifted).sum())
    return log_probs


def _variation(private: LogProbs, public: LogProbs) -> float:
    return 0.5 * float(np.abs(np.exp(private) - np.exp(public)).sum())


def _divergence(private: LogProbs, public: LogProbs) -> float:
    middle = np.logaddexp(private, public) - np.log(np.float32(2))
    halves = (np.exp(each) @ (each - middle) for each in (private, public))
    return float(sum(halves)) / (2 * float(np.log(2)))


def _ratio(private: LogProbs, public: LogProbs) -> float:
    first = int(np.argmax(private))
    return max(0.0, 1.0 - float(np.exp(public[first] - private[first])))


def _first(private: LogProbs, public: LogProbs) -> float:
    return float(np.argmax(private) != np.argmax(public))


_DISTANCES: Final = {"variation": _variation, "divergence": _divergence, "ratio": _ratio, "first": _first}

_THETAS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
_CUTS: Final = (0.02, 0.1, 0.3)

RULE_SETS: Final[Mapping[str, tuple[Rule, ...]]] = {
    "gate": tuple(Rule("variation", theta, cut=cut) for theta in _THETAS for cut in (0.0, *_CUTS)),
    "measures": tuple(
        Rule(measure, theta, cut=cut)
        for measure in ("divergence", "ratio", "first")
        for theta in (_THETAS if measure != "first" else (0.5,))
        for cut in _CUTS
    ),
    "steering": tuple(Rule(target="steer", tau=tau, beta=beta) for tau in (0.3, 0.6, 1.0) for beta in (1.0, 1.5)),
    "fusion": tuple(Rule(target="fuse", beta=beta) for beta in (0.5, 1.0, 1.5)),
    "cut": tuple(Rule(cut=cut) for cut in _CUTS),
    "combined": (
        *(Rule("variation", theta, "steer", 0.6, 1.5, 0.1) for theta in (0.3, 0.4, 0.6, 0.8)),
        *(Rule("variation", theta, "fuse", 0, 1.0, 0.1) for theta in (0.3, 0.4, 0.6, 0.8)),
        Rule(target="steer", tau=0.6, beta=1.5, cut=0.1),
        Rule(target="fuse", beta=1.0, cut=0.1),
    ),
}
"""What is compared, by a name for each set."""

DEFAULT_RULE: Final = Rule("variation", 0.6, cut=0.1)
"""The rule of mode `sealed`; `edgedraft.privacy.gate.DecisionRule` has the same defaults."""


def rule_named(name: str) -> Rule:
    """A rule of the sets by its name.

    Raises:
        InvalidInput: None has that name.
    """
    known = {rule.name: rule for rules in RULE_SETS.values() for rule in rules}
    if name not in known:
        raise InvalidInput("rule", f"is {name!r}", f"write it as the table does, e.g. {DEFAULT_RULE.name!r}")
    return known[name]
