"""Verifiers in memory, one that says what it is told to and one that is lost as it is told to, and clients of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toy import toy_draft, toy_target

from edgedraft.client import Client
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.errors import Overloaded, VerifierUnavailable
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import PROTOCOL_VERSION, FrameLimits, check_draft
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.draft_tree import DraftTree

CONTEXT = 200
VOCAB = 512


def make_drafter(codec, **settings) -> ScriptedDrafter:
    facts = {"vocab_size": VOCAB, "context_length": CONTEXT, "tokenizer_fingerprint": codec.fingerprint}
    return ScriptedDrafter(toy_draft, **{**facts, **settings})


def description(codec, **changes) -> bytes:
    facts = {
        "name": "toy",
        "tokenizer_fingerprint": codec.fingerprint,
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "max_block": 4,
        "max_window": 8,
        "modes": [pb.MODE_OPEN],
    }
    model = pb.ModelInfo(**{**facts, **changes})
    return pb.DescribeResponse(protocol=PROTOCOL_VERSION, models=[model]).SerializeToString()


def opened(**changes) -> pb.ServerFrame:
    return pb.ServerFrame(opened=pb.Opened(**{"window": 8, "max_block": 4, **changes}))


def verdict(position: int, *tokens: int, **changes) -> pb.ServerFrame:
    return pb.ServerFrame(verdict=pb.Verdict(**{"position": position, "tokens": tokens, "window": 8, **changes}))


FINISHED = pb.ServerFrame(finished=pb.Finished(reason=pb.Finished.REASON_STOP))


def verifier(codec, *frames, **changes) -> MemoryTransport:
    """Takes the Open, then says this and ends, whatever the device does."""

    async def serve(peer) -> None:
        await peer.receive()
        for frame in frames:
            peer.send(frame if isinstance(frame, bytes) else frame.SerializeToString())

    return MemoryTransport(serve, description(codec, **changes))


def client_of(codec, transport, **settings) -> Client:
    return Client(make_drafter(codec), verifier=transport, codec=codec, **{"mode": "open", **settings})


async def answer(codec, *frames, max_tokens=10) -> str:
    async with client_of(codec, verifier(codec, *frames)) as client:
        return await client.generate("sky", SamplingParams(max_tokens=max_tokens))


# ---------------------------------------------------------------- a verifier that is lost, and found again

WAYS_TO_GO = ("lost", "ended", "go_away")
WAYS_TO_REFUSE = ("full", "away", "go_away at once")


@dataclass(frozen=True)
class Fault:
    """How a stream ends.

    Attributes:
        how: One of `WAYS_TO_GO` or `WAYS_TO_REFUSE`.
        after: Frames behind the `Open` that it takes before.
        unsent: Whether what the last of them settled is lost on its way.
        forgets: Whether the session is lost too, and has to be rebuilt from the device's tokens.
    """

    how: str = "lost"
    after: int = 0
    unsent: bool = False
    forgets: bool = False


class FaultyVerifier:
    """Judges drafts by the toy target; its streams end as a list of faults says, the last one in good order.

    Args:
        faults: One a stream.
        window: Granted with the n-th stream.
        max_block: Granted with the n-th stream.

    Attributes:
        opens: Every `Open` that came.
        drafts: Every `Draft` that came.
    """

    WINDOW = 8

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        window: Callable[[int], int] = lambda stream: FaultyVerifier.WINDOW,
        max_block: Callable[[int], int] = lambda stream: 4,
    ) -> None:
        self.faults = list(faults)
        self.window = window
        self.max_block = max_block
        self.opens: list[pb.Open] = []
        self.drafts: list[pb.Draft] = []
        self._tree = DraftTree()
        self._resume_token = b""

    async def serve(self, peer) -> None:
        """Serve one stream: a handler of `MemoryTransport`."""
        opening = pb.ClientFrame.FromString(await peer.receive()).open
        self.opens.append(opening)
        fault = self.faults.pop(0) if self.faults else None
        assert opening.resume_token == self._resume_token
        assert opening.resume_position == len(opening.resume_tokens)
        if fault is not None and fault.how in WAYS_TO_REFUSE:
            self._go(peer, fault)
            return
        self._begin(peer, opening)
        count = 0
        while fault is None or count < fault.after:
            data = await peer.receive()
            if data is None:
                return
            count += 1
            answer = self._judge(pb.ClientFrame.FromString(data), opening)
            if fault is not None and fault.unsent and count == fault.after:
                break
            peer.send(answer.SerializeToString())
            if self._over(opening):
                peer.send(FINISHED.SerializeToString())
                return
        self._go(peer, fault)

    def _begin(self, peer, opening: pb.Open) -> None:
        kept, self._tree = self._tree, DraftTree()
        self._tree.epoch, self._tree.last_block = kept.epoch, kept.last_block
        for token in kept.settled or opening.resume_tokens:
            self._tree.settle(token)
        assert self._tree.settled[: opening.resume_position] == opening.resume_tokens
        stream = len(self.opens)
        peer.send(
            opened(
                resume_token=self._new_token(),
                window=self.window(stream),
                max_block=self.max_block(stream),
                settled=len(self._tree.settled),
                epoch=self._tree.epoch,
                last_block=self._tree.last_block,
            ).SerializeToString()
        )
        more = self._tree.settled[opening.resume_position :]
        if more:
            peer.send(verdict(opening.resume_position, *more).SerializeToString())
        if self._over(opening):
            peer.send(FINISHED.SerializeToString())

    def _judge(self, frame: pb.ClientFrame, opening: pb.Open) -> pb.ServerFrame:
        tree = self._tree
        assert frame.settled <= len(tree.settled)
        if frame.HasField("draft"):
            self.drafts.append(frame.draft)
            check_draft(frame.draft, FrameLimits(VOCAB, CONTEXT, self.max_block(len(self.opens))))
            assert frame.draft.block == tree.last_block + 1
            tree.receive(frame.draft, self.WINDOW)
        position = len(tree.settled)
        for node in tree.chain(opening.limits.max_tokens):
            if self._over(opening) or node.token != self._next(opening):
                break
            tree.settle(node.token)
        if not self._over(opening):
            tree.settle(self._next(opening))
        block, window = tree.last_block, self.window(len(self.opens))
        return verdict(position, *tree.settled[position:], epoch=tree.epoch, block=block, window=window)

    def _new_token(self) -> bytes:
        self._resume_token = b"token %d" % len(self.opens)
        return self._resume_token

    def _next(self, opening: pb.Open) -> int:
        return toy_target((*opening.prompt, *self._tree.settled))

    def _over(self, opening: pb.Open) -> bool:
        settled = self._tree.settled
        stopped = settled[-1:] == [2] and not opening.limits.ignore_eos
        return stopped or len(settled) >= opening.limits.max_tokens

    def _go(self, peer, fault: Fault) -> None:
        if fault.forgets:
            self._tree = DraftTree()
        match fault.how:
            case "lost":
                raise VerifierUnavailable("the link was lost")
            case "ended":
                return
            case "go_away" | "go_away at once":
                peer.send(pb.ServerFrame(go_away=pb.GoAway(resume_token=self._new_token())).SerializeToString())
            case "full":
                raise Overloaded("full", 0.0)
            case "away":
                raise VerifierUnavailable("nothing listens there")
