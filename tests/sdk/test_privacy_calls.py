"""What is private is checked before a byte leaves: modes, policies, views, and all the ways out beside the prompt."""

import pytest
from memory_verifier import CONTEXT, description, make_drafter

from edgedraft.client import Client
from edgedraft.errors import ForbiddenMode, InvalidInput, LeakError, PrivacyError
from edgedraft.privacy.detect import Detectors
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import GuardLimits
from edgedraft.privacy.policy import Policy
from edgedraft.privacy.view import WITHHELD
from edgedraft.prompt import Message, Mode, Part, Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import verify_pb2 as pb

SECRET = "4929123477"
PROMPT = Prompt((Message("user", (Part("Is it prime? "), Part(SECRET, secret=True))),))
EVERY = [pb.MODE_SEALED, pb.MODE_CLOAKED, pb.MODE_OPEN]


def silent(codec, **changes) -> MemoryTransport:
    """A verifier that nobody may speak to but to ask what it serves."""

    async def serve(peer) -> None:
        raise AssertionError("a stream was opened")

    return MemoryTransport(serve, description(codec, **{"modes": EVERY, **changes}))


def client_of(codec, transport=None, **settings) -> Client:
    return Client(make_drafter(codec), verifier=transport or silent(codec), codec=codec, **settings)


async def test_sealed_is_the_default(codec):
    async with client_of(codec) as client:
        generation = client.generate("sky")
        assert generation.ledger.mode == Mode.SEALED
        assert WITHHELD in client.public_view("sky").text
        assert "sky" not in client.public_view("sky").text


@pytest.mark.parametrize("mode", ["sealed", "cloaked", "open", "local"])
async def test_a_public_view_is_what_the_cloud_would_see(codec, mode):
    async with client_of(codec) as client:
        view = client.public_view(PROMPT, mode)
    assert (SECRET in view.text) == (mode == "open")
    assert codec.decode(view.tokens) == view.text
    assert bool(view.tokens) == (mode != "local")
    assert SECRET not in repr(view) or mode == "open"


@pytest.mark.parametrize("mode", ["sealed", "cloaked"])
async def test_the_opening_frame_is_the_public_view(bench, codec, mode):
    drafter = make_drafter(codec, vocab_size=codec.vocab_size)
    async with Client(drafter, verifier=bench.transport(), codec=codec, mode=mode) as client:
        generation = client.generate(PROMPT, SamplingParams(max_tokens=4))
        await generation
        expected = client.public_view(PROMPT)
    opening = next(entry for entry in generation.ledger if entry.kind == "open")
    assert opening.tokens == expected.tokens
    assert opening.text == expected.text
    assert opening.message.open.mode == {"sealed": pb.MODE_SEALED, "cloaked": pb.MODE_CLOAKED}[mode]


async def test_a_policy_forbids_a_mode_wherever_it_comes_from(codec):
    policy = Policy(never={"open", "local"})
    with pytest.raises(ForbiddenMode, match="open is forbidden"):
        client_of(codec, mode="open", policy=policy)
    async with client_of(codec, policy=policy) as client:
        for mode in ("open", "local"):
            with pytest.raises(ForbiddenMode, match=f"{mode} is forbidden"):
                client.generate("sky", mode=mode)
            with pytest.raises(ForbiddenMode):
                client.public_view("sky", mode)
        client.generate("sky", mode="cloaked")


async def test_a_secret_in_public_text_is_told_without_telling_it(codec):
    prompt = Prompt(public="Write to alice.miller@example.org about this.", private="We meet at noon.")
    async with client_of(codec) as client:
        for call in (client.generate, client.public_view):
            with pytest.raises(LeakError, match="characters 9 to 33") as caught:
                call(prompt)
            assert "alice" not in str(caught.value)
        client.generate(prompt, mode="open")


async def test_an_app_brings_its_own_detectors(codec):
    detectors = Detectors([("WORD", lambda text: [(text.index("prime"), text.index("prime") + 5)])])
    async with client_of(codec, detectors=detectors) as client:
        with pytest.raises(LeakError, match="word"):
            client.generate(PROMPT)


@pytest.mark.parametrize("mode", ["sealed", "cloaked"])
async def test_a_secret_leaves_by_no_other_field(codec, mode):
    async with client_of(codec, mode=mode, model=f"model {SECRET}") as client:
        with pytest.raises(LeakError, match="model"):
            client.generate(PROMPT)
    word = codec.encode(" gęślą")[0]
    asked = Prompt((Message("user", (Part("What is it? "), Part("gęślą", secret=True))),))
    async with client_of(codec, mode=mode) as client:
        with pytest.raises(LeakError, match=r"stop_token_ids\[1\]") as caught:
            client.generate(asked, SamplingParams(stop_token_ids=(70, word)))
        assert "gęślą" not in str(caught.value)
        client.generate(asked, SamplingParams(stop=("gęślą",)))  # stop strings stay on the device
    async with client_of(codec, mode=mode) as client:
        with pytest.raises(LeakError, match="stop_token_ids:"):  # each says one digit, all of them the secret
            client.generate(PROMPT, SamplingParams(stop_token_ids=tuple(codec.encode(SECRET))))


async def test_a_verifier_that_does_not_serve_the_mode_is_told_before_anything_is_sent(codec):
    for mode in ("sealed", "cloaked", "open"):
        others = [each for each in EVERY if pb.Mode.Name(each) != f"MODE_{mode.upper()}"]
        async with client_of(codec, silent(codec, modes=others), mode=mode) as client:
            with pytest.raises(InvalidInput, match="does not serve") as caught:
                await client.generate("sky")
            assert caught.value.field == "mode"


async def test_a_private_prompt_must_fit_the_drafter_and_a_public_one_the_target(codec):
    async with client_of(codec, silent(codec, context_length=8)) as client:
        with pytest.raises(InvalidInput, match="the context holds 8"):
            await client.generate("sky")
        with pytest.raises(InvalidInput, match=f"the context holds {CONTEXT}"):
            client.generate("sky " * CONTEXT)


async def test_settings_of_a_call_go_before_those_of_the_client(bench, codec):
    drafter = make_drafter(codec, vocab_size=codec.vocab_size)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    async with Client(drafter, verifier=bench.transport(), codec=codec, rule=DecisionRule(cut=1.0)) as client:
        sealed = client.generate("sky", sampling)
        await sealed
        opened = client.generate("sky", sampling, mode="open")
        await opened
        loose = client.generate("sky", sampling, rule=DecisionRule(theta=1.0, cut=0.0))
        await loose
        with pytest.raises(InvalidInput, match="secret_chars"):
            client.generate("sky", limits=GuardLimits(secret_chars=0))
    assert sealed.report.device_tokens > 0
    assert opened.report.device_tokens == loose.report.device_tokens == 0


def test_privacy_errors_are_errors_of_the_project():
    assert issubclass(ForbiddenMode, PrivacyError)
    assert issubclass(LeakError, PrivacyError)
