"""Sizes and beats: every frame gets one of the sizes, beats keep their distance, and wrong settings are named."""

import asyncio

import pytest
from devices import turns
from fake_time import FakeTime
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import Cancelled, InvalidInput, LeakError, VerifierUnavailable
from edgedraft.privacy.pace import GRACE_BEATS, Pacer
from edgedraft.privacy.shaping import Shaping
from edgedraft.report import Traffic
from edgedraft.wire import MAX_FRAME_BYTES, check_shaping, decode_client_frame, pad, span_end
from edgedraft.wire import verify_pb2 as pb

SIZES = (64, 256, 1024, 4096)


def frame_of(size: int) -> pb.ClientFrame:
    """A frame of about that size."""
    return pb.ClientFrame(open=pb.Open(resume_token=bytes(size)), settled=7)


# ---------------------------------------------------------------- sizes


@given(st.integers(0, 20_000), st.lists(st.integers(16, 16_384), min_size=1, max_size=8, unique=True).map(sorted))
def test_a_frame_gets_a_size_of_the_list_or_a_multiple_of_the_last_and_means_the_same(size, sizes):
    frame = frame_of(size)
    bare = frame.SerializeToString()
    pad(frame, sizes)
    padded = frame.SerializeToString()
    assert len(padded) in sizes or len(padded) % sizes[-1] == 0
    # A gap of a byte or two cannot be filled, nor one where the length's own length changes: then it is the next size.
    room = [each for each in sizes if each >= len(bare)] or [-(-len(bare) // sizes[-1]) * sizes[-1]]
    assert len(padded) == room[0] or (len(padded) > room[0] and room[0] - len(bare) in (1, 2, 130, 16_387))
    frame.ClearField("padding")
    assert frame.SerializeToString() == bare
    pad(frame, sizes)
    pad(frame, sizes)
    assert frame.SerializeToString() == padded


@pytest.mark.parametrize("size", range(300))
def test_every_small_frame_gets_one_of_the_usual_sizes(size):
    frame = frame_of(size)
    pad(frame, SIZES)
    assert frame.ByteSize() in SIZES


def test_a_frame_near_the_limit_of_the_wire_stays_within_it():
    for size in range(MAX_FRAME_BYTES - 4200, MAX_FRAME_BYTES - 10, 97):
        frame = frame_of(size)
        pad(frame, SIZES)
        decode_client_frame(frame.SerializeToString())


def test_no_sizes_is_no_padding():
    frame = pb.ClientFrame(settled=7, padding=bytes(50))
    pad(frame, ())
    assert frame == pb.ClientFrame(settled=7)


@pytest.mark.parametrize(
    ("field", "shaping"),
    [
        ("open.shaping.sizes", pb.Shaping(sizes=[64, 64])),
        ("open.shaping.sizes", pb.Shaping(sizes=[256, 64])),
        ("open.shaping.sizes", pb.Shaping(sizes=[15])),
        ("open.shaping.sizes", pb.Shaping(sizes=[16_385])),
        ("open.shaping.sizes", pb.Shaping(sizes=range(16, 25))),
        ("open.shaping.sizes", pb.Shaping(beat_ms=50)),
        ("open.shaping.sizes", pb.Shaping(sizes=[4096], beat_ms=10)),
        ("open.shaping.beat_ms", pb.Shaping(sizes=[64], beat_ms=9)),
        ("open.shaping.beat_ms", pb.Shaping(sizes=[64], beat_ms=10_001)),
        ("open.shaping.span_beats", pb.Shaping(sizes=[64], beat_ms=50, span_beats=60_001)),
    ],
)
def test_what_a_verifier_will_not_do_is_named(field, shaping):
    with pytest.raises(InvalidInput) as caught:
        check_shaping(shaping)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("shaping.sizes", {"sizes": (1,)}),
        ("shaping.sizes", {"sizes": (-1,)}),
        ("shaping.sizes", {"sizes": (64.5,)}),
        ("shaping.sizes", {"sizes": (), "pace": "steady"}),
        ("shaping.pace", {"pace": "fast"}),
        ("shaping.beat_seconds", {"beat_seconds": 0.001}),
        ("shaping.beat_seconds", {"beat_seconds": float("nan")}),
        ("shaping.beat_ms", {"pace": "steady", "beat_seconds": 11.0}),
        ("shaping.span_seconds", {"span_seconds": -1.0}),
    ],
)
def test_wrong_shaping_is_named_where_the_app_asks_for_it(field, settings):
    with pytest.raises(InvalidInput) as caught:
        Shaping(**settings)
    assert caught.value.field == field


