"""The client as an app uses it: every mode and setting, and a verifier in memory that may be hostile."""

import asyncio
import random
import threading

import pytest
from memory_verifier import CONTEXT, VOCAB, client_of, make_drafter
from taps import RecordingTransport
from toy import toy_draft

from edgedraft.client import Client
from edgedraft.drafters.base import Candidates
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.errors import (
    Cancelled,
    DrafterError,
    IdentityError,
    InvalidInput,
)
from edgedraft.events import DecidedBy, Finished, FinishReason, Verified
from edgedraft.local import choose
from edgedraft.prompt import Message, Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.sync import SyncClient
from edgedraft.wire import verify_pb2 as pb


def local_client(codec, **settings) -> Client:
    return Client(make_drafter(codec, **settings), codec=codec, mode="local")


def drafted_greedily(prompt: list[int], max_tokens: int) -> list[int]:
    out: list[int] = []
    while len(out) < max_tokens and out[-1:] != [2]:
        out.append(toy_draft((*prompt, *out))[0])
    return out


def chat(codec, text: str) -> list[int]:
    return codec.encode_chat([{"role": "user", "content": text}])


# ---------------------------------------------------------------- mode local


async def test_local_at_temperature_0_is_the_drafters_first_choice(codec):
    async with local_client(codec) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=30))
        events = [event async for event in generation]
    expected = drafted_greedily(chat(codec, "sky"), 30)
    verified = [event for event in events if isinstance(event, Verified)]
    assert [token for event in verified for token in event.tokens] == expected
    assert {event.by for event in verified} == {DecidedBy.DEVICE}
    assert generation.text == "".join(event.text for event in verified) == codec.decode(expected)
    report = events[-1].report
    assert (report.tokens, report.prompt_tokens) == (len(expected), len(chat(codec, "sky")))
    assert (report.bytes_up, report.bytes_down, report.frames_up, report.rtt_seconds) == (0, 0, 0, None)


async def test_local_sampling_follows_its_seed(codec):
    async def answer(client, seed):
        return await client.generate("sky", SamplingParams(max_tokens=30, temperature=1.0, seed=seed, ignore_eos=True))

    async with local_client(codec) as client:
        answers = [await answer(client, seed) for seed in (1, 1, 2, 3)]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1


async def test_local_ends_at_a_stop_string_a_stop_token_and_the_context(codec):
    expected = drafted_greedily(chat(codec, "sky"), 30)
    whole = codec.decode(expected)
    async with local_client(codec) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=30, stop=(whole[3:5],)))
        assert await generation == whole[: whole.index(whole[3:5])]
        assert generation.finish_reason is FinishReason.STOP
        generation = client.generate("sky", SamplingParams(max_tokens=30, stop_token_ids=(expected[1],)))
        assert await generation == codec.decode(expected[: expected.index(expected[1]) + 1])
        assert generation.finish_reason is FinishReason.STOP
        generation = client.generate("sky", SamplingParams(max_tokens=9999, ignore_eos=True))
        await generation
        assert generation.report.tokens == CONTEXT - len(chat(codec, "sky"))
        assert generation.finish_reason is FinishReason.LENGTH


async def test_local_is_cancelled_before_it_starts_and_midway(codec):
    async with local_client(codec) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=100, ignore_eos=True))
        generation.cancel()
        assert await generation == ""
        assert generation.finish_reason is FinishReason.CANCELLED
        generation = client.generate("sky", SamplingParams(max_tokens=100, ignore_eos=True))
        async for event in generation:
            if isinstance(event, Verified):
                generation.cancel()
        assert generation.finish_reason is FinishReason.CANCELLED
        assert 1 <= generation.report.tokens < 100


