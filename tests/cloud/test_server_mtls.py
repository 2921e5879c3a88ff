"""The real server over real mTLS, with a scripted target: answers, errors, and that one bad client harms no other."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from devices import resuming
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from toy import toy_greedy, toy_target

from edgedraft.errors import (
    Overloaded,
    RequestRejected,
    Unauthenticated,
    VerifierUnavailable,
)
from edgedraft.events import Drafted, Finished, FinishReason, Revised, Verified
from edgedraft.identity import Identity
from edgedraft.sampling import SamplingParams
from edgedraft.wire import PROTOCOL_VERSION, VERIFY_METHOD, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.tenants import Tenant, Tenants

GREEDY = SamplingParams(max_tokens=40)


def expected(bench, text: str, max_tokens: int = 40) -> list[int]:
    return toy_greedy(bench.codec.encode_chat([{"role": "user", "content": text}]), max_tokens)


@pytest.mark.parametrize("bench", [{"run_ahead": 0}, {"run_ahead": 8}], indirect=True)
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
        await _all_closed(bench)
        assert await client.generate("sky", GREEDY) == bench.codec.decode(expected(bench, "sky"))


async def test_leaving_early_closes_the_session(bench):
    async with bench.client() as client, client.generate("sky", GREEDY) as generation:
        async for _ in generation:
            break
    await _all_closed(bench)


async def _all_closed(bench) -> None:
    async with asyncio.timeout(20):
        await bench.orchestrator.idle()
    assert len(bench.orchestrator._sessions) == 0, "a session that is over is kept"


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


@pytest.mark.parametrize("bench", [{"run_ahead": 0}], indirect=True)
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
    "open.mode": lambda bench: [pb.ClientFrame(open=good_open(bench, mode=pb.MODE_UNSPECIFIED))],
    "open.model": lambda bench: [pb.ClientFrame(open=good_open(bench, model="gpt"))],
    "open.resume_token": lambda bench: [pb.ClientFrame(open=good_open(bench, resume_token=b"x" * 65))],
    "open.resume_position": lambda bench: [pb.ClientFrame(open=good_open(bench, resume_token=b"x", resume_position=1))],
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


@asynccontextmanager
async def raw_call(bench, identity=None):
    """A call as any gRPC client makes it."""
    identity = identity or bench.identity
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{bench.server.port}", credentials, options) as channel:
        yield channel.stream_stream(VERIFY_METHOD)()


async def refusal(call) -> tuple[grpc.StatusCode, Status | None, float | None]:
    """The status of a call that has ended, its standard details, and the seconds in their RetryInfo."""
    code = await call.code()
    packed = dict(await call.trailing_metadata()).get("grpc-status-details-bin")
    if packed is None:
        return code, None, None
    status, retry = Status.FromString(packed), RetryInfo()
    assert status.code == code.value[0]
    assert status.message == await call.details()
    (detail,) = status.details
    assert detail.Unpack(retry)
    return code, status, retry.retry_delay.ToMilliseconds() / 1000


async def test_a_full_house_refuses_with_a_retry_time_in_the_standard_details(bench):
    transport = bench.transport()
    streams = [await transport.open_stream() for _ in range(4)]
    for stream in streams:
        await stream.send(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        await stream.receive()
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        code, status, seconds = await refusal(call)
    assert (code, seconds) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 2.0)
    assert "4 sessions" in status.message
    fifth = await transport.open_stream()
    await fifth.send(pb.ClientFrame(open=good_open(bench)).SerializeToString())
    with pytest.raises(Overloaded, match="4 sessions") as caught:
        await fifth.receive()
    assert caught.value.retry_after == 2.0
    await transport.close()


async def test_a_verifier_that_shuts_down_refuses_with_a_retry_time(bench):
    await bench.orchestrator.drain(0)
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        code, _, seconds = await refusal(call)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert seconds > 0


async def test_what_no_waiting_cures_has_no_retry_time(bench):
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=good_open(bench, prompt=[])).SerializeToString())
        assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, None, None)


@pytest.mark.parametrize("bench", [{"tenants": Tenants({"umbra": Tenant("umbra")}, None)}], indirect=True)
async def test_a_tenant_that_is_not_served_is_denied(bench, certificates):
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        assert await refusal(call) == (grpc.StatusCode.PERMISSION_DENIED, None, None)
        assert "tenant 'acme' is not served here" in await call.details()
    served = Identity.load(certificates.device("umbra", "phone-2"))
    async with raw_call(bench, served) as call:
        await call.write(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        assert decode_server_frame(await call.read()).HasField("opened")


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
    async with bench.client(resume_seconds=0) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=150, ignore_eos=True))
        generation.start()
        stopping = asyncio.create_task(bench.server.stop(0))
        with pytest.raises(VerifierUnavailable):
            await generation
        await stopping


@pytest.mark.parametrize("bench", [{"run_ahead": 0}], indirect=True)
async def test_a_drained_server_sends_away_with_a_token_and_ends_the_stream_in_good_order(bench):
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=good_open(bench)).SerializeToString())
        opened = decode_server_frame(await call.read()).opened
        await bench.orchestrator.drain(0)
        frames = []
        while (data := await call.read()) is not grpc.aio.EOF:
            frames.append(decode_server_frame(data))
        assert await call.code() is grpc.StatusCode.OK
    assert frames[-1].go_away.resume_token == opened.resume_token
    assert frames[-1].go_away.retry_after_ms > 0


@pytest.mark.parametrize("bench", [{"run_ahead": 0}], indirect=True)
async def test_an_engine_that_dies_sends_away_with_a_token_that_is_good_for_the_next(bench):
    message = good_open(bench)
    right = [toy_target((5, 6, 7))]
    right.append(toy_target((5, 6, 7, *right)))
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=message).SerializeToString())
        opened = decode_server_frame(await call.read()).opened
        verdict = decode_server_frame(await call.read()).verdict
        assert list(verdict.tokens) == right[:1]
        bench.engine.die()
        going = decode_server_frame(await call.read()).go_away
        assert going.resume_token == opened.resume_token
        code, status, seconds = await refusal(call)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "told to die" in status.message
        assert seconds == going.retry_after_ms / 1000 > 0
    async with asyncio.timeout(20):
        async for ready in bench.orchestrator.readiness():
            if ready:
                break
    again = resuming(message, going.resume_token, verdict.tokens)
    async with raw_call(bench) as call:
        await call.write(pb.ClientFrame(open=again).SerializeToString())
        assert decode_server_frame(await call.read()).opened.settled == 1
        assert list(decode_server_frame(await call.read()).verdict.tokens) == right[1:]


async def test_the_resume_token_of_another_device_is_refused_and_its_session_goes_on(bench, certificates):
    stranger = Identity.load(certificates.device("acme", "phone-2"))
    transport = bench.transport()
    stream = await transport.open_stream()
    await stream.send(pb.ClientFrame(open=good_open(bench)).SerializeToString())
    token = decode_server_frame(await stream.receive()).opened.resume_token
    with pytest.raises(RequestRejected, match="is of another device"):
        await play(bench, [pb.ClientFrame(open=good_open(bench, resume_token=token))], stranger)
    await stream.send(pb.ClientFrame(close=pb.Close()).SerializeToString())
    while (data := await stream.receive()) is not None:
        last = decode_server_frame(data)
    assert last.finished.reason == pb.Finished.REASON_CLOSED
    await transport.close()


async def test_a_stream_that_breaks_is_taken_up_where_it_was(bench):
    message = good_open(bench)
    settled: list[int] = []
    token = b""
    for _ in range(5):
        async with raw_call(bench) as call:
            opening = resuming(message, token, settled) if token else message
            await call.write(pb.ClientFrame(open=opening).SerializeToString())
            token = decode_server_frame(await call.read()).opened.resume_token
            await call.write(pb.ClientFrame(settled=len(settled)).SerializeToString())
            verdict = decode_server_frame(await call.read()).verdict
            assert verdict.position == len(settled)
            settled += verdict.tokens
        # The channel is closed: the verifier learns it from the broken stream.
        async with asyncio.timeout(20):
            await bench.orchestrator.idle()
    assert len(settled) >= 5
    assert settled == [toy_target((5, 6, 7, *settled[:index])) for index in range(len(settled))]
    assert len({work.session for step in bench.engine.steps for work in step}) == 1


async def test_a_drained_server_takes_nobody_new(bench):
    async with bench.client(resume_seconds=0) as client:
        await client.connect()
        await bench.orchestrator.drain(0)
        with pytest.raises(VerifierUnavailable, match="shutting down"):
            await client.generate("sky", GREEDY)
