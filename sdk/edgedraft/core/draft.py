"""What the draft log deals in: nodes of the draft tree, blocks for the wire, and what a verdict changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

Judge = Callable[[int], bool]
"""Says yes or no to a token id."""


def always(_: object) -> bool:
    """Yes to everything."""
    return True


class Node:
    """One draft token in the tree.

    Attributes:
        token: Token id, as it stands in the device's text.
        wire: What the cloud sees in its place: itself, or the placeholder where it is held back.
        position: Position among the generated tokens, from 0.
        probability: The drafter's own confidence in it.
        parent: The node before it; None for the settled tokens as they were when it was added.
        children: Nodes that follow, in the order in which they were added.
        number: How the wire names it within its epoch; 0 until it is sent.
        block: Number of the block that it was sent in.
        alive: Whether it is still unverified and reachable from the settled tokens.
        given: Whether the device decides the position, so that the verifier takes it as it stands.
        held: The device's own choice where the guard holds it back, else None.
        takes: Whether the device would take that token of the target in its place; of its own token, whether it may
            agree where the target says it before it has left.
    """

    __slots__ = (
        "alive",
        "block",
        "children",
        "given",
        "held",
        "number",
        "parent",
        "position",
        "probability",
        "takes",
        "token",
        "wire",
    )

    def __init__(
        self, token: int, position: int, probability: float, parent: Node | None, given: bool, takes: Judge
    ) -> None:
        self.token = token
        self.wire = token
        self.position = position
        self.probability = probability
        self.parent = parent
        self.children: list[Node] = []
        self.number = 0
        self.block = 0
        self.alive = True
        self.given = given
        self.held: int | None = None
        self.takes = takes


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive draft tokens as they go on the wire; the fields are those of `Draft`.

    Attributes:
        held: Position and token of what stays on the device; a placeholder is among `tokens` instead.
        cut: Position from which the main path changed because a token might not leave, or None.
        dropped: How many tokens that took off the main path.
    """

    epoch: int
    position: int
    number: int
    tokens: tuple[int, ...]
    parent: int | None
    given: tuple[bool, ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    cut: int | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive settled tokens that one side decided: the device where they are given, else the target."""

    position: int
    tokens: tuple[int, ...]
    given: bool


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a verdict changed.

    Attributes:
        position: Position of the first newly settled token.
        tokens: Newly settled token ids, as they stand in the device's text.
        given: Positions among them that the device decided.
        matched: How many of them a draft on the main path had foretold.
        missed: How many positions had a draft on the main path that the target did not agree with.
        held: How many of them are held back.
        cut: Position from which the main path was cut, or None.
        dropped: How many tokens the cut took off the main path.
        revived: Tokens that a waiting branch put on the main path instead.
        rolled_back: Whether a cut began a new epoch.
        vetoed: Whether the device overruled the verdict from some position on.
    """

    position: int
    tokens: tuple[int, ...]
    given: tuple[int, ...] = ()
    matched: int = 0
    missed: int = 0
    held: int = 0
    cut: int | None = None
    dropped: int = 0
    revived: tuple[int, ...] = ()
    rolled_back: bool = False
    vetoed: bool = False

    def runs(self) -> Iterator[Run]:
        """The newly settled tokens by who decided them."""
        start = 0
        for given, group in groupby(range(len(self.tokens)), lambda index: self.position + index in self.given):
            end = start + sum(1 for _ in group)
            yield Run(self.position + start, self.tokens[start:end], given)
            start = end
