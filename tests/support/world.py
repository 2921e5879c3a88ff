"""A device core and a verifier core, a link between them that delivers when it is told to, and a target to agree with.

Both cores are the real ones; drafter, target, link and the order of events are the test's.
"""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from edgedraft.core.draft import Node
from edgedraft.core.log import DraftLog
from edgedraft.pipeline import encode_block
from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Work
from edgedraft_cloud.session import Session, SessionLimits, State, merge_verdicts

VOCAB = 6
STOP = 5
PLACEHOLDER = 4
PROMPT = (1, 2)


def target(tokens: tuple[int, ...], seed: int) -> int:
    """A language in which texts end now and then."""
    value = zlib.crc32(bytes([seed, *tokens]))
    return STOP if value % 29 == 0 else value % STOP


def greedy(seed: int, max_tokens: int) -> list[int]:
    out: list[int] = []
    while len(out) < max_tokens:
        out.append(target((*PROMPT, *out), seed))
        if out[-1] == STOP:
            break
    return out


class World:
    """One device, one verifier, and the link; the target decides everything."""

    last_word = False

    def __init__(self, seed: int, max_tokens: int, window: int, block: int, run_ahead: int) -> None:
        self.seed = seed
        self.log = DraftLog(
            max_tokens=max_tokens,
            window=window,
            max_block=block,
            stop_tokens={STOP},
            placeholder=PLACEHOLDER,
            last_word=self.last_word,
        )
        self.limits = SessionLimits(
            frames=FrameLimits(VOCAB, 1000, block),
            max_tokens=max_tokens,
            context_room=1000,
            stop_tokens={STOP},
            window=window,
            run_ahead=run_ahead,
            may_give=self.last_word,
        )
        self.session = Session("s", self.limits, PROMPT)
        self.work: Work | None = Work("s")  # opening
        self.up: deque[pb.ClientFrame] = deque()
        self.delivered: list[pb.ClientFrame] = []
        self.down: deque[pb.Verdict] = deque()

    # ------------------------------------------------------------ the device

    def draft(self, right: bool, branch: int | None) -> None:
        if self.log.room < 1:
            return
        parent = None
        context = [*PROMPT, *self.log.tokens]
        if branch is not None and len(self.log.path) > 1:
            index = branch % (len(self.log.path) - 1)
            parent = self.log.path[index]
            context = [*PROMPT, *self.log.settled, *(node.token for node in self.log.path[: index + 1])]
        token = target(tuple(context), self.seed)
        if not right:
            token = (token + 1) % VOCAB
        if parent is not None and any(child.token == token for child in parent.children):
            return
        self.log.add(token, 0.5, parent=parent)

    def may_leave(self, node: Node) -> bool:
        return True

    def send(self) -> None:
        block = self.log.take_block(self.may_leave)
        frame = pb.ClientFrame(settled=len(self.log.settled))
        if block is not None:
            frame.draft.CopyFrom(encode_block(block))
        self.up.append(frame)

    # ------------------------------------------------------------ the link

    def deliver_up(self, overtake: bool) -> None:
        if not self.up:
            return
        index = 0
        if overtake and self.up[0].HasField("draft"):
            # A frame may only be overtaken by frames of a newer epoch.
            newer = [i for i, f in enumerate(self.up) if f.HasField("draft") and f.draft.epoch > self.up[0].draft.epoch]
            index = newer[0] if newer else 0
        frame = self.up[index]
        del self.up[index]
        self.delivered.append(frame)
        self._receive(frame)

    def duplicate(self, which: int) -> None:
        if self.delivered:
            self._receive(self.delivered[which % len(self.delivered)])

    def merge_down(self) -> None:
        if len(self.down) > 1:
            second, first = self.down.pop(), self.down.pop()
            self.down.append(merge_verdicts(first, second))

    def deliver_down(self, twice: bool) -> None:
        if self.down:
            verdict = self.down.popleft()
            for _ in range(1 + twice):
                if not self.log.ended:
                    self.log.settle(verdict.position, verdict.tokens, verdict.block)

    def cut(self, arrives: int, kept: bool, engine_dies: bool) -> None:
        """The link breaks and the device comes back, perhaps to a verifier that knows nothing of it."""
        self.up.clear()
        self.delivered.clear()
        for _ in range(arrives):
            self.deliver_down(False)
        self.down.clear()
        held = len(self.log.settled)
        if kept:
            self.session.resume(self.log.settled_wire)
        elif self.session.state is not State.FINISHED:
            self.session = Session("s", self.limits, PROMPT, tuple(self.log.settled_wire))
        if self.session.state is not State.FINISHED and (engine_dies or not kept):
            self.session.lose_work()
            self.work = Work("s")  # opened again
        self._read_again()
        self.log.reopen(self.session.tree.epoch, self.session.tree.last_block)
        if (verdict := self.session.verdict_since(held, self.limits.window)) is not None:
            self.down.append(verdict)

    # ------------------------------------------------------------ the verifier

    def start_step(self, rows: int = 1000) -> None:
        if self.session.has_drafts or self.session.may_decode:
            self.work = self.session.next_work(rows)

    def step(self, count: int) -> None:
        """Some steps in a row, of which the device hears later."""
        for _ in range(count):
            self.start_step()
            self.end_step()

    def end_step(self) -> None:
        if self.work is None:
            return
        log = [*PROMPT, *self.session.tree.settled]
        tokens: list[int] = []
        for index, token in enumerate(self.work.tokens):
            given = bool(self.work.given) and self.work.given[index]
            if not given and target(tuple(log), self.seed) != token:
                break
            tokens.append(token)
            log.append(token)
        accepted = len(tokens)
        tokens.append(target(tuple(log), self.seed))
        outcome = Outcome("s", tuple(tokens), accepted, len(self.work.tokens))
        self.work = None
        if self.session.needs_engine:
            self.down.append(self.session.apply(outcome, now=0.0, queue_seconds=0.0, verify_seconds=0.0))
            self._read_again()

    def _receive(self, frame: pb.ClientFrame) -> None:
        verdict = self.session.receive(frame, 0.0)
        if verdict is not None:
            self.down.append(verdict)
        self._read_again()

    def _read_again(self) -> None:
        if self.session.unread:
            self.session.unread = 0
            self.work = Work("s")  # opened again with what stands now

    # ------------------------------------------------------------ the end

    def run_out(self) -> None:
        """No more surprises: let everything arrive until the session ends."""
        for _ in range(400):
            self.draft(True, None)
            self.send()
            while self.up:
                self.deliver_up(False)
            self.start_step()
            self.end_step()
            while self.down:
                self.deliver_down(False)
            if self.session.state is State.FINISHED:
                return
        raise AssertionError("the session does not end")


