"""Devices without a wire: what they say to an orchestrator in the same process, and one that drafts by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from toy import toy_draft, toy_target

from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import EngineInfo, Outcome, Work
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.live import SessionHandle
from edgedraft_cloud.orchestrator import Orchestrator

FINGERPRINT = "ab" * 32
PROMPT = [11, 12, 13]


def engine_info(**changes) -> EngineInfo:
    """A model of 100 tokens; the room is set, so that nothing is measured."""
    facts = {
        "engine": "scripted",
        "model": "toy",
        "model_fingerprint": "f",
        "tokenizer_fingerprint": FINGERPRINT,
        "vocab_size": 100,
        "context_length": 200,
        "max_block": 8,
        "max_sessions": 4,
        "eos_token_ids": (2, 0),
        "room": 10_000,
    }
    return EngineInfo(**{**facts, **changes})


def opening(**changes) -> pb.Open:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "tokenizer_fingerprint": FINGERPRINT,
        "mode": pb.MODE_OPEN,
        "prompt": PROMPT,
        "limits": pb.Limits(max_tokens=20),
    }
    return pb.Open(**{**fields, **changes})


def endless(max_tokens: int = 150, **changes) -> pb.Open:
    """One that does not end with a token of the toy language."""
    return opening(limits=pb.Limits(max_tokens=max_tokens, ignore_eos=True), **changes)


def resuming(message: pb.Open, token: bytes, tokens: Sequence[int] = ()) -> pb.Open:
    """The same `Open` on a new stream, by a device that holds these tokens."""
    again = pb.Open()
    again.CopyFrom(message)
    again.resume_token = token
    again.resume_position = len(tokens)
    again.resume_tokens.extend(tokens)
    return again


def drafts(tokens: Sequence[int], position: int = 0, block: int = 1, epoch: int = 0) -> pb.ClientFrame:
    return pb.ClientFrame(draft=pb.Draft(epoch=epoch, position=position, block=block, tokens=tokens))


CLOSE = pb.ClientFrame(close=pb.Close(reason=pb.Close.REASON_CANCELLED))


async def turns(count: int = 50) -> None:
    """Let everything that can happen by itself happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def read_all(handle: SessionHandle, *, acknowledge: bool = True) -> tuple[list[int], list[str]]:
    """Settled tokens and the kinds of frames, acknowledging as a device does."""
    tokens: list[int] = []
    kinds: list[str] = []
    async for frame in handle.frames():
        kinds.append(frame.WhichOneof("frame"))
        if frame.HasField("verdict"):
            assert frame.verdict.position == len(tokens)
            tokens += frame.verdict.tokens
            if acknowledge:
                handle.receive(pb.ClientFrame(settled=len(tokens)))
    return tokens, kinds


class RecordingEngine(ScriptedEngine):
    """Remembers what it found for whom, and may be told to refuse sessions.

    Attributes:
        opened: Sessions in the order in which they were opened, with what was read for them.
        found: Tokens that were reported, by session.
        refuse: Raised by the next `open`, once.
    """

    def __init__(self, info: EngineInfo, target: Callable[[tuple[int, ...]], int] = toy_target) -> None:
        super().__init__(target, info)
        self.opened: list[tuple[str, tuple[int, ...]]] = []
        self.found: dict[str, list[int]] = {}
        self.refuse: Exception | None = None

    async def open(self, session, prompt, sampling, salt) -> None:
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        self.opened.append((session, tuple(prompt)))
        await super().open(session, prompt, sampling, salt)

    def _judge(self, work: Work) -> Outcome:
        outcome = super()._judge(work)
        self.found.setdefault(work.session, []).extend(outcome.tokens)
        return outcome


class Device:
    """Drafts by a script, keeps its own log, and goes on over one stream after another.

    Attributes:
        settled: Tokens that verdicts have settled.
        finished: The frame that ended it.
    """

    def __init__(self, orchestrator: Orchestrator, message: pb.Open, draft=toy_draft, name: str = "phone") -> None:
        self._orchestrator = orchestrator
        self._message = message
        self._draft = draft
        self._name = name
        self._path: list[int] = []
        self._unsent_from = 0
        self._epoch = 0
        self._block = 0
        self._first_of_epoch = True
        self._window = 0
        self._max_block = 1
        self._frames = None
        self._reading: asyncio.Task | None = None
        self.token = b""
        self.handle: SessionHandle | None = None
        self.settled: list[int] = []
        self.finished: pb.Finished | None = None

    async def connect(self) -> pb.Opened:
        """Open a stream; after the first one it resumes, and sends again what is not settled."""
        again = bool(self.token)
        message = resuming(self._message, self.token, self.settled) if again else self._message
        self.handle = await self._orchestrator.open(message, "acme", self._name)
        self._frames = self.handle.frames()
        opened = (await anext(self._frames)).opened
        assert opened.resume_token not in (b"", self.token)
        self.token = opened.resume_token
        self._window, self._max_block = opened.window, opened.max_block
        if again:
            assert opened.settled >= len(self.settled)
            self._epoch, self._block = opened.epoch + 1, opened.last_block
            self._first_of_epoch = True
            self._unsent_from = 0
            self._send()
        return opened

    async def cut(self) -> None:
        """Lose the stream."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            self._reading = None
        await self._frames.aclose()
        self.handle.close()
        self.handle = None

    def draft(self, count: int) -> None:
        """Draft as many tokens as the window takes of so many, and send them."""
        for _ in range(min(count, self._window - len(self._path))):
            text = (*self._message.prompt, *self.settled, *self._path)
            self._path.append(self._draft(text)[0])
        self._send()

    async def read(self) -> bool:
        """Take one frame, if there is one now; whether there was. Raises what ended the stream."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(anext(self._frames))
        await turns()
        if not self._reading.done():
            return False
        frame, self._reading = self._reading.result(), None
        match frame.WhichOneof("frame"):
            case "verdict":
                self._take(frame.verdict)
            case "finished":
                self.finished = frame.finished
            case "go_away":
                self.token = frame.go_away.resume_token
        return True

    def _send(self) -> None:
        while self._unsent_from < len(self._path):
            fields = self._fields(self._path[self._unsent_from : self._unsent_from + self._max_block])
            self._block += 1
            position = len(self.settled) + self._unsent_from
            draft = pb.Draft(epoch=self._epoch, position=position, block=self._block, **fields)
            if self._unsent_from == 0 and not self._first_of_epoch:
                draft.parent = 0
            self._first_of_epoch = False
            self._unsent_from += len(draft.tokens)
            self.handle.receive(pb.ClientFrame(draft=draft, settled=len(self.settled)))

    def _take(self, verdict: pb.Verdict) -> None:
        assert verdict.position == len(self.settled), "a verdict was lost, or came twice"
        self._window = verdict.window
        for token in verdict.tokens:
            self.settled.append(token)
            if self._path and self._path[0] == token:
                del self._path[0]
                self._unsent_from -= 1
            elif self._path:
                self._path.clear()
                self._begin_epoch()
        self.handle.receive(pb.ClientFrame(settled=len(self.settled)))

    def _fields(self, part: list) -> dict[str, object]:
        """Fields of a block that are not the same for all."""
        return {"tokens": part}

    def _begin_epoch(self) -> None:
        self._unsent_from = 0
        self._epoch += 1
        self._first_of_epoch = True
