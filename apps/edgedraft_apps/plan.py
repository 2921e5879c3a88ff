"""`edgedraft plan`: what to expect of devices, a link, a target and a GPU, by the model of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.timing import (
    LONGEST_DRAFT,
    Times,
    best_gamma,
    break_even_rtt,
    capacity_gain,
    clients,
    expected_tokens,
    pipelined,
    roofline,
    running_ahead,
)

GIGA: Final = 1e9
TERA: Final = 1e12


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its maker's data sheet has it.

    Attributes:
        bandwidth: Of its memory, in bytes a second.
        operations: Of dense 16-bit arithmetic, a second.
    """

    bandwidth: float
    operations: float


GPUS: Final = {
    "a10": Gpu(600 * GIGA, 125 * TERA),
    "a100": Gpu(2039 * GIGA, 312 * TERA),
    "h100": Gpu(3350 * GIGA, 989 * TERA),
    "h200": Gpu(4800 * GIGA, 989 * TERA),
    "l4": Gpu(300 * GIGA, 121 * TERA),
    "l40s": Gpu(864 * GIGA, 362 * TERA),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A target on a machine.

    Attributes:
        base: Seconds of a step with one row.
        knee: Rows from which on a step takes longer.

    Raises:
        InvalidInput: A value is out of range.
    """

    base: float
    knee: float

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise InvalidInput("verify_ms", f"is {self.base * 1000:g}", "use a time above 0")
        if not self.knee >= 1:
            raise InvalidInput("knee", f"is {self.knee:g}", "use at least 1")

    @classmethod
    def on(cls, gpu: str, parameters: float, bits: float) -> Target:
        """The roofline of a model on a GPU: all weights are read once a step, two operations a weight and row.

        Args:
            gpu: One of `GPUS`.
            parameters: Weights of the model.
            bits: Of a weight.

        Raises:
            InvalidInput: The GPU is not known, or a value is out of range.
        """
        if gpu not in GPUS:
            raise InvalidInput("gpu", f"is {gpu!r}", f"use one of {', '.join(GPUS)}, or pass verify-ms and knee")
        if not (parameters > 0 and 1 <= bits <= 32):
            raise InvalidInput("target", f"has {parameters:g} weights of {bits:g} bits", "use more than 0, of 1 to 32")
        base = parameters * bits / 8 / GPUS[gpu].bandwidth
        return cls(base, base * GPUS[gpu].operations / (2 * parameters))

    def step(self, rows: float) -> float:
        """Seconds of a step over so many rows."""
        return roofline(rows, self.base, self.knee)


@dataclass(frozen=True, slots=True)
class Question:
    """What is planned for.

    Attributes:
        acceptance: α.
        draft: Seconds of a step of the device's drafter.
        target: The target on its machine.
        rtts: Round trips in seconds.
        gamma: Draft tokens of a block in a step.
        branches: What a step of the drafter over the branches of a tree costs, in steps over one.
        covered: Share of the rejections that a branch covers.
        goal: Seconds a token that each client shall get.
        beside: Seconds of a step of the drafter where it runs beside the target.
    """

    acceptance: float
    draft: float
    target: Target
    rtts: Sequence[float]
    gamma: int = 6
    branches: float = 1.0
    covered: float = 0.0
    goal: float = 0.05
    beside: float = 0.0

    def __post_init__(self) -> None:
        if not self.rtts:
            raise InvalidInput("rtt", "is empty", "name at least one round trip")
        if not self.branches >= 1:
            raise InvalidInput("branches", f"is {self.branches:g}", "use at least 1, a step over one branch")
        if not self.goal > 0:
            raise InvalidInput("itl_ms", f"is {self.goal * 1000:g}", "use a time above 0")
        if self.beside < 0:
            raise InvalidInput("beside_ms", f"is {self.beside * 1000:g}", "use 0 or more")
        if not 1 <= self.gamma <= 64:
            raise InvalidInput("gamma", f"is {self.gamma}", "use 1 to 64")


POLICIES: Final = ("cloud", "local", "sync", "chain", "tree", "both")


@dataclass(frozen=True, slots=True)
class AtRtt:
    """Seconds a token of one client with the target to itself, by policy.

    Attributes:
        rtt: The round trip.
        cloud: The cloud decodes and streams.
        local: The drafter answers alone; its words, not the target's.
        sync: The device drafts `gamma` tokens, sends them and waits.
        gamma: The best for that.
        chain: The device drafts on while its drafts travel.
        tree: The same with branches; as `chain` where they cover nothing.
        both: And the cloud decodes where no draft is there.
    """

    rtt: float
    cloud: float
    local: float
    sync: float
    gamma: int
    chain: float
    tree: float
    both: float

    def seconds(self, policy: str) -> float:
        """By name of `POLICIES`."""
        value: float = getattr(self, policy)
        return value

    @property
    def best(self) -> str:
        """The policy with the target's words that is fastest; where drafting gains nothing, the cloud alone."""
        return min((policy for policy in POLICIES if policy != "local"), key=self.seconds)


@dataclass(frozen=True, slots=True)
class Served:
    """Clients of one target.

    Attributes:
        clients: How many get their tokens in time.
        gamma: Draft tokens of a block with which that is most.
    """

    clients: int
    gamma: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer.

    Attributes:
        rows: A row a round trip.
        break_even: RTT up to which synchronous drafting with the question's γ pays for one client; negative: never.
        tokens: E[A] of a block.
        plain: Clients that plain decoding serves at the goal.
        beside: The same with the drafter beside the target, with the γ that is best for it.
        edge: The same with drafters on the devices.
        predicted: `edge` over `beside` by 1 + γ·T_draft / T_verify, with the question's γ.
    """

    rows: tuple[AtRtt, ...]
    break_even: float
    tokens: float
    plain: int
    beside: Served
    edge: Served
    predicted: float

    def as_json(self) -> dict[str, object]:
        """Times in seconds."""
        return {**asdict(self), "rows": [{**asdict(row), "best": row.best} for row in self.rows]}


def make_plan(question: Question) -> Plan:
    """Answer a question.

    Raises:
        InvalidInput: A value of it is out of range.
    """
    target, alpha, gamma = question.target, question.acceptance, question.gamma
    verify, tokens = target.step(gamma + 1), expected_tokens(alpha, gamma)

    def at(rtt: float) -> AtRtt:
        times = Times(question.draft, verify, rtt, target.base)
        tree = Times(question.draft * question.branches, verify, rtt, target.base)
        best, sync = best_gamma(alpha, times)
        return AtRtt(
            rtt,
            target.base,
            question.draft,
            sync,
            best,
            pipelined(alpha, times),
            pipelined(alpha, tree, covered=question.covered),
            running_ahead(alpha, tree, covered=question.covered),
        )

    def most(beside: float) -> Served:
        return max(
            (
                Served(clients(question.goal, expected_tokens(alpha, n), n + 1, target.step, n * beside), n)
                for n in range(1, LONGEST_DRAFT + 1)
            ),
            key=lambda served: (served.clients, -served.gamma),
        )

    return Plan(
        tuple(at(rtt) for rtt in question.rtts),
        break_even_rtt(alpha, gamma, Times(question.draft, verify, 0.0, target.base)),
        tokens,
        clients(question.goal, 1.0, 1.0, target.step),
        most(question.beside),
        most(0.0),
        capacity_gain(gamma, question.beside, verify),
    )
