"""A verifier in memory that says what it is told to, and a client of it."""

from toy import toy_draft

from edgedraft.client import Client
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb

CONTEXT = 200
VOCAB = 512


def make_drafter(codec, **settings) -> ScriptedDrafter:
    facts = {"vocab_size": VOCAB, "context_length": CONTEXT, "tokenizer_fingerprint": codec.fingerprint}
    return ScriptedDrafter(toy_draft, **{**facts, **settings})


def description(codec, **changes) -> bytes:
    facts = {
        "name": "toy",
        "tokenizer_fingerprint": codec.fingerprint,
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "max_block": 4,
        "max_window": 8,
        "modes": [pb.MODE_OPEN],
    }
    model = pb.ModelInfo(**{**facts, **changes})
    return pb.DescribeResponse(protocol=PROTOCOL_VERSION, models=[model]).SerializeToString()


def opened(**changes) -> pb.ServerFrame:
    return pb.ServerFrame(opened=pb.Opened(**{"window": 8, "max_block": 4, **changes}))


def verdict(position: int, *tokens: int, **changes) -> pb.ServerFrame:
    return pb.ServerFrame(verdict=pb.Verdict(**{"position": position, "tokens": tokens, "window": 8, **changes}))


FINISHED = pb.ServerFrame(finished=pb.Finished(reason=pb.Finished.REASON_STOP))


def verifier(codec, *frames, **changes) -> MemoryTransport:
    """Takes the Open, then says this and ends, whatever the device does."""

    async def serve(peer) -> None:
        await peer.receive()
        for frame in frames:
            peer.send(frame if isinstance(frame, bytes) else frame.SerializeToString())

    return MemoryTransport(serve, description(codec, **changes))


def client_of(codec, transport, **settings) -> Client:
    return Client(make_drafter(codec), verifier=transport, codec=codec, **{"mode": "open", **settings})


async def answer(codec, *frames, max_tokens=10) -> str:
    async with client_of(codec, verifier(codec, *frames)) as client:
        return await client.generate("sky", SamplingParams(max_tokens=max_tokens))
