"""A verifier that guesses at secrets and says strange things cannot make the device send them, or confirm a guess."""

import random
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from memory_verifier import FINISHED, VOCAB, description, opened, verdict

from edgedraft.client import Client
from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.errors import ProtocolError, VerifierError
from edgedraft.privacy.gate import DecisionRule
from edgedraft.prompt import Message, Part, Prompt
from edgedraft.sampling import SamplingParams
from edgedraft.transport.memory import MemoryTransport
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.bench.privacy.leaks import LeakFinder, Overheard, leaks_in
from edgedraft_apps.bench.privacy.planted import Planted

PUBLIC = "Why is it so?"
NOTE = "light scatters in the air because naïve café Zażółć gęślą jaźń"
SECRETS = ("4929123477", "alice.miller@example.org", "hunter2pass", "Ana Ríos", "9317")
MODES = {"sealed": pb.MODE_SEALED, "cloaked": pb.MODE_CLOAKED}


def planted(secret: str) -> Planted:
    return Planted(PUBLIC, f"{NOTE}. {secret} is it.", (("secret", secret),))


class Eager:
    """A drafter that goes on with the private text wherever it sees a beginning of it, and begins it by itself."""

    def __init__(self, codec, asked: Planted) -> None:
        secret = asked.secrets[0][1]
        self._lines = [codec.encode(text) for text in (secret, f" {secret}", asked.private, NOTE, secret.upper())]

    def __call__(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        for reach in (4, 3, 2, 1):
            for line in self._lines:
                for start in range(len(line) - reach):
                    if tuple(line[start : start + reach]) == tokens[-reach:]:
                        return line[start + reach], 75
        return self._lines[len(tokens) % len(self._lines)][0], 75


class Guesser:
    """Accepts what comes, then says a piece of a secret or anything else; now and then it says it before."""

    def __init__(self, codec, guesses: list[int], draws: random.Random) -> None:
        self.heard = Overheard(codec.token_bytes)
        self._guesses = guesses
        self._draws = draws

    async def serve(self, peer) -> None:
        settled: list[int] = []
        data = await peer.receive()
        self.heard.up(data)
        opening = pb.ClientFrame.FromString(data).open
        most = opening.limits.max_tokens
        self._say(peer, opened())
        block = 0
        while True:
            if len(settled) < most and self._draws.random() < 0.5:
                start = self._draws.randrange(len(self._guesses))
                said = self._guesses[start : start + self._draws.randint(1, 5)][: most - len(settled)]
                self._say(peer, verdict(len(settled), *said, block=block))
                settled += said
            if len(settled) == most and opening.mode != pb.MODE_SEALED:
                peer.send(FINISHED.SerializeToString())
            data = await peer.receive()
            if data is None:
                return
            self.heard.up(data)
            draft = pb.ClientFrame.FromString(data).draft
            if not draft.tokens:
                continue
            block = draft.block
            if draft.given or draft.position == len(settled):
                del settled[draft.position :]
                settled += draft.tokens
            self._say(peer, verdict(draft.position, *settled[draft.position :], block=block))

    def _say(self, peer, frame: pb.ServerFrame) -> None:
        data = frame.SerializeToString()
        self.heard.down(data)
        peer.send(data)


async def converse(codec, mode: str, secret: str, rule: DecisionRule, seed: int) -> Overheard:
    asked, draws = planted(secret), random.Random(seed)
    guesses = [*codec.encode(secret), *codec.encode(f" {NOTE}"), *(draws.randrange(VOCAB) for _ in range(8))]
    guesses = [token for token in guesses if token < codec.vocab_size]
    hostile = Guesser(codec, guesses, draws)
    drafter = ScriptedDrafter(Eager(codec, asked), vocab_size=codec.vocab_size, tokenizer_fingerprint=codec.fingerprint)
    transport = MemoryTransport(hostile.serve, description(codec, modes=[MODES[mode]]))
    parts = (Part(f"{PUBLIC} {NOTE}. ", private=True), Part(secret, secret=True), Part(" is it.", private=True))
    prompt = Prompt((Message("user", (Part(PUBLIC), *parts)),))
    async with Client(drafter, verifier=transport, codec=codec, mode=mode, rule=rule, resume_seconds=0) as client:
        generation = client.generate(prompt, SamplingParams(max_tokens=60, ignore_eos=True))
        with suppress(ProtocolError, VerifierError):  # it broke the protocol; what matters is what it heard
            await generation
    return hostile.heard


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    secret=st.sampled_from(SECRETS),
    rule=st.builds(DecisionRule, theta=st.sampled_from([0.0, 0.4, 1.0]), cut=st.sampled_from([0.0, 0.1, 1.0])),
    seed=st.integers(0, 10_000),
)
@example("Ana Ríos", DecisionRule(theta=0.0, cut=0.0), 5755)  # a first name behind the words that are seen before it
async def test_nothing_private_leaves_whatever_the_target_says(codec, mode, secret, rule, seed):
    heard = await converse(codec, mode, secret, rule, seed)
    assert heard.prompt
    if mode == "sealed":
        assert heard.sent
    assert leaks_in([heard], LeakFinder(planted(secret), f"{PUBLIC} {heard.prompt}")) == []
