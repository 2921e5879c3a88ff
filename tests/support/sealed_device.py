"""A device that has the last word, as simple as can be: it decides some positions, and takes the target's word else."""

from __future__ import annotations

import zlib

from devices import Device
from toy import toy_target

from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb

STOPS = (2, 0)
Text = tuple[int, ...]


def toy_decision(text: Text) -> int | None:
    """What the device decides behind a text; None where the target is to decide. Now and then it ends the text."""
    value = zlib.crc32(repr(("private", *text[-4:])).encode())
    if value % 5 > 1:
        return None
    return 2 if value % 97 == 0 else 70 + value % 20


def sealed_text(prompt: list[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    """What must come out: at each position the device's decision, or else the target's choice."""
    out: list[int] = []
    while len(out) < max_tokens and not (out and out[-1] in STOPS and not ignore_eos):
        text = (*prompt, *out)
        decided = toy_decision(text)
        out.append(toy_target(text) if decided is None else decided)
    return out


class SealedDevice(Device):
    """Goes on from stream to stream as any device, with given tokens on its path and vetoes of verdicts.

    Attributes:
        vetoes: How many verdicts it has overruled.
    """

    _path: list[tuple[int, bool]]

    def __init__(self, orchestrator, message: pb.Open, name: str = "phone") -> None:
        sealed = pb.Open()
        sealed.CopyFrom(message)
        sealed.mode = pb.MODE_SEALED
        super().__init__(orchestrator, sealed, name=name)
        self._valid_from = 0
        self.vetoes = 0

    async def connect(self) -> pb.Opened:
        """What an old stream still had to say is lost with it."""
        self._valid_from = 0
        return await super().connect()

    def draft(self, count: int) -> None:
        """Draft as many tokens as the window takes of so many, decide some of them, and send all."""
        for _ in range(min(count, self._window - len(self._path))):
            if self._path and self._path[-1][0] in STOPS:
                break
            self._path.append(self._next())
        self._send()

    def _next(self) -> tuple[int, bool]:
        text = (*self._message.prompt, *self.settled, *(token for token, _ in self._path))
        decided = toy_decision(text)
        return (self._draft(text)[0], False) if decided is None else (decided, True)

    def _fields(self, part: list) -> dict[str, object]:
        return {"tokens": [token for token, _ in part], "given": given_bits([given for _, given in part])}

    def _take(self, verdict: pb.Verdict) -> None:
        self._window = verdict.window
        if verdict.epoch < self._valid_from:
            return
        assert verdict.position <= len(self.settled), "a verdict was lost"
        known = self.settled[verdict.position :]
        assert list(verdict.tokens[: len(known)]) == known[: len(verdict.tokens)], "what is final was changed"
        for token in verdict.tokens[len(known) :]:
            if not self._path:
                node, given = self._next()
                if given and node != token:
                    self._path = [(node, True)]
                    self._veto()
                    break
            elif self._path[0][0] == token:
                del self._path[0]
                self._unsent_from -= 1
            elif self._path[0][1]:
                self._veto()
                break
            else:
                self._path.clear()
                self._begin_epoch()
            self.settled.append(token)
        self._send()
        self.handle.receive(pb.ClientFrame(settled=len(self.settled)))

    def _veto(self) -> None:
        self.vetoes += 1
        self._begin_epoch()
        self._valid_from = self._epoch
