"""Hunts for leaks: drafters that repeat their prompt in every way, real clients, and a tap on what leaves."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from edgedraft.client import Client
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.privacy.guard import GuardLimits
from edgedraft.privacy.ledger import Ledger
from edgedraft.prompt import Message, Mode, Part, Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft.transport.memory import MemoryPeer, MemoryTransport
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.privacy.leaks import Leak, LeakFinder, Overheard, leaks_in
from edgedraft_apps.bench.privacy.planted import ECHOES, KINDS, Planted, echo, planted_prompts
from edgedraft_apps.bench.privacy.tap import Tap, TappedTransport
from edgedraft_apps.bench.results import Row
from edgedraft_cloud.draft_tree import DraftTree

Progress = Callable[[str, int, int, str], None]

WAYS: Final = ("blocks", "rollbacks", "turns", "generations")
"""How an echo is cut up: into small blocks, by a target that rejects much, over turns, over several generations."""
_PIECES: Final = 3
_TOKENS: Final = 160
_CONTEXT: Final = 4096
_WINDOW: Final = 16
_FILLERS: Final = (" and", " so", " then", " well", " of", " the")


@dataclass(frozen=True, slots=True)
class Hunted:
    """What came of one prompt.

    Attributes:
        leaks: What left and should not have.
        tokens: Tokens that were sent.
        held: Tokens that were held back.
        frames: Frames on the tap.
        astray: Frames that the ledger and the tap do not agree on.
    """

    leaks: Sequence[Leak]
    tokens: int
    held: int
    frames: int
    astray: int


class EchoVerifier:
    """Judges drafts by a coin, and never says anything of its own but fillers; given tokens stand.

    It runs ahead now and then, so that the device has something to veto.

    Args:
        codec: Tokenizer.
        rejects: Share of the drafts that it rejects.
        seed: Fixes the coin.
    """

    def __init__(self, codec: TextCodec, rejects: float, seed: str) -> None:
        self._fillers = [token for text in _FILLERS for token in codec.encode(text)[:1]]
        self._rejects = rejects
        self._draw = random.Random(seed)
        self._description = pb.DescribeResponse(
            protocol=PROTOCOL_VERSION,
            models=[
                pb.ModelInfo(
                    name="echo",
                    tokenizer_fingerprint=codec.fingerprint,
                    vocab_size=codec.vocab_size,
                    context_length=_CONTEXT,
                    max_block=8,
                    max_window=_WINDOW,
                    modes=[pb.MODE_SEALED, pb.MODE_CLOAKED],
                )
            ],
        )

    def transport(self) -> MemoryTransport:
        """A way to it."""
        return MemoryTransport(self._serve, self._description.SerializeToString())

    async def _serve(self, peer: MemoryPeer) -> None:
        opening = pb.ClientFrame.FromString(await peer.receive() or b"").open
        tree, acknowledged = DraftTree(), 0
        most = opening.limits.max_tokens
        peer.send(pb.ServerFrame(opened=pb.Opened(window=_WINDOW, max_block=8)).SerializeToString())
        while (data := await peer.receive()) is not None:
            frame = pb.ClientFrame.FromString(data)
            acknowledged = max(acknowledged, frame.settled)
            if frame.HasField("close"):
                return
            if frame.HasField("draft"):
                self._answer(peer, tree, frame.draft, acknowledged, most)
            # Where the device has the last word, it is over once the device has seen the end.
            if len(tree.settled) >= most and (opening.mode != pb.MODE_SEALED or acknowledged >= most):
                peer.send(pb.ServerFrame(finished=pb.Finished(reason=pb.Finished.REASON_LENGTH)).SerializeToString())
                return

    def _answer(self, peer: MemoryPeer, tree: DraftTree, draft: pb.Draft, acknowledged: int, most: int) -> None:
        received = tree.receive(draft, _WINDOW, acknowledged)
        start = len(tree.settled) if received.cut is None else received.cut
        self._judge(tree, most)
        verdict = pb.Verdict(
            epoch=tree.epoch,
            block=tree.last_block,
            position=start,
            tokens=tree.settled[start:],
            block_used=True,
            window=_WINDOW,
        )
        peer.send(pb.ServerFrame(verdict=verdict).SerializeToString())

    def _judge(self, tree: DraftTree, most: int) -> None:
        for node in tree.chain(most):
            if len(tree.settled) >= most:
                return
            if not node.given and self._draw.random() < self._rejects:
                tree.settle(self._filler())
                return
            tree.settle(node.token)
        # By itself, as a target does at the end of a block.
        if len(tree.settled) < most and self._draw.random() < self._rejects:
            tree.settle(self._filler())

    def _filler(self) -> int:
        return self._draw.choice(self._fillers)


class EchoScript:
    """What the drafter says: the next token of the echo.

    Where the public view would say the same is drawn, so that the gate sometimes opens and sometimes does not.

    Args:
        codec: Tokenizer.
        insists: Say a token again that the target has not taken; else go on with the next one.
    """

    def __init__(self, codec: TextCodec, *, insists: bool) -> None:
        self._insists = insists
        self._end = codec.eos_token_ids[0]
        self._vocab_size = codec.vocab_size
        self._device: tuple[int, ...] = ()
        self._public: tuple[int, ...] = ()
        self._echo: Sequence[int] = ()

    def say(self, device: Sequence[int], public: Sequence[int], tokens: Sequence[int]) -> None:
        """Say these tokens after a prompt, of which both views are given."""
        self._device, self._public, self._echo = tuple(device), tuple(public), tokens

    def __call__(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """What comes after a text."""
        private = tokens[: len(self._device)] == self._device
        place = self._place(tokens[len(self._device if private else self._public) :])
        token = self._echo[place] if place < len(self._echo) else self._end
        if not private and zlib.crc32(b"%d" % place) % 3 == 0:
            return ((token + 1) % self._vocab_size, token)
        return (token, (token + 1) % self._vocab_size)

    def _place(self, answer: Sequence[int]) -> int:
        """How much of the echo has been said."""
        if not self._insists:
            return len(answer)
        place = 0
        for token in answer:
            place += place < len(self._echo) and token == self._echo[place]
        return place


async def hunt(
    planted: Planted,
    how: str,
    way: str,
    mode: Mode,
    codec: TextCodec,
    seed: str,
    limits: GuardLimits | None = None,
) -> Hunted:
    """Let a drafter echo one prompt, and search all that left.

    Args:
        planted: The prompt.
        how: One of `ECHOES`.
        way: One of `WAYS`.
        mode: `sealed` or `cloaked`.
        codec: Tokenizer.
        seed: Fixes all that is drawn.
        limits: Of the guard; None takes the standard ones.

    Raises:
        EdgedraftError: A generation failed.
    """
    draw = random.Random(seed)
    tokens = codec.encode(echo(planted, how, draw))
    pieces = _cut(tokens, draw) if way in ("turns", "generations") else [tokens[:_TOKENS]]
    script, tap = EchoScript(codec, insists=draw.random() < 0.5), Tap()
    drafter = ScriptedDrafter(
        script, vocab_size=codec.vocab_size, context_length=_CONTEXT, tokenizer_fingerprint=codec.fingerprint
    )
    verifier = EchoVerifier(codec, 0.4 if way == "rollbacks" else 0.05, seed)
    ledger = Ledger(codec.token_bytes)
    client = Client(
        drafter,
        verifier=TappedTransport(verifier.transport(), tap),
        codec=codec,
        mode=mode,
        limits=limits,
        block_size=draw.randint(1, 3) if way == "blocks" else 4,
        ledger=ledger,
    )
    messages = list(planted.prompt.messages)
    public = ""
    async with client:
        for piece in pieces:
            prompt = Prompt(messages)
            view = client.public_view(prompt)
            public += f"{view.text}\n"
            device = codec.encode_chat(prompt.as_dicts()) if mode is Mode.SEALED else view.tokens
            script.say(device, view.tokens, piece)
            answer = await client.generate(prompt, SamplingParams(max_tokens=max(1, len(piece))))
            if way == "turns":
                messages += [Message("assistant", answer or "-"), Message("user", (Part("Go on."),))]
    entries = ledger.entries()
    ledger.close()
    known = planted if mode is Mode.SEALED else replace(planted, private="")
    return Hunted(
        leaks_in(_sessions(tap, codec), LeakFinder(known, public)),
        sum(len(entry.tokens) for entry in entries if entry.kind == "draft"),
        sum(len(entry.held) for entry in entries),
        len(tap.frames),
        _astray(tap, [(entry.direction, entry.frame) for entry in entries]),
    )


async def hunt_rows(codec: TextCodec, count: int, progress: Progress) -> list[Row]:
    """Figures over many prompts, each in mode `sealed` and in mode `cloaked`; all echoes and ways take turns."""
    rows: list[Row] = []
    for mode in (Mode.SEALED, Mode.CLOAKED):
        found: list[Hunted] = []
        for number, planted in enumerate(planted_prompts(count)):
            how = list(ECHOES)[number // len(KINDS) % len(ECHOES)]
            way = WAYS[number % len(WAYS)]
            found.append(await hunt(planted, how, way, mode, codec, f"{mode}.{number}"))
            progress(f"hunt, {mode}", number + 1, count, "prompts")
        case = f"{mode}, {count} prompts with secrets of {len(KINDS)} kinds, {len(ECHOES)} echoes in {len(WAYS)} ways"
        counts = Counter(leak.what for hunted in found for leak in hunted.leaks)
        names = {"secret": "secrets", "piece": "pieces of secrets", "run": "runs of 5 private words"}
        rows += [Row.exactly(f"{name} in the bytes that left", case, counts[what], 0) for what, name in names.items()]
        rows += [
            Row("tokens sent", case, sum(hunted.tokens for hunted in found)),
            Row("tokens held back", case, sum(hunted.held for hunted in found)),
            Row("frames on the tap", case, sum(hunted.frames for hunted in found)),
            Row.exactly("frames not alike in ledger and tap", case, sum(hunted.astray for hunted in found), 0),
        ]
    return rows


def _cut(tokens: list[int], draw: random.Random) -> list[list[int]]:
    """Three pieces; where is drawn among the first half, where the secrets are."""
    places = sorted(draw.sample(range(1, max(3, len(tokens) // 2)), _PIECES - 1))
    ends = [*places, len(tokens)]
    return [tokens[start:end][:_TOKENS] for start, end in zip([0, *places], ends, strict=True)]


def _sessions(tap: Tap, codec: TextCodec) -> list[Overheard]:
    sessions = [Overheard(codec.token_bytes) for _ in range(tap.streams)]
    for tapped in tap.frames:
        if tapped.stream >= 0:
            session = sessions[tapped.stream]
            (session.up if tapped.direction == "up" else session.down)(tapped.frame)
    return sessions


def _astray(tap: Tap, entries: Sequence[tuple[str, bytes]]) -> int:
    """Frames that are not the same, one by one, in each direction."""
    astray = 0
    for direction in ("up", "down"):
        tapped = [each.frame for each in tap.frames if each.direction == direction]
        written = [frame for way, frame in entries if way == direction]
        astray += sum(one != other for one, other in zip(tapped, written, strict=False))
        astray += abs(len(tapped) - len(written))
    return astray
