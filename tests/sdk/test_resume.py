"""A generation whose verifier is lost and found again: nothing is lost, nothing comes twice, and it ends in time."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_verifier import (
    FINISHED,
    WAYS_TO_GO,
    WAYS_TO_REFUSE,
    Fault,
    FaultyVerifier,
    client_of,
    description,
    opened,
    verdict,
)
from tenacity import wait_none
from toy import toy_target

from edgedraft import resume
from edgedraft.client import Client
from edgedraft.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    RequestRejected,
    Unauthenticated,
    VerifierError,
    VerifierUnavailable,
)
from edgedraft.events import Drafted, Event, Finished, FinishReason, Interrupted, Resumed, Revised, Verified
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import verify_pb2 as pb


@pytest.fixture(autouse=True, scope="module")
def no_backoff():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "BACKOFF", wait_none())
        yield


def client_for(codec, serve, **settings) -> Client:
    return client_of(codec, MemoryTransport(serve, description(codec)), **settings)


def greedy(codec, max_tokens: int = 40, ignore_eos: bool = True) -> list[int]:
    prompt = codec.encode_chat([{"role": "user", "content": "sky"}])
    out: list[int] = []
    while len(out) < max_tokens and (ignore_eos or out[-1:] != [2]):
        out.append(toy_target((*prompt, *out)))
    return out


async def collect(client: Client, max_tokens: int = 40, ignore_eos: bool = True) -> list[Event]:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return [event async for event in client.generate("sky", sampling)]


def replay(events: list[Event]) -> list[int]:
    """The settled tokens that an app ends up with; every event must fit what came before."""
    settled: list[int] = []
    path: list[int] = []
    away = False
    for event in events:
        match event:
            case Drafted(position=position, token=token):
                assert position == len(settled) + len(path)
                path.append(token)
            case Revised(position=position, dropped=dropped):
                assert len(settled) <= position
                assert position + dropped == len(settled) + len(path)
                del path[position - len(settled) :]
            case Verified(position=position, tokens=tokens):
                assert not away
                assert position == len(settled)
                assert path[: len(tokens)] == list(tokens[: len(path)])
                settled += tokens
                del path[: len(tokens)]
            case Interrupted(reason=reason):
                assert not away
                assert reason
                away = True
            case Resumed():
                assert away
                away = False
    assert isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, Verified)) == events[-1].text
    return settled


# ---------------------------------------------------------------- nothing lost, nothing twice


going = st.builds(
    Fault, how=st.sampled_from(WAYS_TO_GO), after=st.integers(0, 5), unsent=st.booleans(), forgets=st.booleans()
)
refusing = st.builds(Fault, how=st.sampled_from(WAYS_TO_REFUSE), forgets=st.booleans())


@settings(max_examples=200, deadline=None)
@given(
    first=going,
    others=st.lists(going | refusing, max_size=8),
    windows=st.lists(st.integers(1, FaultyVerifier.WINDOW), min_size=1, max_size=4),
    blocks=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    max_tokens=st.integers(1, 40),
    ignore_eos=st.booleans(),
)
async def test_the_output_is_the_targets_wherever_the_streams_break(
    codec, first, others, windows, blocks, max_tokens, ignore_eos
):
    verifier = FaultyVerifier(
        [first, *others],
        window=lambda stream: windows[stream % len(windows)],
        max_block=lambda stream: blocks[stream % len(blocks)],
    )
    async with client_for(codec, verifier.serve) as client:
        events = await collect(client, max_tokens, ignore_eos)
    expected = greedy(codec, max_tokens, ignore_eos)
    assert replay(events) == expected
    assert events[-1].text == codec.decode(expected)
    report = events[-1].report
    assert report.tokens == len(expected)
    assert report.resumes == sum(isinstance(event, Resumed) for event in events)
    assert report.resumes <= len(verifier.opens) - 1
    for opening in verifier.opens:
        assert list(opening.resume_tokens) == expected[: opening.resume_position]
        assert opening.prompt == verifier.opens[0].prompt
        assert opening.limits == verifier.opens[0].limits


async def test_a_verifier_that_goes_at_every_frame_is_followed_token_by_token(codec):
    faults = [Fault(WAYS_TO_GO[n % 3], after=1, forgets=n % 2 == 1) for n in range(100)]
    verifier = FaultyVerifier(faults)
    async with client_for(codec, verifier.serve) as client:
        events = await collect(client)
    assert replay(events) == greedy(codec)
    assert events[-1].report.resumes == len(verifier.opens) - 1 > 3


async def test_drafting_goes_on_while_the_verifier_is_away(codec):
    back = asyncio.Event()
    verifier = FaultyVerifier([Fault()], window=lambda stream: FaultyVerifier.WINDOW)

    async def serve(peer) -> None:
        if verifier.opens:
            await back.wait()
        await verifier.serve(peer)

    events: list[Event] = []
    async with client_for(codec, serve) as client:
        async for event in client.generate("sky", SamplingParams(max_tokens=40, ignore_eos=True)):
            events.append(event)
            if len(events) == 1 + FaultyVerifier.WINDOW:
                back.set()
    assert {type(event) for event in events[: 1 + FaultyVerifier.WINDOW]} == {Drafted, Interrupted}
    assert replay(events) == greedy(codec)
    assert events[-1].report.resumes == 1


async def test_the_window_may_shrink_below_what_is_in_flight(codec):
    sizes = iter([8, 1, 2, 1, 1, 3])
    verifier = FaultyVerifier([Fault(after=4)] * 3, window=lambda stream: next(sizes, 1))
    async with client_for(codec, verifier.serve) as client:
        assert replay(await collect(client)) == greedy(codec)


async def test_the_limits_of_a_resume_hold_from_then_on(codec):
    verifier = FaultyVerifier([Fault(after=1)], max_block=lambda stream: 4 if stream == 1 else 2)

    async def serve(peer) -> None:
        # So late that there is enough to send for as long a block as may be.
        while len(generation._drafts) < FaultyVerifier.WINDOW:  # noqa: ASYNC110  turns of the loop are what it waits for
            await asyncio.sleep(0)
        await verifier.serve(peer)

    async with client_for(codec, serve, block_size=4) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=40, ignore_eos=True))
        await generation
    sent = [len(draft.tokens) for draft in verifier.drafts]
    assert sent[:2] == [4, 2]
    assert max(sent[1:]) == 2


# ---------------------------------------------------------------- it ends in time


def always(error: Exception):
    """A verifier that settles nothing: it opens a session and goes away again, each time."""
    opens = []

    async def serve(peer) -> None:
        opening = pb.ClientFrame.FromString(await peer.receive()).open
        opens.append(opening)
        peer.send(opened(resume_token=b"token").SerializeToString())
        raise error

    return serve, opens


async def failure(codec, serve, kind, words: str, **settings) -> list[Event]:
    """What comes before the generation fails."""
    events: list[Event] = []

    async def consume() -> None:
        async for event in client.generate("sky", SamplingParams(max_tokens=10)):
            events.append(event)

    async with client_for(codec, serve, **settings) as client:
        with pytest.raises(kind, match=words):
            await consume()
    return [event for event in events if not isinstance(event, Drafted)]


async def test_a_verifier_that_comes_back_only_to_go_again_is_given_up(codec):
    serve, opens = always(VerifierUnavailable("gone again"))
    events = await failure(codec, serve, VerifierUnavailable, "gone again", resume_seconds=0.05)
    assert len(opens) > 1
    assert events[:2] == [Interrupted("gone again"), Resumed()]
    assert events == (events[:2] * len(opens))[: len(events)]


async def test_a_verifier_that_does_not_answer_is_given_up(codec):
    async def serve(peer) -> None:
        opening = pb.ClientFrame.FromString(await peer.receive()).open
        if not opening.resume_token:
            peer.send(opened(resume_token=b"token").SerializeToString())
            return
        await peer.receive()

    words = r"did not come back within 0\.05 s: the verifier ended the stream"
    assert len(await failure(codec, serve, VerifierUnavailable, words, resume_seconds=0.05)) == 1


@pytest.mark.parametrize("error", [Overloaded("full", 31.0), VerifierUnavailable("draining", 31.0)])
async def test_a_wait_that_takes_too_long_is_not_begun(codec, error):
    serve, opens = always(error)
    assert await failure(codec, serve, type(error), str(error)) == []
    assert len(opens) == 1


async def test_a_verifier_says_when_to_come_back_as_it_goes(codec):
    async def serve(peer) -> None:
        await peer.receive()
        peer.send(opened(resume_token=b"token").SerializeToString())
        peer.send(pb.ServerFrame(go_away=pb.GoAway(retry_after_ms=31_000)).SerializeToString())

    async with client_for(codec, serve) as client:
        with pytest.raises(VerifierUnavailable, match="shutting down") as caught:
            await client.generate("sky")
    assert caught.value.retry_after == 31


class Clock:
    """Time that also passes when it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = time.monotonic
        patch.setattr(time, "monotonic", lambda: real() + self.ahead)


