"""The real server over real mTLS, tapped at both ends: the ledger has every frame, in the sizes and pace asked for."""

import ast
import asyncio
import inspect
from functools import partial

import pytest
from taps import RecordingTransport

from edgedraft.egress import GatedStream
from edgedraft.errors import InvalidInput, RequestRejected
from edgedraft.events import Verified
from edgedraft.privacy.ledger import Ledger, read_ledger
from edgedraft.privacy.sealed_file import ledger_key
from edgedraft.privacy.shaping import Shaping
from edgedraft.prompt import Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud import server as server_module

STEADY = Shaping(pace="steady", beat_seconds=0.01, span_seconds=0.5)
PROMPT = Prompt(public="Why is the sky blue? ", private="My name is Zażółć.")


class Tap:
    """What the streams of a server got and gave, in clear and in the order of their beginning."""

    def __init__(self) -> None:
        self.up: list[list[bytes]] = []
        self.down: list[list[bytes]] = []
        self.ends = 0

    async def verify(self, verify, requests, context) -> None:
        up, down = [], []
        self.up.append(up)
        self.down.append(down)

        async def tapped():
            async for data in requests:
                up.append(data)
                yield data

        class Context:
            def __getattr__(self, name):
                return getattr(context, name)

            async def write(self, data):
                down.append(data)
                await context.write(data)

        await verify(tapped(), Context())
        self.ends += 1


@pytest.fixture
def tap(monkeypatch):
    tap = Tap()
    verify = server_module.VerifierService.verify

    async def tapped(self, requests, context):
        await tap.verify(partial(verify, self), requests, context)

    monkeypatch.setattr(server_module.VerifierService, "verify", tapped)
    return tap


@pytest.fixture
async def tapped(tap, bench):
    """Tap and server; the tap must be there first."""
    return tap, bench


@pytest.mark.parametrize("shaping", [None, Shaping(sizes=(100, 200)), STEADY], ids=["default", "own sizes", "paced"])
@pytest.mark.parametrize("mode", ["sealed", "cloaked", "open"])
async def test_the_ledger_equals_what_passed_frame_by_frame(tapped, mode, shaping):
    tap, bench = tapped
    transport = RecordingTransport(bench.transport())
    async with bench.client(transport=transport, mode=mode, shaping=shaping) as client:
        generations = [client.generate(PROMPT, SamplingParams(max_tokens=30)) for _ in range(2)]
        for generation in generations:
            await generation
        report = generations[0].report
    for number, generation in enumerate(generations):
        entries = list(generation.ledger)
        assert {(entry.mode, entry.generation) for entry in entries} == {(mode, number + 1)}
        up = [entry.frame for entry in entries if entry.direction == "up"]
        down = [entry.frame for entry in entries if entry.direction == "down"]
        assert (up, down) == (transport.up[number], transport.down[number])
        # What the device says last may cross with the verifier's end, who does not read it any more.
        assert up[: len(tap.up[number])] == tap.up[number]
        assert len(tap.up[number]) > 1
        assert down == tap.down[number]
    assert report.frames_up > 1


async def test_padded_frames_have_the_usual_sizes_both_ways(tapped):
    tap, bench = tapped
    async with bench.client(mode="sealed") as client:
        generation = client.generate(PROMPT, SamplingParams(max_tokens=30))
        await generation
    assert len(tap.up[0][0]) == 4096
    assert {len(data) for data in tap.up[0][1:]} <= {64, 256}
    assert {len(data) for data in tap.down[0]} <= {64, 256}
    assert generation.report.padding_bytes_up > 4096 - 400
    assert generation.report.padding_bytes_down > 0
    assert (generation.report.empty_frames_up, generation.report.empty_frames_down) == (0, 0)
    assert generation.report.pace_delay_seconds == 0