actions = st.one_of(
    st.tuples(st.just("draft"), st.booleans(), st.none() | st.integers(0, 5)),
    st.tuples(st.just("send")),
    st.tuples(st.just("deliver_up"), st.booleans()),
    st.tuples(st.just("duplicate"), st.integers(0, 50)),
    st.tuples(st.just("start_step"), st.integers(2, 6)),
    st.tuples(st.just("cut"), st.integers(0, 3), st.booleans(), st.booleans()),
    st.tuples(st.just("end_step")),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("merge_down")),
    st.tuples(st.just("deliver_down"), st.booleans()),
)


# ---------------------------------------------------------------- the device has the last word


@dataclass(frozen=True)
class Word:
    """What the device would put at a position, by both texts before it."""

    token: int
    given: bool
    held: bool
    plausible: frozenset[int]

    @classmethod
    def at(cls, seed: int, text: tuple[int, ...], wire: tuple[int, ...]) -> "Word":
        value = zlib.crc32(bytes([seed, *text, 255, *wire]))
        right = target((*PROMPT, *wire), seed)
        token = right if value % 3 else STOP if value % 31 == 0 else value // 3 % STOP
        plausible = frozenset(each for each in range(VOCAB) if value >> (8 + each) & 1)
        return cls(token, value >> 16 & 3 == 0, value >> 18 & 7 == 0, plausible)

    def takes(self, token: int) -> bool:
        return token == self.token or token in self.plausible


