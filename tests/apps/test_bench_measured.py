"""The measured transport: a block's time ends with the verdict on its first position, and void blocks have none."""

import pytest

from edgedraft.transport.base import Stream, Transport
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.measured import MeasuredTransport, Samples


class Loop(Transport, Stream):
    """Gives back what it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answers: list[bytes | None] = []
        self.closed = 0

    async def describe(self, request: bytes) -> bytes:
        return request

    async def open_stream(self) -> Stream:
        return self

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    async def receive(self) -> bytes | None:
        return self.answers.pop(0)

    async def close(self) -> None:
        self.closed += 1


class Measured:
    """A measured stream with a clock in the hand."""

    def __init__(self, stream: Stream, loop: Loop, samples: Samples) -> None:
        self.stream, self.loop, self.samples, self.now = stream, loop, samples, 0.0

    async def draft(self, at: float, position: int, *tokens: int, epoch: int = 0) -> None:
        self.now = at
        draft = pb.Draft(epoch=epoch, position=position, tokens=tokens)
        await self.stream.send(pb.ClientFrame(draft=draft).SerializeToString())

    async def verdict(self, at: float, position: int, *tokens: int) -> tuple[float, ...]:
        self.now = at
        verdict = pb.Verdict(position=position, tokens=tokens, accepted=1, block_used=True)
        self.loop.answers.append(pb.ServerFrame(verdict=verdict).SerializeToString())
        await self.stream.receive()
        return self.samples.verdicts[-1].waits


@pytest.fixture
async def measured():
    loop, samples = Loop(), Samples()
    here: list[Measured] = []
    transport = MeasuredTransport(loop, "acme", samples, lambda: here[0].now)
    here.append(Measured(await transport.open_stream(), loop, samples))
    return here[0]


async def test_a_block_is_answered_by_the_verdict_on_its_first_position(measured):
    await measured.draft(1, 0, 10, 11)
    await measured.draft(2, 2, 12, 13)
    assert await measured.verdict(5, 0, 10, 11) == (4,)
    assert await measured.verdict(7, 2, 12, 13, 14) == (5,)
    assert await measured.verdict(9, 5, 15) == ()


async def test_one_verdict_may_answer_several_blocks_and_half_a_block(measured):
    await measured.draft(1, 0, 10, 11)
    await measured.draft(2, 2, 12, 13)
    await measured.draft(3, 4, 14, 15)
    assert await measured.verdict(4, 0, 10, 11, 12) == (3, 2)
    assert measured.samples.verdicts[-1].right == 3
    assert await measured.verdict(6, 3, 13, 14, 15, 16) == (3,)


async def test_what_follows_a_wrong_token_is_void(measured):
    await measured.draft(1, 0, 10, 11)
    await measured.draft(2, 2, 12, 13)
    assert await measured.verdict(5, 0, 10, 99) == (4,)
    assert (measured.samples.verdicts[-1].right, measured.samples.verdicts[-1].wrong) == (1, 1)
    assert await measured.verdict(6, 2, 12) == ()
    assert (measured.samples.verdicts[-1].right, measured.samples.verdicts[-1].wrong) == (0, 0)


async def test_a_wrong_token_in_the_second_half_of_a_block_voids_what_follows(measured):
    await measured.draft(1, 0, 10, 11)
    await measured.draft(2, 2, 12, 13)
    assert await measured.verdict(5, 0, 10) == (4,)
    assert await measured.verdict(6, 1, 99, 12) == ()


async def test_a_new_epoch_voids_the_old_one(measured):
    await measured.draft(1, 0, 10)
    await measured.draft(2, 0, 20, epoch=1)
    assert await measured.verdict(3, 0, 20) == (1,)


async def test_a_late_block_is_compared_from_where_the_verdict_begins(measured):
    assert await measured.verdict(1, 0, 10, 11) == ()
    await measured.draft(2, 1, 11, 12)
    assert await measured.verdict(3, 2, 12, 13) == (1,)


async def test_everything_is_passed_on_and_verdicts_are_kept(measured):
    await measured.stream.send(frame := pb.ClientFrame(settled=3).SerializeToString())
    assert measured.loop.sent == [frame]
    measured.loop.answers += [pb.ServerFrame(opened=pb.Opened(window=1)).SerializeToString(), None]
    assert await measured.stream.receive() is not None
    assert await measured.stream.receive() is None
    await measured.verdict(4, 0, 1, 2)
    await measured.verdict(6, 2, 3)
    assert [sample.settled for sample in measured.samples.between(0, 9)] == [2, 1]
    assert [sample.settled for sample in measured.samples.between(4, 6, "acme")] == [2]
    await measured.draft(7, 3, 4)
    assert [measured.samples.blocks_between(*span) for span in ((0, 7), (7, 8))] == [0, 1]
    assert measured.samples.between(0, 9, "other") == []
    await measured.stream.close()
    assert measured.loop.closed == 1
