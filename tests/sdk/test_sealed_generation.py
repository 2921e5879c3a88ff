"""Mode `sealed` from the client to a real server and back, with a scripted drafter and a scripted target."""

import pytest
from tenacity import wait_none
from toy import toy_greedy
from two_views import RULE, TwoViewScript, sealed_outcome

from edgedraft import resume
from edgedraft.client import Client
from edgedraft.errors import VerifierUnavailable
from edgedraft.events import DecidedBy, Finished, FinishReason, Verified
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import Guard, placeholder_token
from edgedraft.prompt import Message, Part, Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.transport.base import Stream, Transport

PUBLIC = "Why is the sky blue?"
NOTE = "Zażółć gęślą jaźń; light scatters in the air, naïve café, because"
SECRET = "4929123477"


def prompt(secret: str = SECRET) -> Prompt:
    parts = (Part(f"{PUBLIC}\n"), Part(f"{NOTE} ", private=True), Part(secret, secret=True))
    return Prompt((Message("user", parts),))


def sealed(bench, codec, asked: Prompt, says=None, **settings) -> tuple[Client, TwoViewScript]:
    with_views = Client(TwoViewScript(codec, [], []).drafter(), codec=codec, mode="local")
    script = TwoViewScript(
        codec, codec.encode_chat(asked.as_dicts()), list(with_views.public_view(asked, "sealed").tokens)
    )
    if says is not None:
        script.says = says
    facts = {"verifier": bench.transport(), "codec": codec, "rule": RULE, **settings}
    return Client(script.drafter(), **facts), script


def guard_of(codec, script: TwoViewScript) -> Guard:
    return Guard([SECRET], [f"{NOTE} {SECRET}"], codec.decode(script.public), codec.token_bytes)


@pytest.mark.parametrize("bench", [{"sealed_run_ahead": ahead, "window": 8} for ahead in (0, 1, 8)], indirect=True)
@pytest.mark.parametrize("says", ["its own words", "the note"])
async def test_text_wire_and_who_decided_are_what_the_rule_says(bench, codec, says):
    client, script = sealed(bench, codec, prompt(), codec.encode(NOTE) if says == "the note" else None)
    expected = sealed_outcome(script, 100, placeholder_token(codec.encode, codec.token_bytes), guard_of(codec, script))
    assert len(expected.text) > 20
    async with client:
        generation = client.generate(prompt(), SamplingParams(max_tokens=100))
        events = [event async for event in generation]
    verified = [event for event in events if isinstance(event, Verified)]
    assert [token for event in verified for token in event.tokens] == expected.text
    assert [event.by is DecidedBy.DEVICE for event in verified for _ in event.tokens] == expected.by_device
    assert generation.text == codec.decode(expected.text)
    report = generation.report
    assert report.device_tokens == sum(expected.by_device) > 0
    held = sum(wire != token for wire, token in zip(expected.wire, expected.text, strict=True))
    assert report.held_back == held
    assert (held > 0) == (says == "the note")
    assert isinstance(events[-1], Finished)
    assert generation.finish_reason is (FinishReason.STOP if expected.text[-1] in (0, 2) else FinishReason.LENGTH)


async def test_neighbours_that_the_same_side_decided_come_as_one_event(bench, codec):
    client, _ = sealed(bench, codec, prompt())
    async with client:
        events = [event async for event in client.generate(prompt(), SamplingParams(max_tokens=60, ignore_eos=True))]
    verified = [event for event in events if isinstance(event, Verified) and event.tokens]
    assert [event.position for event in verified] == [
        sum(len(before.tokens) for before in verified[:index]) for index in range(len(verified))
    ]
    assert {event.by for event in verified} == set(DecidedBy)


async def test_where_theta_is_one_and_every_token_is_taken_the_target_decides(bench, codec):
    client, script = sealed(bench, codec, prompt(), rule=DecisionRule(theta=1.0, cut=0.0))
    async with client:
        generation = client.generate(prompt(), SamplingParams(max_tokens=60))
        await generation
    assert generation.text == codec.decode(toy_greedy(script.public, 60))
    assert generation.report.device_tokens == generation.report.vetoes == 0


async def test_where_theta_is_zero_the_device_decides_whatever_is_private(bench, codec):
    client, script = sealed(bench, codec, prompt(), rule=DecisionRule(theta=0.0, cut=1.0))
    out: list[int] = []
    while len(out) < 60 and out[-1:] != [2]:
        out.append(script.own(tuple(out))[0])
    async with client:
        generation = client.generate(prompt(), SamplingParams(max_tokens=60))
        assert await generation == codec.decode(out)
    assert generation.report.vetoes > 0


class Breaking(Transport):
    """Loses each stream after some frames of the verifier, a different number each time."""

    def __init__(self, transport: Transport, lives: list[int]) -> None:
        self._transport = transport
        self._lives = lives
        self.opened = 0

    async def describe(self, request: bytes) -> bytes:
        return await self._transport.describe(request)

    async def open_stream(self) -> Stream:
        self.opened += 1
        return BreakingStream(await self._transport.open_stream(), self._lives.pop(0) if self._lives else None)

    async def close(self) -> None:
        await self._transport.close()


class BreakingStream(Stream):
    def __init__(self, stream: Stream, life: int | None) -> None:
        self._stream = stream
        self._life = life

    async def send(self, frame: bytes) -> None:
        await self._stream.send(frame)

    async def receive(self) -> bytes | None:
        data = await self._stream.receive()
        if self._life is not None:
            self._life -= 1
            if self._life < 0:
                await self._stream.close()
                raise VerifierUnavailable("the link was lost")
        return data

    async def close(self) -> None:
        await self._stream.close()


async def test_lost_streams_change_nothing_of_it(bench, codec, monkeypatch):
    monkeypatch.setattr(resume, "BACKOFF", wait_none())
    transport = Breaking(bench.transport(), [3, 1, 3, 2, 4])
    client, script = sealed(bench, codec, prompt(), verifier=transport)
    placeholder = placeholder_token(codec.encode, codec.token_bytes)
    expected = sealed_outcome(script, 100, placeholder, guard_of(codec, script))
    async with client:
        generation = client.generate(prompt(), SamplingParams(max_tokens=100))
        assert await generation == codec.decode(expected.text)
    assert generation.report.resumes == transport.opened - 1 >= 2
    assert generation.report.device_tokens == sum(expected.by_device)


async def test_at_a_temperature_the_device_draws_what_it_decides(bench, codec):
    client, _ = sealed(bench, codec, prompt(), rule=DecisionRule(theta=0.0, cut=1.0))
    sampling = SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True)
    async with client:
        answers = [await client.generate(prompt(), sampling) for _ in range(3)]
    assert len(set(answers)) > 1


async def test_public_words_that_make_a_private_one_without_their_spaces_are_sent(bench, codec):
    parts = (Part("Shorten and rewrite the note. "), Part("Andrew Miller", secret=True, kind="person"))
    client, _ = sealed(bench, codec, Prompt((Message("user", parts),)))
    async with client:
        generation = client.generate(Prompt((Message("user", parts),)), SamplingParams(max_tokens=8))
        await generation
    assert "Shorten and rewrite the note." in next(iter(generation.ledger)).text