@pytest.mark.parametrize("max_tokens", [3, 20])
async def test_paced_sessions_look_alike_however_long_the_answer_is(tapped, max_tokens):
    tap, bench = tapped
    async with bench.client(mode="sealed", shaping=STEADY) as client:
        generation = client.generate(PROMPT, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        await generation
    assert generation.report.tokens == max_tokens
    sizes = [len(data) for data in tap.up[0]]
    assert sizes == [4096] + [256] * (len(sizes) - 1)
    assert {len(data) for data in tap.down[0]} == {256}
    assert {entry.direction for entry in generation.ledger if entry.kind == "empty"} == {"up", "down"}
    assert tap.ends == 1, "the verifier ended it, at the end of the span"
    # Beats that a busy machine has missed are left out, so there may be fewer.
    assert len(tap.down[0]) <= 50


async def test_a_paced_session_leaves_its_place_when_it_is_over_and_not_at_the_end_of_its_span(tapped):
    _, bench = tapped
    shaping = Shaping(pace="steady", beat_seconds=0.01, span_seconds=600.0)
    client = bench.client(mode="sealed", shaping=shaping)
    await client.generate(PROMPT, SamplingParams(max_tokens=5))
    async with asyncio.timeout(20):
        await bench.orchestrator.idle()
    client._gate._leaving.copy().pop().cancel()  # nobody waits ten minutes
    await client.close()


async def test_a_cancelled_paced_generation_closes_its_session(tapped):
    tap, bench = tapped
    async with bench.client(mode="sealed", shaping=STEADY) as client:
        generation = client.generate(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True))
        async for event in generation:
            if isinstance(event, Verified):
                generation.cancel()
        async with asyncio.timeout(20):
            await bench.orchestrator.idle()
    assert any(pb.ClientFrame.FromString(data).HasField("close") for data in tap.up[0])
    assert tap.ends == 1


async def test_shaping_that_the_verifier_will_not_do_is_refused(bench):
    opening = pb.Open(
        protocol=PROTOCOL_VERSION,
        tokenizer_fingerprint=bench.codec.fingerprint,
        mode=pb.MODE_OPEN,
        prompt=[5],
        limits=pb.Limits(max_tokens=5),
        shaping=pb.Shaping(sizes=[64], beat_ms=1),
    )
    transport = bench.transport()
    stream = await transport.open_stream()
    await stream.send(pb.ClientFrame(open=opening).SerializeToString())
    with pytest.raises(RequestRejected, match=r"open\.shaping\.beat_ms: is 1; use 10 to 10000"):
        await stream.receive()
    await transport.close()


def test_one_function_hands_bytes_to_a_stream():
    """In the gate itself; that nothing else holds a stream is tested with the architecture."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(GatedStream)))
    senders = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "self._stream.send"
    ]
    assert senders == ["_let_out"]
    body = ast.unparse(next(f for f in ast.walk(tree) if isinstance(f, ast.AsyncFunctionDef) and f.name == "_let_out"))
    order = [body.index(step) for step in ("self._check(", "pad(", "self._page.record(", "self._stream.send(")]
    assert order == sorted(order)


async def test_a_client_writes_its_ledger_to_a_file_whose_key_lies_beside_its_identity(bench, certificates, tmp_path):
    folder = certificates.device("acme", "phone-7")
    file = tmp_path / "run.ledger"
    async with bench.client(mode="sealed", identity=folder, ledger=file) as client:
        await client.generate(PROMPT, SamplingParams(max_tokens=10))
    assert list(read_ledger(file, ledger_key(folder))) == client.ledger.entries()
    with pytest.raises(InvalidInput, match="is there already"):
        bench.client(mode="sealed", identity=folder, ledger=file)
    with pytest.raises(InvalidInput, match="no folder of an identity"):
        bench.client(mode="sealed", identity=bench.identity, ledger=tmp_path / "other")


async def test_a_ledger_of_the_apps_own_is_the_apps_to_close(bench):
    ledger = Ledger()
    async with bench.client(ledger=ledger) as client:
        await client.generate("sky", SamplingParams(max_tokens=10))
    assert client.ledger is ledger
    assert any(entry.text for entry in ledger)
    ledger.record(None, "up", pb.DescribeRequest(), b"", ())
