"""What the guard holds back although it is no leak, and what guard and ledger cost, on a real drafter's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from edgedraft.egress import Gate
from edgedraft.privacy.guard import Guard, GuardSession, Trail, placeholder_token
from edgedraft.privacy.ledger import Ledger
from edgedraft.privacy.view import Views, make_views
from edgedraft.prompt import Mode, Prompt
from edgedraft.report import Traffic
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.text import TextCodec
from edgedraft.transport.memory import MemoryPeer, MemoryTransport
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.privacy.leaks import LeakFinder
from edgedraft_apps.bench.privacy.planted import Planted
from edgedraft_apps.bench.privacy.texts import Text, TextPool
from edgedraft_apps.bench.prompts import load_prompts
from edgedraft_apps.bench.results import Row

PROMPTS: Final = Path(__file__).with_name("ordinary.txt")
"""Everyday prompts without secrets, a line each."""

_TOKENS: Final = 64
_AT_ONCE: Final = 32
_BLOCK: Final = 4
_BEFORE: Final = 64  # tokens before one that are looked at with it
_ALARMS: Final = 0.01
_MICROSECONDS: Final = 50.0

Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt, all of it private, and a drafter's own answer to it.

    Attributes:
        text: The prompt.
        views: Its views in mode `sealed`.
        tokens: The answer.
    """

    text: str
    views: Views
    tokens: Text

    def guard(self, codec: TextCodec) -> Guard:
        """Its guard."""
        secrets = [secret.text for secret in self.views.secrets]
        return Guard(secrets, self.views.private_texts, self.views.public.text, codec.token_bytes)


def ordinary_answers(drafter: Path, codec: TextCodec, progress: Progress, limit: int | None = None) -> list[Answered]:
    """Let a drafter answer the everyday prompts.

    Args:
        drafter: Artifact folder.
        codec: Its tokenizer.
        progress: Told how far it is.
        limit: Take so many; None takes all.

    Raises:
        ModelError: The folder cannot be used.
    """
    pool = TextPool(CompiledModel.load(drafter), tokens=_AT_ONCE * 512, texts=_AT_ONCE)
    asked = [prompt.text for prompt in load_prompts(PROMPTS, limit)]
    answers: list[Answered] = []
    for start in range(0, len(asked), _AT_ONCE):
        views = [make_views(Prompt.of(text), Mode.SEALED) for text in asked[start : start + _AT_ONCE]]
        prompts = [tuple(codec.encode_chat(view.device.messages)) for view in views]
        texts = list(prompts)
        for _ in range(_TOKENS):
            open_ones = [text for text in texts if text[-1] not in codec.eos_token_ids]
            expected = pool.expect(open_ones) if open_ones else {}
            texts = [(*text, int(np.argmax(expected[text]))) if text in expected else text for text in texts]
            progress("answer", start + len(texts), len(asked), "prompts")
        answers += [
            Answered(asked[start + index], views[index], text[len(prompts[index]) :])
            for index, text in enumerate(texts)
        ]
    return answers


def alarm_rows(answers: Sequence[Answered], codec: TextCodec) -> list[Row]:
    """How many tokens were held back, and how many of them for nothing."""
    tokens = held = false = 0
    for answered in answers:
        guard = answered.guard(codec)
        session, trail = guard.session(), guard.root()
        finder = LeakFinder(Planted("", answered.text, ()), answered.views.public.text)
        for place, token in enumerate(answered.tokens):
            trail, kept = _ask(guard, session, trail, token)
            tokens += 1
            held += kept
            false += kept and not _ends_a_leak(answered.tokens[: place + 1], finder, codec)
    case = f"{len(answers)} everyday prompts, all private, {tokens} tokens of the drafter's answers"
    return [
        Row("tokens held back", case, held / tokens),
        Row.at_most("tokens held back that were no leak", case, false / tokens, _ALARMS),
    ]


async def cost_rows(answers: Sequence[Answered], codec: TextCodec) -> list[Row]:
    """What guard and ledger cost a token, from the guard's question to the transport, in blocks of four."""

    async def swallow(peer: MemoryPeer) -> None:
        while await peer.receive() is not None:
            pass

    placeholder = placeholder_token(codec.encode, codec.token_bytes)
    guarding = sending = plain = 0.0
    tokens = 0
    for answered in answers:
        gate = Gate(MemoryTransport(swallow), Ledger(codec.token_bytes))
        page = gate.ledger.page(Mode.SEALED)
        guard = answered.guard(codec)
        stream = await gate.open_stream(Traffic(), page, guard)
        session, trail = guard.session(), guard.root()
        for start in range(0, len(answered.tokens), _BLOCK):
            began = time.perf_counter()
            wire = []
            for token in answered.tokens[start : start + _BLOCK]:
                trail, kept = _ask(guard, session, trail, token)
                wire.append(placeholder if kept else token)
            asked = time.perf_counter()
            frame = pb.ClientFrame(draft=pb.Draft(position=start, block=start // _BLOCK + 1, tokens=wire))
            await stream.send(frame)
            sent = time.perf_counter()
            frame.SerializeToString()
            plain += time.perf_counter() - sent
            guarding += asked - began
            sending += sent - asked
            tokens += len(wire)
        await gate.close()
    case = f"blocks of {_BLOCK}, {tokens} tokens"
    micro = 1e6 / tokens
    return [
        Row("guard", case, guarding * micro, "µs a token"),
        Row("last check, padding, ledger and hand-over", case, sending * micro, "µs a token"),
        Row("of that a frame without them", case, plain * micro, "µs a token"),
        Row.at_most("guard and ledger", case, (guarding + sending - plain) * micro, _MICROSECONDS, "µs a token"),
    ]


def _ask(guard: Guard, session: GuardSession, trail: Trail, token: int) -> tuple[Trail, bool]:
    trail, held = guard.step(trail, token)
    return trail, held or session.leave(token, trail)


def _ends_a_leak(tokens: Text, finder: LeakFinder, codec: TextCodec) -> bool:
    """Whether the last token of a text ends, or goes on with, something that may not leave."""
    after = {leak.found for leak in finder.find(codec.decode(tokens[-_BEFORE:]), "")}
    before = {leak.found for leak in finder.find(codec.decode(tokens[-_BEFORE:-1]), "")}
    return bool(after - before)
