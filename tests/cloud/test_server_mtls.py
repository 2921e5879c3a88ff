"""The real server over real mTLS, with a scripted target: answers, errors, and that one bad client harms no other."""

import asyncio
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from toy import toy_greedy

from edgedraft.errors import (
    Overloaded,
    RequestRejected,
    Unauthenticated,
    VerifierUnavailable,
)
from edgedraft.events import Drafted, Finished, FinishReason, Revised, Verified
from edgedraft.identity import Identity
from edgedraft.sampling import SamplingParams
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.authority import DevelopmentAuthority

GREEDY = SamplingParams(max_tokens=40)


def expected(bench, text: str, max_tokens: int = 40) -> list[int]:
    return toy_greedy(bench.codec.encode_chat([{"role": "user", "content": text}]), max_tokens)


@pytest.mark.parametrize("bench", [0, 8], indirect=True)
@pytest.mark.parametrize("block_size", [1, 3, 8, 64])
async def test_the_answer_is_the_targets_and_events_add_up(bench, block_size):
    async with bench.client(block_size=block_size) as client:
        for text in ("Why is the sky blue?", "naïve café", "def add(a, b):"):
            generation = client.generate(text, GREEDY)
            tokens, shown, screen = [], "", []
            async for event in generation:
                match event:
                    case Drafted():
                        screen.append(event.position)
                    case Revised():
                        assert sum(position >= event.position for position in screen) >= event.dropped > 0
                        screen = [position for position in screen if position < event.position]
                    case Verified():
                        assert event.position == len(tokens)
                        tokens += event.tokens
                        shown += event.text
                    case Finished():
                        report = event.report
            assert tokens == expected(bench, text)
            assert shown == generation.text == bench.codec.decode(tokens)
            assert generation.draft_text == ""
            assert report.tokens == len(tokens)
            assert report.bytes_up > 0
            assert report.rtt_seconds is not None
            if report.acceptance_rate is not None:
                assert 0 <= report.acceptance_rate <= 1


async def test_many_sessions_at_once_share_steps_and_get_their_own_answers(bench):
    async with bench.client() as client:
        texts = ["a", "b", "c", "d"]
        answers = await asyncio.gather(*(client.generate(text, GREEDY) for text in texts))
    assert answers == [bench.codec.decode(expected(bench, text)) for text in texts]
    assert max(len({work.session for work in step}) for step in bench.engine.steps) > 1


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_length_is_exact(bench, limit):
    async with bench.client() as client:
        generation = client.generate("sky", SamplingParams(max_tokens=limit, ignore_eos=True))
        await generation
    assert generation.report.tokens == limit
    assert generation.finish_reason is FinishReason.LENGTH


async def test_the_context_ends_an_answer_exactly(bench):
    prompt = len(bench.codec.encode_chat([{"role": "user", "content": "sky"}]))
    async with bench.client() as client:
        generation = client.generate("sky", SamplingParams(max_tokens=10_000, ignore_eos=True))
        await generation
    assert generation.report.tokens == 200 - prompt
    assert generation.finish_reason is FinishReason.LENGTH


async def test_a_stop_string_ends_it_and_does_not_show(bench):
    whole = bench.codec.decode(expected(bench, "sky"))
    stop = whole[4:7]
    async with bench.client() as client:
        generation = client.generate("sky", SamplingParams(max_tokens=40, stop=(stop,)))
        assert await generation == whole[: whole.index(stop)]
        assert generation.finish_reason is FinishReason.STOP
    await _all_closed(bench)


async def test_cancel_ends_the_session_on_both_sides(bench):
    async with bench.client() as client:
        generation = client.generate("sky", SamplingParams(max_tokens=180, ignore_eos=True))
        async for event in generation:
            if isinstance(event, Verified):
                generation.cancel()
        assert generation.finish_reason is FinishReason.CANCELLED
        assert await client.generate("sky", GREEDY) == bench.codec.decode(expected(bench, "sky"))
    await _all_closed(bench)


async def test_leaving_early_closes_the_session(bench):
    async with bench.client() as client, client.generate("sky", GREEDY) as generation:
        async for _ in generation:
            break
    await _all_closed(bench)


