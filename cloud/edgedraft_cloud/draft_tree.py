"""The verifier's copy of a session's unverified draft tree: pure, bounded, and checked before it grows.

Nodes are numbered from 1 in the order in which they arrive within an epoch. Only nodes that still agree with what is
settled are kept; a number without a node is a dead one, and what hangs on it is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire import given_flags
from edgedraft.wire import verify_pb2 as pb

_PASSED: Final = 4096
"""Settled nodes that may still be named as a parent. A device only goes on from what was in flight a moment ago."""


@dataclass(slots=True)
class Node:
    """A draft token that agrees with what is settled so far."""

    number: int
    token: int
    position: int
    given: bool
    children: dict[int, Node]


@dataclass(frozen=True, slots=True)
class Received:
    """What a block brought.

    Attributes:
        fresh: Tokens that wait for verification now.
        late: Tokens that agreed with what had been settled before they came.
    """

    fresh: int = 0
    late: int = 0


class DraftTree:
    """Unverified drafts of one session.

    Attributes:
        settled: Settled token ids; grows by `settle` only.
        epoch: Newest epoch seen.
        last_block: Newest block seen.
        pending: Nodes that wait for verification.
    """

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.epoch = 0
        self.last_block = 0
        self.pending = 0
        self._count = 0
        self._nodes: dict[int, Node] = {}
        self._roots: dict[int, Node] = {}
        self._passed: deque[int] = deque()

    def receive(self, draft: pb.Draft, window: int) -> Received:
        """Take a block that `wire.check_draft` has passed.

        One of an older epoch is dropped, as is what hangs on a node that the target has left.

        Args:
            draft: The block, newer than the last one.
            window: Nodes that may be pending.

        Raises:
            InvalidInput: An unknown parent, a position that is not the parent's plus one, a token that is already a
                child there, or more pending nodes than the window; the tree is unchanged.
        """
        if draft.epoch < self.epoch:
            self.last_block = draft.block
            return Received()
        new_epoch = draft.epoch > self.epoch
        parent = None if new_epoch else self._parent(draft)
        dead = isinstance(parent, int)
        start = draft.position
        if not dead:
            self._check_position(start, parent if isinstance(parent, Node) else None)
            if new_epoch and draft.HasField("parent") and draft.parent:
                raise InvalidInput(
                    "draft.parent", f"is {draft.parent} in the first block of an epoch", "start at the settled tokens"
                )
        plan = [] if dead else self._agreeing(draft, parent if isinstance(parent, Node) else None, new_epoch)
        fresh = sum(1 for position, _ in plan if position >= len(self.settled))
        pending = 0 if new_epoch else self.pending
        if pending + fresh > window:
            raise InvalidInput(
                "draft.tokens", f"make {pending + fresh} unverified tokens, the window is {window}", "wait for verdicts"
            )
        if new_epoch:
            self._begin(draft.epoch)
        self.last_block = draft.block
        self._grow(draft, plan, parent if isinstance(parent, Node) else None)
        return Received(fresh, len(plan) - fresh)

    def settle(self, token: int) -> None:
        """The target put `token` at the next position: go down that branch, if it is there, and drop the others."""
        successor = self._roots.pop(token, None)
        for node in self._roots.values():
            self._forget(node)
        self.settled.append(token)
        if successor is not None:
            self.pending -= 1
            self._roots = successor.children
            self._pass(successor)
        else:
            self._roots = {}

    def drop_pending(self) -> None:
        """Forget all drafts; a device that begins anew sends them again, in a new epoch."""
        self._begin(self.epoch)

    def chain(self, limit: int) -> list[Node]:
        """The line to verify next: from the settled tokens down the first child each time, up to `limit` nodes."""
        line: list[Node] = []
        children = self._roots
        while children and len(line) < limit:
            node = next(iter(children.values()))
            line.append(node)
            children = node.children
        return line

    # ------------------------------------------------------------ inside

    def _parent(self, draft: pb.Draft) -> Node | int | None:
        """The node that a block of this epoch hangs on; None: the settled tokens; a number: a dead node."""
        number = draft.parent if draft.HasField("parent") else self._count
        if number > self._count:
            raise InvalidInput(
                "draft.parent", f"is {number}, this epoch has {self._count} nodes", "name a node that was sent"
            )
        return self._nodes.get(number, number) if number else None

    def _check_position(self, position: int, parent: Node | None) -> None:
        if parent is not None and position != parent.position + 1:
            raise InvalidInput(
                "draft.position", f"is {position}, its parent is at {parent.position}", "follow without a gap"
            )
        if parent is None and position > len(self.settled):
            raise InvalidInput(
                "draft.position",
                f"is {position}, only {len(self.settled)} positions are settled",
                "follow without a gap",
            )

    def _agreeing(self, draft: pb.Draft, parent: Node | None, new_epoch: bool) -> list[tuple[int, int]]:
        """Positions and tokens of the block's beginning that agrees with what is settled."""
        plan: list[tuple[int, int]] = []
        children: dict[int, Node] = {} if new_epoch else self._roots
        if parent is not None and parent.position >= len(self.settled):
            children = parent.children
        for position, token in enumerate(draft.tokens, draft.position):
            if position < len(self.settled):
                if self.settled[position] != token:
                    break
            else:
                if token in children:
                    raise InvalidInput(
                        "draft.tokens", f"repeat a token that follows position {position - 1} already", "send it once"
                    )
                children = {}
            plan.append((position, token))
        return plan

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.pending = 0
        self._count = 0
        self._nodes = {}
        self._roots = {}
        self._passed.clear()

    def _grow(self, draft: pb.Draft, plan: Sequence[tuple[int, int]], parent: Node | None) -> None:
        flags = given_flags(draft)
        children = self._roots
        if parent is not None and parent.position >= len(self.settled):
            children = parent.children
        for index, (position, token) in enumerate(plan):
            node = Node(self._count + index + 1, token, position, flags[index], {})
            self._nodes[node.number] = node
            if position < len(self.settled):
                # It names a settled position from now on; what follows it hangs where the settled tokens end.
                self._pass(node)
                continue
            children[token] = node
            children = node.children
            self.pending += 1
        self._count += len(draft.tokens)

    def _pass(self, node: Node) -> None:
        """A node is settled; the oldest of those are forgotten, or who sends old drafts again fills the memory."""
        self._passed.append(node.number)
        if len(self._passed) > _PASSED:
            del self._nodes[self._passed.popleft()]

    def _forget(self, node: Node) -> None:
        stack = [node]
        while stack:
            gone = stack.pop()
            del self._nodes[gone.number]
            self.pending -= 1
            stack.extend(gone.children.values())