@pytest.mark.parametrize(("progress", "streams"), [(0, 3), (1, 9)])
async def test_an_outage_lasts_until_something_is_settled(monkeypatch, progress, streams):
    clock = Clock(monkeypatch)
    limits: list[float | None] = []

    async def speak(limit: float | None) -> str:
        limits.append(limit)
        clock.ahead += 20
        if len(limits) == 9:
            return "done"
        raise VerifierUnavailable("gone")

    resuming = resume.Resuming(
        speak, seconds=30, curable=lambda error: True, progress=lambda: progress * len(limits), on_outage=str
    )
    if progress:
        assert await resuming.run() == "done"
    else:
        with pytest.raises(VerifierUnavailable, match="gone"):
            await resuming.run()
    assert len(limits) == streams
    assert limits[:3] == [None, pytest.approx(30, abs=5), pytest.approx(30 if progress else 10, abs=5)]


async def test_a_stream_is_closed_before_the_next_is_opened(codec):
    history: list[str] = []

    async def serve(peer) -> None:
        opening = pb.ClientFrame.FromString(await peer.receive()).open
        history.append("opened")
        try:
            held = len(opening.resume_tokens)
            peer.send(opened(resume_token=b"token", settled=held).SerializeToString())
            peer.send(verdict(held, 70).SerializeToString())
            peer.send((pb.ServerFrame(go_away=pb.GoAway()) if held < 2 else FINISHED).SerializeToString())
            while await peer.receive() is not None:
                pass
        finally:
            history.append("closed")

    async with client_for(codec, serve) as client:
        await client.generate("sky")
    assert history == ["opened", "closed"] * 3


