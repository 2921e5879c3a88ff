"""The draft log: what is settled, what is drafted beyond it, and how a verdict changes both.

Drafted tokens form a tree below the settled tokens. Its *main path* (first child, first child, ...) is what the device
bets on and shows; other branches wait in case the target prefers them. The log numbers nodes and blocks as
`wire/verify.proto` says and decides when a new epoch begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from edgedraft.errors import InvalidInput, ProtocolError


class Node:
    """One draft token in the tree.

    Attributes:
        token: Token id.
        position: Position among the generated tokens, from 0.
        probability: The drafter's own confidence in it.
        parent: The node before it; None for the settled tokens as they were when it was added.
        children: Nodes that follow, in the order in which they were added.
        number: How the wire names it within its epoch; 0 until it is sent.
        alive: Whether it is still unverified and reachable from the settled tokens.
    """

    __slots__ = ("alive", "children", "number", "parent", "position", "probability", "token")

    def __init__(self, token: int, position: int, probability: float, parent: Node | None) -> None:
        self.token = token
        self.position = position
        self.probability = probability
        self.parent = parent
        self.children: list[Node] = []
        self.number = 0
        self.alive = True


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive draft tokens as they go on the wire; the fields are those of `Draft`."""

    epoch: int
    position: int
    number: int
    tokens: tuple[int, ...]
    parent: int | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a verdict changed.

    Attributes:
        position: Position of the first newly settled token.
        tokens: Newly settled token ids.
        matched: How many of them the main path had foretold.
        missed: How many positions had a draft on the main path that turned out wrong (0 or more, one a cut).
        cut: Position from which the main path was cut, or None.
        dropped: How many tokens the cut took off the main path.
        revived: Tokens that a waiting branch put on the main path instead.
        rolled_back: Whether a new epoch began.
    """

    position: int
    tokens: tuple[int, ...]
    matched: int = 0
    missed: int = 0
    cut: int | None = None
    dropped: int = 0
    revived: tuple[int, ...] = ()
    rolled_back: bool = False


class DraftLog:
    """The device's side of one session.

    Args:
        max_tokens: Generated tokens after which the session ends; nothing is drafted beyond them.
        window: Unverified tokens that may be in the tree, or in flight; may change at any time. Where it falls below
            what is there already, that stays, and nothing is added or sent until there is room.
        max_block: Tokens in one block; may change too.
        stop_tokens: Token ids that end the text; nothing is drafted behind one.

    Raises:
        InvalidInput: A limit is below one.
    """

    def __init__(self, *, max_tokens: int, window: int, max_block: int, stop_tokens: Collection[int] = ()) -> None:
        for name, value in (("max_tokens", max_tokens), ("window", window), ("max_block", max_block)):
            if value < 1:
                raise InvalidInput(name, f"is {value}", "use at least 1")
        self.settled: list[int] = []
        self.epoch = 0
        self.window = window
        self.max_block = max_block
        self._max_tokens = max_tokens
        self._stop_tokens = frozenset(stop_tokens)
        self._roots: list[Node] = []
        self._path: list[Node] = []
        self._alive = 0
        self._unsent: list[Node] = []
        self._last_sent: Node | None = None
        self._sent = 0
        self._blocks = 0
        self._stamp = 0

    @property
    def path(self) -> Sequence[Node]:
        """The main path: the draft tokens that follow what is settled."""
        return self._path

    @property
    def tokens(self) -> list[int]:
        """Settled tokens and the main path behind them, a new list."""
        return [*self.settled, *(node.token for node in self._path)]

    @property
    def stamp(self) -> int:
        """Changes whenever the main path ends elsewhere than where `add` last put it."""
        return self._stamp

    @property
    def unsent(self) -> int:
        """Draft tokens that have not been taken into a block."""
        return len(self._unsent)

    @property
    def in_flight(self) -> int:
        """Draft tokens that were sent and not settled or dropped yet."""
        return self._alive - len(self._unsent)

    @property
    def room(self) -> int:
        """How many more tokens the main path may take now."""
        if self._path and self._path[-1].token in self._stop_tokens:
            return 0
        length = len(self.settled) + len(self._path)
        return max(0, min(self.window - self._alive, self._max_tokens - length))

    def add(self, token: int, probability: float, *, parent: Node | None = None) -> Node:
        """Put a draft token into the tree.

        Args:
            token: Token id.
            probability: The drafter's confidence.
            parent: The node that it follows; None: the end of the main path.

        Raises:
            InvalidInput: The window is full, the parent is gone, or it has that child already.
        """
        if self._alive >= self.window:
            raise InvalidInput("draft", f"would be token {self._alive + 1} of a window of {self.window}", "wait")
        if parent is None and self._path:
            parent = self._path[-1]
        if parent is not None and not parent.alive:
            raise InvalidInput("parent", "was dropped or settled", "draft from the log as it is now")
        siblings = self._roots if parent is None else parent.children
        if any(node.token == token for node in siblings):
            raise InvalidInput("token", f"{token} is already a child there", "add each choice once")
        position = len(self.settled) if parent is None else parent.position + 1
        node = Node(token, position, probability, parent)
        on_path = not siblings and (parent is None or (bool(self._path) and parent is self._path[-1]))
        siblings.append(node)
        if on_path:
            self._path.append(node)
        self._unsent.append(node)
        self._alive += 1
        return node

    def take_block(self) -> Block | None:
        """Take the next run of unsent tokens that follow each other; None where all are sent, or no more may be."""
        most = min(self.max_block, self.window - self.in_flight)
        if not self._unsent or most < 1:
            return None
        run = [self._unsent[0]]
        for node in self._unsent[1:most]:
            if node.parent is not run[-1]:
                break
            run.append(node)
        parent = self._wire_parent(run[0])
        del self._unsent[: len(run)]
        for node in run:
            self._sent += 1
            node.number = self._sent
        self._last_sent = run[-1]
        self._blocks += 1
        return Block(self.epoch, run[0].position, self._blocks, tuple(node.token for node in run), parent)

    def settle(self, position: int, tokens: Sequence[int]) -> Settlement:
        """Take a verdict: the target put `tokens` at `position` and after it.

        What is settled already may be repeated; it must be the same.

        Raises:
            ProtocolError: The verdict leaves a gap, contradicts what is settled or runs past `max_tokens`.
        """
        known = len(self.settled)
        if position > known:
            raise ProtocolError(f"verdict.position is {position}, but only {known} positions are settled")
        if position + len(tokens) > self._max_tokens:
            raise ProtocolError(f"the verdict settles {position + len(tokens)} of {self._max_tokens} tokens")
        overlap = min(known - position, len(tokens))
        if list(tokens[:overlap]) != self.settled[position : position + overlap]:
            raise ProtocolError(f"the verdict contradicts what is settled from position {position}")
        new = tuple(tokens[overlap:])
        matched = missed = dropped = 0
        cut: int | None = None
        rolled_back = False
        for token in new:
            foretold = self._path[0].token if self._path else None
            if foretold == token:
                matched += 1
            elif foretold is not None:
                missed += 1
                if cut is None:
                    cut = len(self.settled)
                    dropped = len(self._path)
            rolled_back |= self._advance(token)
        revived = tuple(node.token for node in self._path) if cut is not None else ()
        return Settlement(known, new, matched, missed, cut, dropped, revived, rolled_back)

    def reopen(self, epoch: int, last_block: int) -> None:
        """Begin a new epoch on another stream: what is settled stays, and every draft is to be sent again.

        Args:
            epoch: The newest epoch that the verifier has seen.
            last_block: The newest block that it has seen.

        Raises:
            ProtocolError: It cannot have seen that; nothing is changed.
        """
        if epoch > self.epoch:
            raise ProtocolError(f"the verifier has seen epoch {epoch}, the newest is {self.epoch}")
        if last_block > self._blocks:
            raise ProtocolError(f"the verifier has seen block {last_block}, the newest is {self._blocks}")
        for root in self._roots:
            root.parent = None  # it is settled, and its number is of an old epoch
        self._unsent = list(_whole(self._roots))
        for node in self._unsent:
            node.number = 0
        self._blocks = last_block
        self._begin(epoch + 1)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._sent = 0
        self._last_sent = None

    def _advance(self, token: int) -> bool:
        """Settle one token; whether that began a new epoch."""
        successor = next((node for node in self._roots if node.token == token), None)
        had_drafts = bool(self._roots)
        for node in self._roots:
            if node is not successor:
                self._drop(node)
        self.settled.append(token)
        if successor is not None:
            self._retire(successor)
            self._roots = successor.children
            if self._path[0] is successor:
                del self._path[0]
            else:
                self._path = list(_first_line(self._roots))
                self._stamp += 1
            return False
        self._roots = []
        self._path = []
        self._stamp += 1
        if had_drafts:
            self._begin(self.epoch + 1)
        return had_drafts

    def _drop(self, node: Node) -> None:
        for gone in _whole([node]):
            self._retire(gone)

    def _retire(self, node: Node) -> None:
        node.alive = False
        self._alive -= 1
        if not node.number:
            self._unsent.remove(node)

    def _wire_parent(self, node: Node) -> int | None:
        parent = node.parent
        if parent is None or not parent.number:
            # Its parent is settled: either it was when the node was added, or before it could be sent.
            return 0 if self._last_sent is not None else None
        return None if parent is self._last_sent else parent.number


def _first_line(roots: list[Node]) -> Iterator[Node]:
    while roots:
        yield roots[0]
        roots = roots[0].children


def _whole(roots: list[Node]) -> Iterator[Node]:
    """All nodes from these on down, each before its children and first lines first."""
    stack = roots[::-1]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))