def test_modes_that_withhold_something_are_padded_by_default():
    for mode in ("sealed", "cloaked"):
        assert Shaping.of_mode(mode).wire == pb.Shaping(sizes=SIZES)
    assert Shaping.of_mode("open").wire == pb.Shaping()
    assert Shaping(pace="steady").wire == pb.Shaping(sizes=(256, 4096), beat_ms=50, span_beats=200)


# ---------------------------------------------------------------- beats


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_spans_double(beat, span):
    end = span_end(beat, span)
    assert end >= beat
    assert end == span or end // 2 < beat
    while end > span:
        assert end % 2 == 0
        end //= 2
    assert end == span
    assert span_end(beat, 0) == beat


async def test_beats_keep_their_distance_and_who_is_late_gets_the_latest():
    time = FakeTime()
    beat = time.beat(0.5)
    seen = []

    async def count(times):
        for _ in range(times):
            seen.append((await beat.next(), time.now - 1000))

    counting = asyncio.create_task(count(2))
    await time.advance(1.2)
    await counting
    assert seen == [(1, 0.5), (2, 1.0)]
    time.now = 1003.75
    counting = asyncio.create_task(count(2))
    await time.advance(1.0)
    await counting
    assert seen[2:] == [(7, 3.75), (8, 4.0)]


class Wire:
    """Takes what a pacer lets out."""

    def __init__(self, time: FakeTime, **settings) -> None:
        self.time = time
        self.sent: list[tuple[float, int]] = []
        self.refuse: Exception | None = None
        self.traffic = Traffic()
        self.pacer = Pacer(self.let_out, time.beat(1.0), settings.get("span_beats", 10), self.traffic, time.clock)

    async def let_out(self, frame, held) -> None:
        if self.refuse is not None and frame.settled:
            error, self.refuse = self.refuse, None
            raise error
        self.sent.append((self.time.now - 1000, frame.settled))


@pytest.fixture
async def wire():
    wire = Wire(FakeTime())
    yield wire
    await wire.pacer.stop()


def sending(wire, *numbers):
    return [asyncio.create_task(wire.pacer.send(pb.ClientFrame(settled=number), ())) for number in numbers]


async def test_one_frame_leaves_at_each_beat_in_order_and_empty_ones_between(wire):
    await wire.time.advance(1.5)
    tasks = sending(wire, 1, 2)
    await wire.time.advance(3.0)
    assert wire.sent == [(1, 0), (2, 1), (3, 2), (4, 0)]
    assert all(task.done() for task in tasks)
    assert wire.traffic.delay_seconds == 0.5 + 1.5


async def test_a_frame_whose_sender_is_gone_does_not_leave(wire):
    first, _ = sending(wire, 1, 2)
    await turns()
    first.cancel()
    await wire.time.advance(2.0)
    assert wire.sent == [(1, 2), (2, 0)]


async def test_a_frame_that_must_not_leave_is_refused_alone(wire):
    wire.refuse = LeakError("a secret", "draft", "hold it back")
    first, second = sending(wire, 1, 2)
    await wire.time.advance(2.0)
    assert isinstance(first.exception(), LeakError)
    assert second.exception() is None
    assert wire.sent == [(2, 2)]


async def test_a_broken_stream_ends_the_beat_for_all_who_wait(wire):
    wire.refuse = VerifierUnavailable("gone")
    tasks = sending(wire, 1, 2)
    await wire.time.advance(1.0)
    assert wire.pacer.is_over
    assert [str(task.exception()) for task in tasks] == ["gone", "gone"]
    with pytest.raises(VerifierUnavailable, match="gone"):
        await wire.pacer.send(pb.ClientFrame(settled=3), ())


async def test_who_waits_when_it_is_stopped_is_told(wire):
    (task,) = sending(wire, 1)
    await turns()
    await wire.pacer.stop()
    await turns()
    assert isinstance(task.exception(), Cancelled)


@pytest.mark.parametrize(("left_at", "span_beats", "ends_at"), [(3, 10, 10), (13, 10, 20), (25, 10, 40), (3, 0, 4)])
async def test_it_beats_on_to_the_end_of_its_span(left_at, span_beats, ends_at):
    wire = Wire(FakeTime(), span_beats=span_beats)
    await wire.time.advance(left_at)
    wire.pacer.leave()
    await wire.time.advance(100.0)
    assert wire.pacer.is_over
    # The verifier ends the stream; the device beats on a little for one that does not.
    assert len(wire.sent) == ends_at + GRACE_BEATS - 1