@dataclass
class Sealed:
    """What sealed mode comes to where nothing runs ahead: position by position, nobody early and nobody late."""

    text: list[int]
    wire: list[int]
    given: list[bool]

    @classmethod
    def reference(cls, seed: int, max_tokens: int) -> "Sealed":
        out = cls([], [], [])
        while len(out.text) < max_tokens and out.text[-1:] != [STOP]:
            word = Word.at(seed, tuple(out.text), tuple(out.wire))
            proposed = target((*PROMPT, *out.wire), seed)
            if word.given or word.held:
                out._put(word.token, PLACEHOLDER if word.held else word.token, True)
            elif proposed == word.token or word.takes(proposed):
                out._put(proposed, proposed, False)
            else:
                out._put(word.token, word.token, True)
        return out

    def _put(self, token: int, wire: int, given: bool) -> None:
        self.text.append(token)
        self.wire.append(wire)
        self.given.append(given)


class GuardedWorld(World):
    """The target decides everything; a guard holds drafts back, some when they are made and some when they would leave.

    Attributes:
        refuse: Says of a token that is about to leave whether it must not.
    """

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.refuse: Callable[[Node], bool] = lambda node: False

    def draft(self, right: bool = True, branch: int | None = None) -> None:
        if self.log.room:
            word = Word.at(self.seed, tuple(self.log.tokens), ())
            self.log.add(target((*PROMPT, *self.log.tokens), self.seed), 0.5, held=word.held)

    def may_leave(self, node: Node) -> bool:
        return not self.refuse(node)


class SealedWorld(World):
    """The device has the last word.

    Attributes:
        given: For each settled position, whether the device decided it.
        refuse: Says of a token that is about to leave whether it must not.
        refused: Positions and tokens of which it has said so.
        refuse_guess: Says whether the device must not agree where the cloud says its own next token before it.
    """

    last_word = True

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.given: list[bool] = []
        self.refuse: Callable[[Node], bool] = lambda node: False
        self.refused: list[tuple[int, int]] = []
        self.refuse_guess: Callable[[], bool] = lambda: False

    def draft(self, right: bool = True, branch: int | None = None) -> None:
        if self.log.room < 1 or self.log.ended:
            return
        word = Word.at(self.seed, tuple(self.log.tokens), tuple(self.log.wire_tokens))

        def takes(token: int) -> bool:
            return word.takes(token) and not (token == word.token and self.refuse_guess())

        self.log.add(word.token, 0.5, given=word.given, held=word.held, takes=takes)
        self._note(self.log.resolve())

    def may_leave(self, node: Node) -> bool:
        if self.refuse(node):
            self.refused.append((node.position, node.token))
            return False
        return True

    def send(self) -> None:
        if self.log.ended:
            frame = pb.ClientFrame(settled=len(self.log.settled))
            if not self.log.wire_ended:
                frame.close.reason = pb.Close.REASON_STOP_STRING
            self.up.append(frame)
            return
        before = len(self.refused)
        super().send()
        if len(self.refused) > before:
            draft = self.up[-1].draft
            assert (draft.position + len(draft.tokens) - 1, draft.tokens[-1]) == (self.refused[-1][0], PLACEHOLDER)

    def deliver_down(self, twice: bool) -> None:
        if self.down:
            verdict = self.down.popleft()
            for _ in range(1 + twice):
                if not self.log.ended:
                    self._note(self.log.settle(verdict.position, verdict.tokens, verdict.block))

    def run_out(self) -> None:
        """A session that is finished has told all that the device needs to know of its end."""
        if self.session.state is State.FINISHED and self.session.finish_reason != pb.Finished.REASON_CLOSED:
            while self.down:
                self.deliver_down(False)
            assert self.log.ended
        super().run_out()

    def _note(self, settlement) -> None:
        assert settlement.position == len(self.given)
        self.given += [settlement.position + i in settlement.given for i in range(len(settlement.tokens))]
