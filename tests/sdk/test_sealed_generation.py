"""Mode `sealed` from the client to a real server and back, with a scripted drafter and a scripted target."""

import pytest
from toy import toy_greedy
from two_views import RULE, TwoViewScript, sealed_outcome

from edgedraft.client import Client
from edgedraft.events import DecidedBy, Finished, FinishReason, Verified
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import Guard, placeholder_token
from edgedraft.prompt import Message, Part, Prompt
from edgedraft.sampling import SamplingParams

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