async def test_an_app_may_do_without(codec):
    serve, opens = always(VerifierUnavailable("gone"))
    assert await failure(codec, serve, VerifierUnavailable, "gone", resume_seconds=0) == []
    assert len(opens) == 1


@pytest.mark.parametrize("error", [Overloaded("full", 0.0), VerifierUnavailable("gone")])
async def test_a_session_that_never_was_is_not_resumed(codec, error):
    opens = 0

    async def serve(peer) -> None:
        nonlocal opens
        opens += 1
        await peer.receive()
        raise error

    assert await failure(codec, serve, type(error), str(error)) == []
    assert opens == 1


@pytest.mark.parametrize("error", [RequestRejected("no"), Unauthenticated("who?"), ProtocolError("what?")])
async def test_an_error_that_time_does_not_cure_ends_it_at_once(codec, error):
    opens = 0

    async def serve(peer) -> None:
        nonlocal opens
        opens += 1
        await peer.receive()
        if opens == 2:
            raise error
        peer.send(opened(resume_token=b"token").SerializeToString())

    events = await failure(codec, serve, type(error), str(error).rstrip("?"))
    assert [type(event) for event in events] == [Interrupted]
    assert opens == 2


def second_stream(*frames: pb.ServerFrame):
    """Settles two tokens and goes away; a second stream gets these frames."""
    streams = 0

    async def serve(peer) -> None:
        nonlocal streams
        streams += 1
        await peer.receive()
        first = opened(resume_token=b"token"), verdict(0, 70, 71)
        for frame in first if streams == 1 else frames:
            peer.send(frame.SerializeToString())

    return serve


HOSTILE = {
    "took the session up at position 1, 2 are settled": [opened(settled=1)],
    "position 0, 2 are settled": [opened()],
    "seen epoch 4294967295": [opened(settled=2, epoch=2**32 - 1)],
    "seen block 4294967295": [opened(settled=2, last_block=2**32 - 1)],
    "blocks of 0 tokens": [opened(settled=2, max_block=0)],
    "a window of 0 tokens": [opened(settled=2, window=0)],
    "opened the session twice": [opened(settled=2), opened(settled=2)],
    "sent 'verdict' before it had opened": [verdict(2, 72)],
    "sent 'finished' before it had opened": [FINISHED],
    "contradicts what is settled": [opened(settled=2), verdict(1, 72)],
    "but only 2 positions": [opened(settled=3), verdict(3, 72)],
}


@pytest.mark.parametrize("words", HOSTILE)
async def test_a_verifier_that_resumes_wrongly_is_found_out(codec, words):
    await failure(codec, second_stream(*HOSTILE[words], FINISHED), ProtocolError, words)


async def test_what_was_settled_meanwhile_and_the_end_come_with_the_resume(codec):
    serve = second_stream(opened(settled=4), verdict(2, 72, 73), FINISHED)
    async with client_for(codec, serve) as client:
        events = await collect(client)
    assert replay(events) == [70, 71, 72, 73]


@pytest.mark.parametrize("way", ["cancel", "task", "client"])
async def test_an_outage_ends_with_the_generation(codec, way):
    serve, opens = always(VerifierUnavailable("gone", 20.0))
    client = client_for(codec, serve)
    generation = client.generate("sky", SamplingParams(max_tokens=10))

    async def consume() -> None:
        async for event in generation:
            if isinstance(event, Interrupted):
                lost.set()

    lost = asyncio.Event()
    consuming = asyncio.ensure_future(consume())
    await lost.wait()
    if way == "cancel":
        generation.cancel()
        await consuming
    elif way == "task":
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        await generation.start()
    else:
        await client.close()
        with pytest.raises(VerifierError, match="closed"):
            await consuming
    assert generation.finish_reason is (None if way == "client" else FinishReason.CANCELLED)
    assert len(opens) == 1
    await client.close()


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_resume_seconds_that_make_no_sense_are_refused(codec, seconds):
    with pytest.raises(InvalidInput, match="resume_seconds"):
        client_for(codec, None, resume_seconds=seconds)


# ---------------------------------------------------------------- classes of service


async def test_background_work_says_so(codec):
    verifier = FaultyVerifier()
    async with client_for(codec, verifier.serve) as client:
        await client.generate("sky", SamplingParams(max_tokens=1), background=True)
    verifier_of_others = FaultyVerifier()
    async with client_for(codec, verifier_of_others.serve) as client:
        await client.generate("sky", SamplingParams(max_tokens=1))
    assert [each.opens[0].service_class for each in (verifier, verifier_of_others)] == [
        pb.SERVICE_CLASS_BACKGROUND,
        pb.SERVICE_CLASS_INTERACTIVE,
    ]
