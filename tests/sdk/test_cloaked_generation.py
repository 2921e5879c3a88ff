"""Mode `cloaked`: both models see placeholders, the target decides, and the app sees the values as they stream."""

import pytest
from memory_verifier import FINISHED, VOCAB, description, make_drafter, opened, verdict, verifier
from toy import toy_greedy

from edgedraft.client import Client
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.events import DecidedBy, Drafted, FinishReason, Revised, Verified
from edgedraft.prompt import Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import verify_pb2 as pb

ASKED = Prompt.marked("Write to [[Alice Miller|person]] at [[alice.miller@example.org|email]]: the sky is blue.")
ANSWER = "Dear [PERSON_1], light scatters. Write to [EMAIL_1] or [ Email_1 ]; not [PERSON_7]!"
RESTORED = (
    "Dear Alice Miller, light scatters. Write to alice.miller@example.org or alice.miller@example.org; not [PERSON_7]!"
)


def says(codec, text: str, step: int):
    """A verifier that settles a text, so many tokens at a time."""
    ids = codec.encode(text)
    frames = [verdict(start, *ids[start : start + step]) for start in range(0, len(ids), step)]
    return verifier(codec, opened(), *frames, FINISHED, modes=[pb.MODE_CLOAKED])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
async def test_values_come_back_as_the_text_streams(codec, step):
    async with Client(make_drafter(codec), verifier=says(codec, ANSWER, step), codec=codec, mode="cloaked") as client:
        generation = client.generate(ASKED, SamplingParams(max_tokens=200))
        verified = [event async for event in generation if isinstance(event, Verified)]
    assert generation.text == "".join(event.text for event in verified) == RESTORED
    assert {event.by for event in verified} == {DecidedBy.TARGET}


async def test_provisional_text_is_restored_too_and_taken_back_with_its_tokens(codec):
    ids = codec.encode(ANSWER)
    async with Client(make_drafter(codec), codec=codec, mode="local") as client:
        length = len(client.public_view(ASKED, "cloaked").tokens)

    async def serve(peer) -> None:
        prompt = pb.ClientFrame.FromString(await peer.receive()).open.prompt
        assert "Alice" not in codec.decode(prompt)
        peer.send(opened(window=100).SerializeToString())
        settled = 0
        while settled < len(ids):
            frame = pb.ClientFrame.FromString(await peer.receive())
            if frame.HasField("draft"):
                settled = frame.draft.position + len(frame.draft.tokens)
                assert list(frame.draft.tokens) == ids[frame.draft.position : settled]
                peer.send(verdict(frame.draft.position, *frame.draft.tokens, window=100).SerializeToString())
        peer.send(FINISHED.SerializeToString())

    drafter = ScriptedDrafter(
        lambda tokens: (ids[len(tokens) - length],), vocab_size=VOCAB, tokenizer_fingerprint=codec.fingerprint
    )
    transport = MemoryTransport(serve, description(codec, modes=[pb.MODE_CLOAKED], max_window=100, max_block=64))
    async with Client(drafter, verifier=transport, codec=codec, mode="cloaked") as client:
        generation = client.generate(ASKED, SamplingParams(max_tokens=len(ids)))
        drafted, verified = "", ""
        async for event in generation:
            match event:
                case Drafted(text=text):
                    drafted += text
                case Verified(text=text):
                    verified += text
                    assert "[PERSON_1" not in generation.draft_text
                case Revised():
                    raise AssertionError("every draft was right")
    assert verified == RESTORED
    assert drafted == RESTORED


async def test_the_tokens_are_the_targets_own_on_the_cloaked_prompt(bench, codec):
    drafter = make_drafter(codec, vocab_size=codec.vocab_size)
    async with Client(drafter, verifier=bench.transport(), codec=codec, mode="cloaked") as client:
        prompt = list(client.public_view(ASKED).tokens)
        generation = client.generate(ASKED, SamplingParams(max_tokens=80, ignore_eos=True))
        tokens = [token async for event in generation if isinstance(event, Verified) for token in event.tokens]
    expected = []
    while len(expected) < 80:
        expected += toy_greedy([*prompt, *expected], 80 - len(expected))
    assert tokens == expected
    assert generation.finish_reason is FinishReason.LENGTH
    assert generation.report.judged > 0


async def test_a_stop_string_is_found_in_the_restored_text(codec):
    async with Client(make_drafter(codec), verifier=says(codec, ANSWER, 2), codec=codec, mode="cloaked") as client:
        generation = client.generate(ASKED, SamplingParams(max_tokens=200, stop=("Miller",)))
        assert await generation == "Dear Alice "
        assert generation.finish_reason is FinishReason.STOP
    assert not any("Miller" in entry.text for entry in generation.ledger)