def test_local_sampling_honours_top_k_and_top_p():
    candidates = Candidates((7, 8, 9), (0.5, 0.3, 0.1))

    class Draws:
        def choices(self, ids, weights):
            self.seen = dict(zip(ids, weights, strict=True))
            return ids

    def seen(**sampling):
        draws = Draws()
        choose(candidates, SamplingParams(**{"temperature": 1.0, **sampling}), draws)
        return draws.seen

    assert seen() == pytest.approx({7: 1, 8: 0.6, 9: 0.2})
    assert seen(top_k=2) == pytest.approx({7: 1, 8: 0.6})
    assert seen(top_p=0.5) == {7: 1}
    assert seen(top_p=0.8) == pytest.approx({7: 1, 8: 0.6})
    assert seen(temperature=0.5) == pytest.approx({7: 1, 8: 0.36, 9: 0.04})
    assert choose(candidates, SamplingParams(), Draws()) == 7


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-3, 10.0])
def test_local_sampling_works_at_every_temperature(temperature):
    candidates = Candidates((7, 8, 9), (0.02, 0.01, 0.0))
    token = choose(candidates, SamplingParams(temperature=temperature), random.Random(1))
    assert token in ((7, 8) if temperature > 1 else (7,))


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"mode": "open"}, "verifier"),
        ({"mode": "secret"}, "mode"),
        ({"mode": "local", "block_size": 0}, "block_size"),
        ({"mode": "open", "verifier": "localhost:1"}, "identity"),
        ({"mode": "local", "codec": None}, "codec"),
    ],
)
def test_arguments_that_do_not_fit_are_named(codec, arguments, field):
    with pytest.raises(InvalidInput) as caught:
        Client(make_drafter(codec), **{"codec": codec, **arguments})
    assert caught.value.field == field


def test_an_identity_that_is_not_there_is_told(codec, tmp_path):
    with pytest.raises(IdentityError, match=r"key\.pem is not there"):
        Client(make_drafter(codec), codec=codec, mode="open", verifier="localhost:1", identity=tmp_path)


@pytest.mark.parametrize("address", ["localhost", "localhost:0", "localhost:65536", "http://localhost:1", "a b:1"])
def test_an_address_that_is_none_is_told(bench, codec, address):
    with pytest.raises(InvalidInput) as caught:
        Client(make_drafter(codec), codec=codec, mode="open", verifier=address, identity=bench.identity)
    assert caught.value.field == "verifier"


def test_a_codec_of_another_tokenizer_is_refused(codec):
    with pytest.raises(InvalidInput, match="not the drafter's tokenizer"):
        Client(make_drafter(codec, tokenizer_fingerprint="0"), codec=codec, mode="local")


BAD_CALLS = {
    "prompt": ("", {}),
    "prompt ": ([], {}),
    "prompt  ": ("sky " * CONTEXT, {}),
    "messages[0]": ([{"role": "user"}], {}),
    "message.content": ([{"role": "user", "content": 3}], {}),
    "mode": ("sky", {"mode": "open"}),
    "mode ": ("sky", {"mode": "secret"}),
    "stop": ("sky", {"sampling": lambda: SamplingParams(stop=("",))}),
}


@pytest.mark.parametrize("field", BAD_CALLS)
async def test_a_call_that_is_wrong_names_its_field_at_once(codec, field):
    prompt, settings = BAD_CALLS[field]
    async with local_client(codec) as client:
        with pytest.raises(InvalidInput) as caught:
            client.generate(prompt, **{name: value() if callable(value) else value for name, value in settings.items()})
        assert caught.value.field.startswith(field.strip())


async def test_prompts_in_every_form_mean_the_same(codec):
    forms = ["sky", Prompt((Message("user", "sky"),)), [{"role": "user", "content": "sky"}], [Message("user", "sky")]]
    async with local_client(codec) as client:
        answers = [await client.generate(form, SamplingParams(max_tokens=10)) for form in forms]
        raw = client.generate(Prompt(raw="sky"), SamplingParams(max_tokens=10))
        assert await raw == codec.decode(drafted_greedily(codec.encode("sky"), 10))
    assert answers == [codec.decode(drafted_greedily(chat(codec, "sky"), 10))] * 4


# ---------------------------------------------------------------- a drafter that fails


@pytest.mark.parametrize("mode", ["open", "local"])
async def test_a_drafter_that_fails_reaches_the_app_and_spares_the_client(bench, codec, mode):
    length = len(chat(codec, "sky"))
    drafter = make_drafter(codec, fail_at=length + 3)
    async with Client(drafter, verifier=bench.transport(), codec=codec, mode=mode) as client:
        with pytest.raises(DrafterError, match="the script fails"):
            await client.generate("sky", SamplingParams(max_tokens=100, ignore_eos=True))
        assert drafter._sequences == {}, "its sequence was given back"
        assert len(await client.generate("sky", SamplingParams(max_tokens=1, ignore_eos=True))) >= 0
    async with asyncio.timeout(20):
        await bench.orchestrator.idle()


async def test_what_a_drafter_raises_by_accident_becomes_a_drafter_error(codec):
    def broken(tokens):
        raise ZeroDivisionError("oops")

    drafter = ScriptedDrafter(broken, vocab_size=VOCAB, tokenizer_fingerprint=codec.fingerprint)
    async with Client(drafter, codec=codec, mode="local") as client:
        with pytest.raises(DrafterError, match="oops"):
            await client.generate("sky")


