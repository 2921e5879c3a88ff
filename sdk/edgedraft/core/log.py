"""The draft log: what is settled, what is drafted beyond it, and how a verdict changes both.

Drafted tokens form a tree below the settled tokens. Its *main path* (first child, first child, ...) is what the device
bets on and shows; other branches wait in case the target prefers them. The log numbers nodes and blocks as
`wire/verify.proto` says and decides when a new epoch begins.

Where the target decides everything, a verdict settles what it says. Where the device has the last word (mode `sealed`),
a verdict proposes: it settles as far as the main path reaches and agrees, and the device takes or vetoes what does not.
A veto is a given token that contradicts the verdict. Until the verifier has seen the block with it, verdicts do not
count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from edgedraft.core.draft import Block, Judge, Node, Settlement, always
from edgedraft.errors import InvalidInput, ProtocolError


class DraftLog:
    """The device's side of one session.

    Args:
        max_tokens: Generated tokens after which the session ends; nothing is drafted beyond them.
        window: Unverified tokens that may be in the tree, or in flight; may change at any time. Where it falls below
            what is there already, that stays, and nothing is added or sent until there is room.
        max_block: Tokens in one block; may change too.
        stop_tokens: Token ids that end the text; nothing is drafted behind one.
        placeholder: What stands on the wire for a token that is held back.
        last_word: Whether the device has it. A token that is held back is given then; otherwise it is replaced by the
            placeholder on the device too, as a draft behind which nothing is drafted: the target decides there.

    Raises:
        InvalidInput: A limit is below one.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        window: int,
        max_block: int,
        stop_tokens: Collection[int] = (),
        placeholder: int = 0,
        last_word: bool = False,
    ) -> None:
        for name, value in (("max_tokens", max_tokens), ("window", window), ("max_block", max_block)):
            if value < 1:
                raise InvalidInput(name, f"is {value}", "use at least 1")
        self.settled: list[int] = []
        self.settled_wire: list[int] = []
        self.epoch = 0
        self.window = window
        self.max_block = max_block
        self._max_tokens = max_tokens
        self._stop_tokens = frozenset(stop_tokens)
        self._placeholder = placeholder
        self._last_word = last_word
        self._roots: list[Node] = []
        self._path: list[Node] = []
        self._alive = 0
        self._unsent: list[Node] = []
        self._last_sent: Node | None = None
        self._sent = 0
        self._blocks = 0
        self._stamp = 0
        self._proposals: deque[int] = deque()
        self._valid_from = 0  # the block with the last veto

    @property
    def path(self) -> Sequence[Node]:
        """The main path: the draft tokens that follow what is settled."""
        return self._path

    @property
    def tokens(self) -> list[int]:
        """Settled tokens and the main path behind them, a new list."""
        return [*self.settled, *(node.token for node in self._path)]

    @property
    def wire_tokens(self) -> list[int]:
        """The same as the cloud sees it, a new list."""
        return [*self.settled_wire, *(node.wire for node in self._path)]

    @property
    def stamp(self) -> int:
        """Changes whenever the main path is another or ends elsewhere than where `add` last put it."""
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
    def proposed(self) -> bool:
        """Whether tokens of the target wait for the main path to reach them."""
        return bool(self._proposals)

    @property
    def ended(self) -> bool:
        """Whether the settled text is complete: it ends with a stop token, or is as long as it may be."""
        return len(self.settled) >= self._max_tokens or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the settled text ends with a stop token."""
        return bool(self.settled) and self.settled[-1] in self._stop_tokens

    @property
    def wire_ended(self) -> bool:
        """Whether the text is complete as the cloud sees it too, where a stop token may be held back."""
        return self.ended and (not self.stopped or self.settled_wire[-1] in self._stop_tokens)

    @property
    def room(self) -> int:
        """How many more tokens the main path may take now."""
        last = self._path[-1] if self._path else None
        if last is not None and (last.token in self._stop_tokens or (last.held is not None and not self._last_word)):
            return 0
        length = len(self.settled) + len(self._path)
        return max(0, min(self.window - self._alive, self._max_tokens - length))

    def add(
        self,
        token: int,
        probability: float,
        *,
        given: bool = False,
        held: bool = False,
        takes: Judge = always,
        parent: Node | None = None,
    ) -> Node:
        """Put a draft token into the tree.

        Args:
            token: Token id.
            probability: The drafter's confidence.
            given: Whether the device decides the position.
            held: Whether the token is held back.
            takes: Whether the device would take a token of the target in its place.
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
        position = len(self.settled) if parent is None else parent.position + 1
        node = Node(token, position, probability, parent, given, takes)
        if held:
            self._hold(node)
        if any(sibling.wire == node.wire for sibling in siblings):
            raise InvalidInput("token", f"{node.wire} is already a child there", "add each choice once")
        on_path = not siblings and (parent is None or (bool(self._path) and parent is self._path[-1]))
        siblings.append(node)
        if on_path:
            self._path.append(node)
        self._unsent.append(node)
        self._alive += 1
        return node

    def take_block(self, may_leave: Callable[[Node], bool] = always) -> Block | None:
        """Take the next run of unsent tokens that follow each other; None where all are sent, or no more may be.

        Args:
            may_leave: Asked of each token that is not held back yet, in the order of sending. Behind one that may not
                leave, the path is cut: it was drafted for another text than the cloud will see.
        """
        most = min(self.max_block, self.window - self.in_flight)
        if not self._unsent or most < 1:
            return None
        run: list[Node] = []
        cut: int | None = None
        before = len(self._path)
        for node in self._unsent[:most]:
            if run and node.parent is not run[-1]:
                break
            run.append(node)
            if node.held is None and not may_leave(node):
                self._hold(node)
                self._cut_behind(node)
                cut = node.position + self._last_word
                break
        parent = self._wire_parent(run[0])
        del self._unsent[: len(run)]
        for node in run:
            self._sent += 1
            node.number = self._sent
            node.block = self._blocks + 1
        self._last_sent = run[-1]
        self._blocks += 1
        return Block(
            self.epoch,
            run[0].position,
            self._blocks,
            tuple(node.wire for node in run),
            parent,
            tuple(node.given for node in run) if any(node.given for node in run) else (),
            tuple((node.position, node.held) for node in run if node.held is not None),
            cut,
            before - len(self._path),
        )

    def settle(self, position: int, tokens: Sequence[int], block: int | None = None) -> Settlement:
        """Take a verdict: the target put `tokens` at `position` and after it.

        What is known already may be repeated; it must be the same.

        Args:
            position: Position of the first token.
            tokens: Token ids.
            block: The newest that the verifier had seen; None: all of them.

        Raises:
            ProtocolError: The verdict leaves a gap, contradicts what is settled or runs past `max_tokens`.
        """
        if block is not None and block > self._blocks:
            raise ProtocolError(f"the verdict is of block {block}, the newest is {self._blocks}")
        if block is not None and block < self._valid_from:
            return Settlement(len(self.settled), ())
        known = [*self.settled_wire, *self._proposals] if self._proposals else self.settled_wire
        if position > len(known):
            raise ProtocolError(f"verdict.position is {position}, but only {len(known)} positions are settled")
        if position + len(tokens) > self._max_tokens:
            raise ProtocolError(f"the verdict settles {position + len(tokens)} of {self._max_tokens} tokens")
        overlap = min(len(known) - position, len(tokens))
        if list(tokens[:overlap]) != known[position : position + overlap]:
            raise ProtocolError(f"the verdict contradicts what is settled from position {position}")
        self._proposals.extend(tokens[overlap:])
        return self.resolve(block)

    def resolve(self, block: int | None = None) -> Settlement:
        """Settle what is proposed, as far as it can be settled now; to call after `add` where tokens are proposed.

        Args:
            block: As in `settle`, where a verdict is the cause.
        """
        first = len(self.settled)
        given: list[int] = []
        matched = missed = held = dropped = 0
        cut: int | None = None
        rolled_back = vetoed = False
        while self._proposals and (self._path or not self._last_word):
            token = self._proposals[0]
            node = self._path[0] if self._path else None
            agrees = node is not None and node.wire == token
            if node is not None and agrees and self._last_word and not self._may_agree(node):
                self._hold(node)
                self._cut_behind(node)
                agrees = False
            if node is not None and not node.given and node.held is None:
                matched += agrees
                missed += not agrees
            if node is not None and not agrees and self._last_word and (node.given or not node.takes(token)):
                self._veto(node, block)
                vetoed = True
                break
            self._proposals.popleft()
            if node is not None and agrees:
                if node.given:
                    given.append(node.position)
                held += node.held is not None
            elif node is not None and cut is None:
                cut = len(self.settled)
                dropped = len(self._path)
            rolled_back |= self._advance(token)
        revived = tuple(node.token for node in self._path) if cut is not None else ()
        return Settlement(
            first,
            tuple(self.settled[first:]),
            tuple(given),
            matched,
            missed,
            held,
            cut,
            dropped,
            revived,
            rolled_back,
            vetoed,
        )

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
        self._proposals.clear()  # they are told again
        self._valid_from = 0  # what the old stream still had to say is lost
        self._blocks = last_block
        self._send_again(epoch + 1)

    # ------------------------------------------------------------ inside

    @staticmethod
    def _may_agree(node: Node) -> bool:
        """Whether a token may be settled as the cloud guessed it: what has not left yet may be what must not."""
        return bool(node.number) or node.held is not None or node.takes(node.token)

    def _hold(self, node: Node) -> None:
        node.held = node.token
        node.wire = self._placeholder
        if self._last_word:
            node.given = True
        else:
            node.token = self._placeholder

    def _cut_behind(self, node: Node) -> None:
        for child in node.children:
            self._drop(child)
        node.children = []
        index = node.position - len(self.settled)
        if index < len(self._path) and self._path[index] is node:
            del self._path[index + 1 :]
            self._stamp += 1

    def _veto(self, node: Node, block: int | None) -> None:
        """The device overrules the verdict at the front of the main path; what is behind it there stays."""
        self._proposals.clear()
        if node.given and node.number and block is not None:
            if block >= node.block:
                raise ProtocolError(f"the verdict contradicts the token that the device gave at {node.position}")
            self._valid_from = node.block  # it is under way already
            return
        node.given = True
        for other in self._roots:
            if other is not node:
                self._drop(other)
        self._roots = [node]
        self._send_again(self.epoch + 1)
        self._valid_from = self._blocks + 1

    def _send_again(self, epoch: int) -> None:
        for root in self._roots:
            root.parent = None  # it is settled, and its number is of an old epoch
        self._unsent = list(_whole(self._roots))
        for node in self._unsent:
            node.number = 0
        self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._sent = 0
        self._last_sent = None

    def _advance(self, token: int) -> bool:
        """Settle one token of the wire; whether that began a new epoch."""
        successor = next((node for node in self._roots if node.wire == token), None)
        had_drafts = bool(self._roots)
        for node in self._roots:
            if node is not successor:
                self._drop(node)
        self.settled.append(token if successor is None else successor.token)
        self.settled_wire.append(token)
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
