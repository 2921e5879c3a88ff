"""Who decides a token: what the device puts next, and what it takes of the target's; one decider for each promise."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from edgedraft.core.draft import Judge, Node, always
from edgedraft.core.log import DraftLog
from edgedraft.local import SAMPLED_CANDIDATES, choose
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import Guard, Trail
from edgedraft.sampling import SamplingParams
from edgedraft.worker import DraftContext, TwoViews, common_prefix

CANDIDATES: Final = 32
"""Most probable tokens of the private view at temperature 0; what lies beyond them is implausible."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the device puts at the next position; the fields are those of `Node`."""

    token: int
    probability: float
    given: bool = False
    held: bool = False
    takes: Judge = always


class Decider(ABC):
    """Chooses tokens for the end of a draft log's main path.

    Attributes:
        last_word: Whether the device has it, so that a verdict only proposes.
    """

    last_word: ClassVar[bool]

    @abstractmethod
    async def choose(self, log: DraftLog) -> Choice:
        """Choose what comes behind the main path as it is when this is called.

        Raises:
            DrafterError: The drafter failed.
        """

    @abstractmethod
    def may_leave(self, node: Node, log: DraftLog) -> bool:
        """Whether a token on the main path may go on the wire as it is; called in the order of sending."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what it holds of the drafter."""


class TargetDecides(Decider):
    """The target decides everything (modes `open` and `cloaked`): the drafter's first choice is a draft.

    Args:
        prompt: Token ids of the prompt, which both sides see.
        context: The drafter's sequence.
        guard: Holds back what must not leave; the target puts its own token there. None: everything may leave.
    """

    last_word = False

    def __init__(self, prompt: Sequence[int], context: DraftContext, guard: Guard | None = None) -> None:
        self._prompt = list(prompt)
        self._context = context
        self._path = None if guard is None else GuardedPath(guard)

    async def choose(self, log: DraftLog) -> Choice:
        """The drafter's first choice."""
        trail = None if self._path is None else self._path.trail(log)
        candidates = await self._context.next(self._prompt + log.tokens)
        token = candidates.ids[0]
        held = self._path is not None and trail is not None and self._path.holds(trail, token)
        return Choice(token, candidates.probs[0], held=held)

    def may_leave(self, node: Node, log: DraftLog) -> bool:
        """What the guard says."""
        return self._path is None or self._path.leaves(node, log)

    async def close(self) -> None:
        """Give back the sequence."""
        await self._context.close()


class DeviceDecides(Decider):
    """The device decides what is private and has the last word on the rest (mode `sealed`).

    What it decides at a position depends on the text before it and on the target's token there, on nothing else: not on
    which of the two came first.

    Args:
        private: Token ids of the whole prompt.
        public: Token ids of what the cloud sees of it.
        views: The drafter's two sequences.
        rule: Who decides a position.
        guard: Holds back what must not leave; the device decides there.
        sampling: How the device chooses where it decides.
    """

    last_word = True

    def __init__(
        self,
        private: Sequence[int],
        public: Sequence[int],
        views: TwoViews,
        rule: DecisionRule,
        guard: Guard,
        sampling: SamplingParams,
    ) -> None:
        self._private = list(private)
        self._public = list(public)
        self._views = views
        self._rule = rule
        self._path = GuardedPath(guard)
        self._sampling = sampling
        self._draws = random.Random(sampling.seed)

    async def choose(self, log: DraftLog) -> Choice:
        """The first choice under the private view, or one drawn from it where the device decides."""
        trail = self._path.trail(log)
        private, public = self._private + log.tokens, self._public + log.wire_tokens
        count = SAMPLED_CANDIDATES if self._sampling.temperature > 0 else CANDIDATES
        contrast = await self._views.contrast(private, public, count)
        candidates = contrast.candidates
        token = candidates.ids[0]
        held = self._path.holds(trail, token)
        given = held or self._rule.device_decides(contrast)
        if given and (drawn := choose(candidates, self._sampling, self._draws)) != token:
            token = drawn
            held = self._path.holds(trail, token)

        position = len(log.settled) + len(log.path)

        def takes(proposed: int) -> bool:
            # To take what the guard holds back would confirm a guess of the cloud.
            likely = proposed == token or self._rule.takes(contrast, proposed)
            return likely and self._path.agrees(trail, position, proposed)

        return Choice(token, candidates.probs[candidates.ids.index(token)], given, held, takes)

    def may_leave(self, node: Node, log: DraftLog) -> bool:
        """What the guard says."""
        return self._path.leaves(node, log)

    async def close(self) -> None:
        """Give back both sequences."""
        await self._views.close()


class GuardedPath:
    """What the guard knows of a generation's main path; it works out by itself what was cut.

    Args:
        guard: Of the prompt.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session = guard.session()
        self._stamp = 0
        self._tokens: list[int] = []
        self._trails: list[Trail] = [guard.root()]
        self._last: tuple[tuple[Trail, int], Trail] | None = None  # usually the path goes on with it

    def trail(self, log: DraftLog) -> Trail:
        """The guard's trail of the main path; constant time a token, unless the path is another than before."""
        if log.stamp != self._stamp:
            keep = common_prefix(self._tokens, log.tokens)
            del self._tokens[keep:], self._trails[keep + 1 :]
            self._stamp = log.stamp
            for node, trail in zip(log.path, self._trails[len(log.settled) + 1 :], strict=False):
                trail.held |= node.held is not None
        settled = len(log.settled)
        for position in range(len(self._tokens), settled + len(log.path)):
            if position < settled:
                # One that was on no path before is the target's: it is on the wire already, unless it was held back.
                token = log.settled[position]
                held = log.settled_wire[position] != token
            else:
                node = log.path[position - settled]
                token, held = node.token, node.held is not None
            trail = self._go_on(self._trails[-1], token)
            trail.held |= held
            trail.known |= position < settled and not held
            self._trails.append(trail)
            self._tokens.append(token)
        return self._trails[-1]

    def holds(self, trail: Trail, token: int) -> bool:
        """Whether a token has to be held back behind a trail."""
        return not self._guard.allows(self._go_on(trail, token))

    def agrees(self, trail: Trail, position: int, token: int) -> bool:
        """Whether the device may agree to a token that the verifier says before it was sent; if so, it counts as left.

        Args:
            trail: The path before it, as it was when the position was decided.
            position: Where it stands.
            token: What the verifier says.
        """
        if self._tokens[position : position + 1] == [token] and self._trails[position] is trail:
            after = self._trails[position + 1]
        else:
            after = self._go_on(trail, token)
        return self._session.agree(token, after)

    def leaves(self, node: Node, log: DraftLog) -> bool:
        """Whether a node of the main path may go on the wire as it is; if so, it counts as left."""
        self.trail(log)
        return not self._session.leave(node.token, self._trails[node.position + 1])

    def _go_on(self, trail: Trail, token: int) -> Trail:
        step = (trail, token)
        if self._last is None or self._last[0] != step:
            self._last = step, self._guard.step(trail, token)[0]
        return self._last[1]
