"""The verifier's copy of a session's unverified draft tree: pure, bounded, and checked before it grows.

Nodes are numbered from 1 in the order in which they arrive within an epoch. Only nodes that still agree with what is
settled are kept; a number without a node is a dead one, and what hangs on it is dropped. A *given* token is decided by
the device: where it contradicts a settled one that the device has not acknowledged, that one gives way (a *veto*).
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
        late: Draft tokens that agreed with what had been settled before they came.
        cut: Position from which settled tokens gave way to a given one, which waits there now; None: none did.
    """

    fresh: int = 0
    late: int = 0
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The beginning of a block that goes into the tree, by position and token, and where settled tokens give way."""

    line: list[tuple[int, int]]
    cut: int | None = None


class DraftTree:
    """Unverified drafts of one session.

    Attributes:
        settled: Settled token ids; they grow by `settle`, and give way to `cut` and to given tokens.
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

    def receive(self, draft: pb.Draft, window: int, final: int = 0) -> Received:
        """Take a block that `wire.check_draft` has passed.

        One of an older epoch is dropped, as is what hangs on a node that the target has left.

        Args:
            draft: The block, newer than the last one.
            window: Nodes that may be pending.
            final: How many settled positions no given token may change any more.

        Raises:
            InvalidInput: An unknown parent, a position that is not the parent's plus one, a token that is already a
                child there, a given token that contradicts a final one, or more pending nodes than the window; the tree
                is unchanged.
        """
        if draft.epoch < self.epoch:
            self.last_block = draft.block
            return Received()
        new_epoch = draft.epoch > self.epoch
        found = None if new_epoch else self._parent(draft)
        dead = isinstance(found, int)
        parent = found if isinstance(found, Node) else None
        if not dead:
            self._check_position(draft.position, parent)
            if new_epoch and draft.HasField("parent") and draft.parent:
                raise InvalidInput(
                    "draft.parent", f"is {draft.parent} in the first block of an epoch", "start at the settled tokens"
                )
        flags = given_flags(draft)
        plan = _Plan([]) if dead else self._plan(draft, flags, parent, new_epoch, final)
        end = len(self.settled) if plan.cut is None else plan.cut
        fresh = sum(1 for position, _ in plan.line if position >= end)
        pending = 0 if new_epoch or plan.cut is not None else self.pending
        if pending + fresh > window:
            raise InvalidInput(
                "draft.tokens", f"make {pending + fresh} unverified tokens, the window is {window}", "wait for verdicts"
            )
        if new_epoch:
            self._begin(draft.epoch)
        if plan.cut is not None:
            self.cut(plan.cut)
        self.last_block = draft.block
        self._grow(draft, plan.line, flags, parent)
        late = len(plan.line) - fresh
        return Received(fresh, late - sum(flags[:late]), plan.cut)

    @property
    def given_next(self) -> int | None:
        """The given token at the next position, where there is one."""
        return next((node.token for node in self._roots.values() if node.given), None)

    def cut(self, position: int) -> None:
        """Take back what is settled from a position on, and all that hangs on it."""
        for node in self._roots.values():
            self._forget(node)
        self._roots = {}
        del self.settled[position:]
        for number in self._passed:
            if self._nodes[number].position >= position:
                del self._nodes[number]
        self._passed = deque(number for number in self._passed if number in self._nodes)

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

    def chain(self, limit: int, drafts: int | None = None) -> list[Node]:
        """The line to verify next: from the settled tokens down the first child each time.

        The target puts a token of its own behind it. It does not end before a given token if that can be helped, for
        only the device has a say there.

        Args:
            limit: Nodes at most.
            drafts: Nodes at most that are not given; None: any.
        """
        line: list[Node] = []
        children = self._roots
        while children:
            node = next(iter(children.values()))
            if len(line) >= limit or (not node.given and drafts == 0):
                break
            if drafts is not None:
                drafts -= not node.given
            line.append(node)
            children = node.children
        if any(node.given for node in children.values()):
            shorter = next((end for end in range(len(line) - 1, 0, -1) if not line[end].given), len(line))
            del line[shorter:]
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

    def _plan(self, draft: pb.Draft, flags: Sequence[bool], parent: Node | None, new_epoch: bool, final: int) -> _Plan:
        """The block's beginning that agrees with what is settled, or has the last word on it."""
        line: list[tuple[int, int]] = []
        cut: int | None = None
        children: dict[int, Node] = {} if new_epoch else self._roots
        if parent is not None and parent.position >= len(self.settled):
            children = parent.children
        for index, token in enumerate(draft.tokens):
            position = draft.position + index
            if cut is None and position < len(self.settled):
                if self.settled[position] != token:
                    if not flags[index]:
                        break
                    if position < final:
                        raise InvalidInput(
                            "draft.given",
                            f"decides position {position}, {final} are acknowledged",
                            "decide before that",
                        )
                    cut = position
            elif cut is None:
                if token in children:
                    raise InvalidInput(
                        "draft.tokens", f"repeat a token that follows position {position - 1} already", "send it once"
                    )
                children = {}
            line.append((position, token))
        return _Plan(line, cut)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.pending = 0
        self._count = 0
        self._nodes = {}
        self._roots = {}
        self._passed.clear()

    def _grow(
        self, draft: pb.Draft, line: Sequence[tuple[int, int]], flags: Sequence[bool], parent: Node | None
    ) -> None:
        children = self._roots
        if parent is not None and parent.position >= len(self.settled):
            children = parent.children
        for index, (position, token) in enumerate(line):
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