async def _all_closed(bench) -> None:
    async with asyncio.timeout(20):
        await bench.orchestrator.idle()


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://edgedraft/tenant/acme/device/phone-1/and-more",
        "spiffe://edgedraft/tenant/acme/device/",
        "x-spiffe://edgedraft/tenant/acme/device/phone-1",
        "spiffe://other/tenant/acme/device/phone-1",
    ],
)
async def test_a_certificate_that_does_not_quite_name_a_device_is_refused(bench, certificates, tmp_path, uri):
    names = [x509.UniformResourceIdentifier(uri)]
    folder = certificates._issue(tmp_path / "odd", "odd", names, ExtendedKeyUsageOID.CLIENT_AUTH)
    key, certificate, ca = ((folder / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
    transport = bench.transport(Identity(key, certificate, ca, "acme", "phone-1"))
    with pytest.raises(Unauthenticated, match="names no device"):
        await transport.describe(b"")
    await transport.close()


@pytest.mark.parametrize("bench", [0], indirect=True)
async def test_every_draft_is_accounted_for(bench):
    """Each was right, dropped, or still open at the end; no more than a window can be open."""
    async with bench.client() as client:
        generation = client.generate("sky", SamplingParams(max_tokens=150, ignore_eos=True))
        await generation
    report = generation.report
    right = round(report.acceptance_rate * report.judged)
    assert report.rollbacks > 5
    assert 0 <= report.drafted - report.wasted - right <= 8


async def test_the_round_trip_is_the_links_whatever_the_verifier_holds_back(bench):
    """Never shorter than the delay, though verdicts come for blocks that arrived in the middle of a step."""
    async with (
        WanProxy("localhost", bench.server.port, rtt=0.05) as proxy,
        bench.client(transport=bench.transport(port=proxy.port)) as client,
    ):
        generation = client.generate("sky", SamplingParams(max_tokens=60, ignore_eos=True))
        await generation
    assert generation.report.rounds > 1
    assert generation.report.rtt_seconds >= 0.05


# ---------------------------------------------------------------- bad clients


def good_open(bench, **changes) -> pb.Open:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "tokenizer_fingerprint": bench.codec.fingerprint,
        "mode": pb.MODE_OPEN,
        "prompt": [5, 6, 7],
        "limits": pb.Limits(max_tokens=150, ignore_eos=True),
    }
    return pb.Open(**{**fields, **changes})


async def play(bench, frames, identity=None) -> None:
    """Send frames, then read until the verifier ends the stream; raises what it says."""
    transport = bench.transport(identity)
    try:
        stream = await transport.open_stream()
        for frame in frames:
            await stream.send(frame if isinstance(frame, bytes) else frame.SerializeToString())
        while await stream.receive() is not None:
            pass
    finally:
        await transport.close()


BAD_FRAMES = {
    "frame: is not an Open": lambda bench: [pb.ClientFrame(draft=pb.Draft(block=1, tokens=[1]))],
    "no ClientFrame": lambda bench: [b"\xff\xff"],
    "open.prompt: is empty": lambda bench: [pb.ClientFrame(open=good_open(bench, prompt=[]))],
    "open.prompt: has 200": lambda bench: [pb.ClientFrame(open=good_open(bench, prompt=[5] * 200))],
    "open.prompt[0]": lambda bench: [pb.ClientFrame(open=good_open(bench, prompt=[10**6]))],
    "tokenizer_fingerprint": lambda bench: [pb.ClientFrame(open=good_open(bench, tokenizer_fingerprint="0"))],
    "open.mode": lambda bench: [pb.ClientFrame(open=good_open(bench, mode=pb.MODE_SEALED))],
    "open.model": lambda bench: [pb.ClientFrame(open=good_open(bench, model="gpt"))],
    "open.resume_token": lambda bench: [pb.ClientFrame(open=good_open(bench, resume_token=b"x"))],
    "came a second time": lambda bench: [pb.ClientFrame(open=good_open(bench))] * 2,
    "draft.tokens[1]": lambda bench: opened(bench, pb.Draft(block=1, tokens=[1, 10**6])),
    "draft.tokens: has 9 tokens": lambda bench: opened(bench, pb.Draft(block=1, tokens=[1] * 9)),
    "draft.position: is 190": lambda bench: opened(bench, pb.Draft(block=1, position=190, tokens=[1])),
    "draft.epoch: is 9999": lambda bench: opened(bench, pb.Draft(block=1, epoch=9999, tokens=[1])),
    "draft.parent: is 3": lambda bench: opened(bench, pb.Draft(block=1, parent=3, tokens=[1])),
    "draft.given": lambda bench: opened(bench, pb.Draft(block=1, tokens=[1], given=b"\x01")),
    "draft.block": lambda bench: opened(bench, pb.Draft(tokens=[1])),
    "frame.settled: is 199": lambda bench: [pb.ClientFrame(open=good_open(bench)), pb.ClientFrame(settled=199)],
}


def opened(bench, draft: pb.Draft):
    return [pb.ClientFrame(open=good_open(bench)), pb.ClientFrame(draft=draft)]


@pytest.mark.parametrize("message", BAD_FRAMES)
async def test_a_bad_frame_ends_its_own_session_with_a_clear_message(bench, message):
    async with bench.client() as client:
        other = client.generate("sky", GREEDY)
        other.start()
        with pytest.raises(RequestRejected) as caught:
            await play(bench, BAD_FRAMES[message](bench))
        assert message in str(caught.value)
        assert await other == bench.codec.decode(expected(bench, "sky"))
    await _all_closed(bench)


async def test_an_oversized_frame_is_refused(bench):
    for padding in (512 * 1024, 514 * 1024):  # over our limit, and over gRPC's as well
        with pytest.raises(RequestRejected, match="frame"):
            await play(bench, [pb.ClientFrame(open=good_open(bench), padding=bytes(padding))])
    await _all_closed(bench)


async def test_a_full_house_refuses_with_a_retry_time(bench):
    transport = bench.transport()
    streams = [await transport.open_stream() for _ in range(5)]
    for stream in streams[:4]:
        await stream.send(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        await stream.receive()
    await streams[4].send(pb.ClientFrame(open=good_open(bench)).SerializeToString())
    with pytest.raises(Overloaded, match="4 sessions") as caught:
        await streams[4].receive()
    assert caught.value.retry_after == 2.0
    await transport.close()


# ---------------------------------------------------------------- TLS and the link


async def test_a_certificate_of_another_ca_or_of_no_device_opens_nothing(bench, tmp_path, certificates):
    stranger = Identity.load(DevelopmentAuthority(tmp_path).device("acme", "phone-1"))
    key, certificate = ((certificates.server() / name).read_bytes() for name in ("key.pem", "cert.pem"))
    no_device = replace(bench.identity, key=key, certificate=certificate)
    for identity in (replace(stranger, ca=bench.identity.ca), no_device):
        transport = bench.transport(identity)
        with pytest.raises(Unauthenticated):
            await transport.describe(b"")
        with pytest.raises(Unauthenticated):
            await play(bench, [pb.ClientFrame(open=good_open(bench))], identity)
        await transport.close()
    assert bench.orchestrator.live_sessions == 0


async def test_a_server_that_stops_at_once_is_explained(bench):
    async with bench.client() as client:
        generation = client.generate("sky", SamplingParams(max_tokens=150, ignore_eos=True))
        generation.start()
        stopping = asyncio.create_task(bench.server.stop(0))
        with pytest.raises(VerifierUnavailable):
            await generation
        await stopping


async def test_an_engine_that_dies_fails_its_sessions_and_readiness(bench):
    async with bench.client() as client:
        await client.connect()
        bench.engine.die()
        with pytest.raises(VerifierUnavailable, match="told to die"):
            await client.generate("sky", GREEDY)
        await bench.server.engine_died()
        with pytest.raises(VerifierUnavailable, match="told to die"):
            await client.generate("sky", GREEDY)


async def test_a_drained_server_says_go_away_and_takes_nobody_new(bench):
    async with bench.client() as client:
        await client.connect()
        await bench.orchestrator.drain(0)
        with pytest.raises(VerifierUnavailable, match="shutting down"):
            await client.generate("sky", GREEDY)
