"""End to end on vLLM: the compiled drafter, mutual TLS, a verifier process, and vLLM's own process behind it."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from leaks import Marker

from edgedraft.client import Client
from edgedraft.events import Resumed, Verified
from edgedraft.identity import Identity
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.local_verifier import local_verifier
from edgedraft_apps.wan import WanProxy

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: pip install '.[cloud-cpu]'")

TOKENS = 48
TEXTS = [
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "def fibonacci(n):",
    "Name three rivers in Europe and say where each of them ends.",
]


async def decode_plainly(transport: GrpcTransport, codec: TextCodec, prompt: list[int]) -> list[int]:
    """What the verifier decodes by itself for a device that sends no draft."""
    stream = await transport.open_stream()
    opening = pb.Open(
        protocol=PROTOCOL_VERSION,
        tokenizer_fingerprint=codec.fingerprint,
        mode=pb.MODE_OPEN,
        prompt=prompt,
        limits=pb.Limits(max_tokens=TOKENS),
    )
    await stream.send(pb.ClientFrame(open=opening).SerializeToString())
    tokens: list[int] = []
    settled: asyncio.Queue[int] = asyncio.Queue()

    async def acknowledge() -> None:
        while True:
            await stream.send(pb.ClientFrame(settled=await settled.get()).SerializeToString())

    # On its own, as a write may wait until what has come is read.
    acknowledging = asyncio.create_task(acknowledge())
    while not (frame := pb.ServerFrame.FromString(await stream.receive())).HasField("finished"):
        tokens += frame.verdict.tokens
        settled.put_nowait(len(tokens))
    acknowledging.cancel()
    await stream.close()
    return tokens


class Answer:
    """A generation that is being read, and how far it is."""

    def __init__(self, generation) -> None:
        self.tokens: list[int] = []
        self.resumes = 0
        self._begun = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read(generation))

    async def _read(self, generation) -> None:
        async for event in generation:
            if isinstance(event, Verified):
                self.tokens += event.tokens
            self.resumes += isinstance(event, Resumed)
            if len(self.tokens) >= TOKENS // 4:
                self._begun.set()

    async def begun(self) -> None:
        await asyncio.wait(
            [self._reading, begun := asyncio.ensure_future(self._begun.wait())], return_when="FIRST_COMPLETED"
        )
        begun.cancel()

    async def done(self) -> list[int]:
        await self._reading
        return self.tokens


def engine_process() -> int:
    """The process below this one in which vLLM runs the target: it calls itself so."""
    parents = {
        int(entry.name): int(contents(entry / "stat").rpartition(b")")[2].split()[1])
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and contents(entry / "stat")
    }

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    (engine,) = (pid for pid in parents if b"EngineCore" in contents(Path(f"/proc/{pid}/cmdline")) and is_ours(pid))
    return engine


def contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # the process has ended meanwhile


async def test_vllm_behind_the_real_server(default_pair, certificates, tmp_path):
    """Far away, four at once, over a cut link and the death of vLLM's process: always its own greedy text."""
    log = tmp_path / "verifier.log"
    codec = TextCodec.load(default_pair.drafter)
    sampling = SamplingParams(max_tokens=TOKENS)
    async with AsyncExitStack() as stack:
        arguments = ("--engine", "vllm", "--threads", "1", "--kv-tokens", "4096")
        verifier = local_verifier(default_pair.target_hf, certificates.server(), log=log, arguments=arguments)
        port = await stack.enter_async_context(verifier)
        identity = certificates.device("acme", "phone-1")
        transport = GrpcTransport(f"localhost:{port}", Identity.load(identity))
        stack.push_async_callback(transport.close)
        expected = [
            await decode_plainly(transport, codec, codec.encode_chat([{"role": "user", "content": text}]))
            for text in TEXTS
        ]

        proxy = await stack.enter_async_context(WanProxy("127.0.0.1", port, rtt=0.05))

        def client(at: int) -> Client:
            settings = {"identity": identity, "mode": "open", "threads": 1, "resume_seconds": 240.0}
            return Client(default_pair.drafter, verifier=f"localhost:{at}", **settings)

        async with client(proxy.port) as far:
            answers = [Answer(far.generate(text, sampling)) for text in TEXTS]
            assert [await answer.done() for answer in answers] == expected

        async with client(proxy.port) as cut_off:
            answer = Answer(cut_off.generate(TEXTS[0], sampling))
            await answer.begun()
            await proxy.cut()
            assert await answer.done() == expected[0]
            assert answer.resumes == 1

        async with client(port) as near:
            answer = Answer(near.generate(TEXTS[0], sampling))
            await answer.begun()
            os.kill(engine_process(), signal.SIGKILL)
            assert await answer.done() == expected[0]
            assert answer.resumes >= 1
    seen = log.read_text()
    for text, tokens in zip(TEXTS, expected, strict=True):
        prompt = codec.encode_chat([{"role": "user", "content": text}])
        assert Marker(text, tuple(prompt)).found_in(seen) is None
        assert Marker(codec.decode(tokens), tuple(tokens)).found_in(seen) is None
