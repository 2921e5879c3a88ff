"""The gate: no frame leaves without an entry, none that the guard or the ledger objects to, and all in their sizes."""

import asyncio
import io

import pytest
from devices import turns
from fake_time import FakeTime

from edgedraft.egress import Gate
from edgedraft.errors import Cancelled, LeakError, LedgerError, PrivacyError, VerifierUnavailable
from edgedraft.privacy.guard import Guard
from edgedraft.privacy.ledger import Ledger
from edgedraft.privacy.sealed_file import KEY_BYTES
from edgedraft.privacy.shaping import Shaping
from edgedraft.report import Traffic
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb

OPEN = pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED, prompt=[104, 105]))
STEADY = Shaping(pace="steady", beat_seconds=1.0, span_seconds=10.0)
DESCRIPTION = pb.DescribeResponse(protocol=PROTOCOL_VERSION, version="1").SerializeToString()


def draft(text: str, position: int = 0) -> pb.ClientFrame:
    """A token a letter."""
    return pb.ClientFrame(draft=pb.Draft(position=position, block=1, tokens=text.encode()))


class Verifier:
    """Keeps what it gets and says what a test tells it to say."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.said: list[bytes] = []
        self.gone = False
        self._peer = None
        self._end = asyncio.Event()

    async def serve(self, peer) -> None:
        self._peer = peer
        reading = asyncio.create_task(self._read(peer))
        try:
            await self._end.wait()
        finally:
            reading.cancel()
            self.gone = True

    async def _read(self, peer) -> None:
        while (data := await peer.receive()) is not None:
            self.got.append(data)

    def say(self, frame: pb.ServerFrame) -> None:
        self.said.append(frame.SerializeToString())
        self._peer.send(self.said[-1])

    def end(self) -> None:
        self._end.set()


class Way:
    """A gate to such a verifier."""

    def __init__(self, *, shaping=None, ledger=None, mode="sealed", guard=None) -> None:
        self.time = FakeTime()
        self.verifier = Verifier()
        self.transport = MemoryTransport(self.verifier.serve, DESCRIPTION)
        self.ledger = ledger or Ledger(lambda token: bytes([token]))
        self.gate = Gate(self.transport, self.ledger, shaping, beat=self.time.beat, clock=self.time.clock)
        self.traffic = Traffic()
        self.page = self.ledger.page(mode)
        self.guard = guard or (None if mode == "open" else Guard([], [], "", lambda token: bytes([token])))

    async def open(self):
        return await self.gate.open_stream(self.traffic, self.page, self.guard)

    def check(self) -> None:
        """What the ledger says is what the transport had, frame by frame."""
        assert [entry.frame for entry in self.page if entry.direction == "up"] == self.verifier.got
        down = [entry.frame for entry in self.page if entry.direction == "down"]
        assert down == self.verifier.said[: len(down)]
        assert (self.traffic.frames_up, self.traffic.frames_down) == (len(self.verifier.got), len(down))
        assert self.traffic.bytes_up == sum(map(len, self.verifier.got))


@pytest.mark.parametrize("shaping", [None, Shaping(), Shaping(sizes=()), Shaping(sizes=(100, 120))])
@pytest.mark.parametrize("mode", ["open", "sealed"])
async def test_the_ledger_has_every_frame_as_the_transport_had_it(shaping, mode):
    way = Way(shaping=shaping, mode=mode)
    stream = await way.open()
    opening = pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED if mode == "sealed" else pb.MODE_OPEN, prompt=[1] * 99))
    for frame in (opening, draft("hi"), pb.ClientFrame(settled=3), draft("x" * 300), pb.ClientFrame(close=pb.Close())):
        await stream.send(frame, [(7, 65)])
    await turns()
    for frame in (
        pb.ServerFrame(opened=pb.Opened()),
        pb.ServerFrame(padding=bytes(9)),
        pb.ServerFrame(finished=pb.Finished()),
    ):
        way.verifier.say(frame)
    assert [(await stream.receive()).WhichOneof("frame") for _ in range(2)] == ["opened", "finished"]
    way.check()
    assert [entry.held[0].text for entry in way.page if entry.direction == "up"] == ["A"] * 5
    assert way.traffic.empty_frames_down == 1
    await stream.close()
    await way.gate.close()


async def test_describe_is_in_the_ledger_too():
    way = Way()
    answer = await way.gate.describe()
    up, down = way.ledger
    assert (up.kind, up.direction, up.generation) == ("describe", "up", 0)
    assert (down.kind, down.message) == ("describe", answer)
    await way.gate.close()


async def test_frames_have_the_usual_sizes_where_the_mode_withholds_something():
    way = Way()
    stream = await way.open()
    for frame in (OPEN, draft("hi"), draft("x" * 90), draft("x" * 5000)):
        await stream.send(pb.ClientFrame.FromString(frame.SerializeToString()))
    await turns()
    assert [len(data) for data in way.verifier.got] == [4096, 64, 256, 8192]
    assert pb.ClientFrame.FromString(way.verifier.got[0]).open.shaping == pb.Shaping(sizes=(64, 256, 1024, 4096))
    assert way.traffic.padding_bytes_up > 4096
    await stream.close()
    await way.gate.close()


# ---------------------------------------------------------------- what must not leave


async def test_a_frame_may_begin_and_end_within_a_character():
    way = Way(guard=Guard(["at"], [], "hi", lambda token: bytes([token])))
    stream = await way.open()
    await stream.send(pb.ClientFrame(draft=pb.Draft(position=0, block=1, tokens=b"\xb8at yo\xc4")))
    with pytest.raises(LeakError):
        await stream.send(pb.ClientFrame(draft=pb.Draft(position=9, block=2, tokens=b"\xb8 at yo")))


def guard() -> Guard:
    return Guard(["Ada Lovelace"], ["one two three four five six"], "hi", lambda token: bytes([token]))


@pytest.mark.parametrize("shaping", [None, STEADY])
@pytest.mark.parametrize(
    "frame",
    [
        draft("it is Ada Lovelace"),
        draft("LOVELACE"),
        draft(" one two three four five "),
        pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED, prompt=b"I am Ada Lovelace")),
        pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED, prompt=[104], model="Lovelace")),
        pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED, prompt=[104], resume_tokens=[65])),
    ],
)
async def test_a_frame_that_the_guard_would_not_let_through_does_not_leave(frame, shaping):
    way = Way(guard=guard(), shaping=shaping)
    stream = await way.open()
    if not frame.HasField("open"):
        await stream.send(pb.ClientFrame.FromString(OPEN.SerializeToString()))
    sending = asyncio.create_task(stream.send(pb.ClientFrame.FromString(frame.SerializeToString())))
    await way.time.advance(1.0)
    assert isinstance(sending.exception(), LeakError)
    assert "Lovelace" not in str(sending.exception())
    before = len(way.verifier.got)
    assert before == (0 if frame.HasField("open") else 1)
    way.check()
    if not frame.HasField("open"):
        sending = asyncio.create_task(stream.send(draft("hello")))
        await way.time.advance(1.0)
        assert sending.exception() is None
    way.verifier.end()
    await stream.close()
    await way.time.advance(60.0)
    await way.gate.close()


async def test_a_resumed_session_may_say_again_what_was_on_the_wire():
    way = Way(guard=guard())
    stream = await way.open()
    await stream.send(pb.ClientFrame.FromString(OPEN.SerializeToString()))
    await stream.send(draft("AB"))
    await turns()
    way.verifier.say(pb.ServerFrame(verdict=pb.Verdict(position=1, tokens=b"XY")))
    await stream.receive()
    await stream.close()
    again = await way.open()
    await again.send(pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED, prompt=[104], resume_tokens=b"AXY")))
    with pytest.raises(LeakError):
        await again.send(pb.ClientFrame(open=pb.Open(mode=pb.MODE_SEALED, prompt=[104], resume_tokens=b"AZY")))
    await again.close()
    await way.gate.close()


async def test_a_frame_of_another_mode_does_not_leave():
    way = Way(mode="sealed")
    stream = await way.open()
    with pytest.raises(PrivacyError, match="another mode than sealed"):
        await stream.send(pb.ClientFrame(open=pb.Open(mode=pb.MODE_OPEN, prompt=[104])))
    await turns()
    assert way.verifier.got == []
    await stream.close()
    await way.gate.close()


@pytest.mark.parametrize("mode", ["sealed", "cloaked"])
async def test_there_is_no_stream_without_a_guard_where_something_is_withheld(mode):
    way = Way(mode=mode)
    with pytest.raises(PrivacyError, match="has no guard"):
        await way.gate.open_stream(way.traffic, way.page)
    await way.gate.close()


class Full(io.BytesIO):
    """A disk that takes so many writes."""

    room = 2

    def write(self, data) -> int:
        self.room -= 1
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("shaping", [None, STEADY])
async def test_nothing_leaves_where_the_ledger_cannot_be_written(monkeypatch, tmp_path, shaping):
    monkeypatch.setattr("edgedraft.privacy.sealed_file.os.fdopen", lambda *_: Full())
    way = Way(ledger=Ledger(file=tmp_path / "ledger", key=bytes(KEY_BYTES)), shaping=shaping)
    stream = await way.open()
    await stream.send(pb.ClientFrame.FromString(OPEN.SerializeToString()))
    sending = asyncio.create_task(stream.send(draft("hi")))
    await way.time.advance(3.0)
    assert isinstance(sending.exception(), LedgerError)
    assert len(way.verifier.got) == 1
    await stream.close()
    await way.gate.close()


# ---------------------------------------------------------------- a steady pace


async def paced(guard=None):
    way = Way(shaping=STEADY, guard=guard)
    stream = await way.open()
    await stream.send(pb.ClientFrame.FromString(OPEN.SerializeToString()))
    await turns()
    return way, stream


async def test_a_paced_stream_sends_one_size_at_each_beat():
    way, stream = await paced()
    sending = [asyncio.create_task(stream.send(frame)) for frame in (draft("hi"), pb.ClientFrame(settled=1))]
    await way.time.advance(5.0)
    assert all(task.done() for task in sending)
    assert [len(data) for data in way.verifier.got] == [4096, 256, 256, 256, 256, 256]
    kinds = [entry.kind for entry in way.page]
    assert kinds == ["open", "draft", "acknowledgement", "empty", "empty", "empty"]
    assert (way.traffic.empty_frames_up, way.traffic.mean_delay) == (3, 1.0)
    way.check()
    way.verifier.end()
    await stream.close()
    await way.time.advance(1.0)
    await way.gate.close()


async def test_the_app_does_not_wait_for_the_end_of_the_span_but_closing_the_gate_does():
    way, stream = await paced()
    way.verifier.say(pb.ServerFrame(finished=pb.Finished()))
    assert (await stream.receive()).HasField("finished")
    assert await stream.receive() is None
    await stream.close()
    await stream.close()
    closing = asyncio.create_task(way.gate.close())
    await way.time.advance(9.0)
    assert not closing.done()
    assert not way.verifier.gone
    way.verifier.end()
    await turns()
    assert closing.done()
    assert len(way.verifier.got) == 10
    assert not any(pb.ClientFrame.FromString(data).HasField("close") for data in way.verifier.got)
    way.check()


async def test_a_generation_that_breaks_off_says_so_and_beats_on():
    way, stream = await paced()
    await stream.close()
    await way.time.advance(2.0)
    assert pb.ClientFrame.FromString(way.verifier.got[1]).close.reason == pb.Close.REASON_CANCELLED
    assert len(way.verifier.got) == 3
    way.verifier.end()
    await way.gate.close()


async def test_a_verifier_that_never_ends_is_left_behind():
    way, stream = await paced()
    await stream.close()
    closing = asyncio.create_task(way.gate.close())
    await way.time.advance(100.0)
    assert closing.done()
    assert way.verifier.gone
    assert len(way.verifier.got) < 60


async def test_a_paced_stream_that_breaks_is_closed_at_once():
    async def lost(peer):
        await peer.receive()
        raise VerifierUnavailable("lost")

    time = FakeTime()
    gate = Gate(MemoryTransport(lost), None, STEADY, beat=time.beat, clock=time.clock)
    stream = await gate.open_stream(Traffic(), gate.ledger.page("sealed"), guard())
    await stream.send(pb.ClientFrame.FromString(OPEN.SerializeToString()))
    with pytest.raises(VerifierUnavailable):
        await stream.receive()
    await stream.close()
    with pytest.raises(Cancelled):
        await stream.send(draft("hi"))
    await gate.close()