# ---------------------------------------------------------------- what leaves the device


@pytest.mark.parametrize("block_size", [1, 4])
async def test_byte_counts_are_the_bytes_on_the_transport(bench, codec, block_size):
    transport = RecordingTransport(bench.transport())
    async with client_of(codec, transport, block_size=block_size) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=40, ignore_eos=True))
        await generation
    report, up, down = generation.report, *transport.up, *transport.down
    assert (report.frames_up, report.bytes_up) == (len(up), sum(map(len, up)))
    assert (report.frames_down, report.bytes_down) == (len(down), sum(map(len, down)))
    assert report.frames_up > 1
    drafted = [len(frame.draft.tokens) for frame in map(pb.ClientFrame.FromString, up)]
    assert 1 <= max(drafted) <= block_size


async def test_mode_local_sends_nothing_even_where_there_is_a_verifier(bench, codec):
    transport = RecordingTransport(bench.transport())
    async with client_of(codec, transport) as client:
        await client.generate("sky", SamplingParams(max_tokens=10), mode="local")
    assert transport.up == []


# ---------------------------------------------------------------- ends that the app brings about


async def until(condition) -> None:
    """Give the event loop turns until something holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  turns of the loop are what it waits for
            await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["await", "iterate"])
@pytest.mark.parametrize("mode", ["open", "local"])
async def test_a_generation_ends_with_the_task_that_waits_for_it(bench, codec, way, mode):
    async def consume():
        if way == "await":
            await generation
        async for _ in generation:
            pass

    async with client_of(codec, bench.transport()) as client:
        generation = client.generate("sky", SamplingParams(max_tokens=150, ignore_eos=True), mode=mode)
        waiting = asyncio.ensure_future(consume())
        await until(lambda: generation.text)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: generation.finish_reason)
        assert generation.finish_reason is FinishReason.CANCELLED


async def test_closing_the_client_is_told_to_who_waits_for_a_generation(codec):
    client = local_client(codec)
    generation = client.generate("sky", SamplingParams(max_tokens=150, ignore_eos=True))
    waiting = asyncio.ensure_future(generation._whole())
    await until(lambda: generation.text)
    await client.close()
    with pytest.raises(Cancelled, match="closed"):
        await waiting


@pytest.mark.parametrize("mode", ["open", "local"])
async def test_a_closed_client_says_so_and_may_be_closed_again(bench, codec, mode):
    client = client_of(codec, bench.transport())
    await client.close()
    await client.close()
    with pytest.raises(InvalidInput, match="client: is closed"):
        client.generate("sky", mode=mode)
    with pytest.raises(InvalidInput, match="client: is closed"):
        await client.connect()


# ---------------------------------------------------------------- the synchronous face


def test_the_sync_client_answers_streams_and_closes(codec):
    expected = codec.decode(drafted_greedily(chat(codec, "sky"), 10))
    with SyncClient(make_drafter(codec), codec=codec, mode="local") as client:
        finished = client.complete("sky", SamplingParams(max_tokens=10))
        assert isinstance(finished, Finished)
        assert finished.text == expected
        events = list(client.stream("sky", SamplingParams(max_tokens=10)))
        assert "".join(event.text for event in events if isinstance(event, Verified)) == expected
        for event in client.stream("sky", SamplingParams(max_tokens=150, ignore_eos=True)):
            assert isinstance(event, Verified)
            break  # leaving early cancels it
        assert client.complete("sky", SamplingParams(max_tokens=10)).text == expected
        left = client.stream("sky", SamplingParams(max_tokens=150, ignore_eos=True))
        next(left)
        assert client.ledger.entries() == []
    client.close()
    for use in (lambda: client.complete("sky"), lambda: next(left)):
        with pytest.raises(InvalidInput, match="client: is closed"):
            use()


def test_the_sync_client_raises_what_the_client_raises(codec):
    with pytest.raises(InvalidInput, match="verifier"):
        SyncClient(make_drafter(codec), codec=codec, mode="open")
    length = len(chat(codec, "sky"))
    with SyncClient(make_drafter(codec, fail_at=length + 2), codec=codec, mode="local") as client:
        with pytest.raises(InvalidInput, match="prompt"):
            client.complete("")
        with pytest.raises(DrafterError):
            client.complete("sky", SamplingParams(ignore_eos=True))


def test_the_sync_client_leaves_no_thread(codec):
    before = set(threading.enumerate())
    with SyncClient(make_drafter(codec), codec=codec, mode="local") as client:
        client.complete("sky", SamplingParams(max_tokens=3))
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before
