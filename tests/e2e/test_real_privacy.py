"""The privacy modes on real weights: a verifier process over mTLS, and what left read back from the ledger."""

from collections.abc import Generator
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest

from edgedraft.client import Client
from edgedraft.drafters.base import Feed
from edgedraft.drafters.tvm import TvmDrafter
from edgedraft.events import DecidedBy, Verified
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import Guard, placeholder_token
from edgedraft.privacy.view import make_views
from edgedraft.prompt import Mode, Prompt
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft_apps.bench.privacy.leaks import LeakFinder, Overheard, leaks_in
from edgedraft_apps.bench.privacy.planted import planted_prompts
from edgedraft_apps.local_verifier import local_verifier
from edgedraft_apps.wan import WanProxy

TOKENS = 40
SEALED = [
    Prompt(
        public="Answer my question about the note.", private="The cat of the baker is called Minka. What is it called?"
    ),
    Prompt(public="Write one sentence to my friend.", private="She is Maria, and we meet at noon on the old bridge."),
]
CLOAKED = [planted.prompt for planted in planted_prompts(3, seed=3)]


class Models:
    """Drafter and target by themselves, one token at a time."""

    def __init__(self, pair) -> None:
        self.codec = TextCodec.load(pair.target)
        self._target = CompiledModel.load(pair.target)
        self._drafter = TvmDrafter.load(pair.drafter)

    def target(self, prompt: list[int]) -> Generator[int, int, None]:
        """The target's next tokens; after each of them, told what stands there instead."""
        cache = self._target.new_cache(1024)
        sequence = cache.new_sequence()
        feed = prompt
        while True:
            feed = [(yield int(np.argmax(self._target.forward(cache, [Feed(sequence, feed)])[0])))]

    def greedy(self, prompt: list[int]) -> list[int]:
        target = self.target(prompt)
        out = [next(target)]
        while len(out) < TOKENS and out[-1] not in self.codec.eos_token_ids:
            out.append(target.send(out[-1]))
        return out

    def sealed(self, prompt: Prompt, rule: DecisionRule) -> tuple[list[int], list[bool]]:
        """What the rule of sealed mode comes to, and who decided what."""
        views = make_views(prompt, Mode.SEALED)
        private, public = (self.codec.encode_chat(view.messages) for view in (views.device, views.public))
        secrets = [secret.text for secret in views.secrets]
        guard = Guard(secrets, views.private_texts, self.codec.decode(public), self.codec.token_bytes)
        placeholder = placeholder_token(self.codec.encode, self.codec.token_bytes)
        sequences = [self._drafter.new_sequence() for _ in range(2)]
        target, trail = self.target(public), guard.root()
        proposed = next(target)
        text, by_device = [], []
        while len(text) < TOKENS and not (text and text[-1] in self.codec.eos_token_ids):
            contrast = self._drafter.contrast(Feed(sequences[0], private), Feed(sequences[1], public), 32)
            best = contrast.candidates.ids[0]
            held = guard.step(trail, best)[1]
            plausible = rule.takes(contrast, proposed) and not guard.step(trail, proposed)[1]
            taken = not held and not rule.device_decides(contrast) and plausible
            text.append(proposed if taken else best)
            by_device.append(not taken)
            trail, _ = guard.step(trail, text[-1])
            trail.known = taken
            private, public = [text[-1]], [placeholder if held else text[-1]]
            proposed = target.send(public[0])
        for sequence in sequences:
            self._drafter.free(sequence)
        return text, by_device


@pytest.fixture(scope="module")
def models(default_pair) -> Models:
    return Models(default_pair)


@asynccontextmanager
async def device(pair, certificates, log, *arguments: str, rtt: float = 0.0, **settings):
    async with AsyncExitStack() as stack:
        verifier = local_verifier(pair.target, certificates.server(), log=log, arguments=("--threads", "1", *arguments))
        port = await stack.enter_async_context(verifier)
        if rtt:
            port = (await stack.enter_async_context(WanProxy("127.0.0.1", port, rtt=rtt, jitter=rtt / 4))).port
        identity = certificates.device("acme", "phone-1")
        yield await stack.enter_async_context(
            Client(pair.drafter, verifier=f"localhost:{port}", identity=identity, threads=1, **settings)
        )


async def decided(generation) -> tuple[list[int], list[bool]]:
    events = [event async for event in generation if isinstance(event, Verified)]
    tokens = [token for event in events for token in event.tokens]
    return tokens, [event.by is DecidedBy.DEVICE for event in events for _ in event.tokens]


def overheard(generation, codec: TextCodec) -> Overheard:
    """All frames of a generation, as the verifier had them."""
    heard = Overheard(codec.token_bytes)
    for entry in generation.ledger:
        getattr(heard, entry.direction)(entry.frame)
    return heard


@pytest.mark.parametrize("rtt", [0.0, 0.08])
async def test_sealed_is_what_its_rule_says(default_pair, models, certificates, tmp_path, rtt):
    rule = DecisionRule()
    sampling = SamplingParams(max_tokens=TOKENS)
    async with device(default_pair, certificates, tmp_path / "verifier.log", rtt=rtt, rule=rule) as client:
        for prompt in SEALED:
            generation = client.generate(prompt, sampling)
            found = await decided(generation)
            assert found == models.sealed(prompt, rule)
            assert True in found[1]
            assert generation.text == models.codec.decode(found[0])
            private = prompt.messages[0].parts[-1].text
            assert private not in overheard(generation, models.codec).sent


async def test_sealed_lets_nothing_out_that_is_planted(default_pair, models, certificates, tmp_path):
    async with device(default_pair, certificates, tmp_path / "verifier.log", rtt=0.05) as client:
        for planted in planted_prompts(4, seed=5):
            generation = client.generate(planted.prompt, SamplingParams(max_tokens=TOKENS))
            await generation
            public = client.public_view(planted.prompt).text
            assert leaks_in([overheard(generation, models.codec)], LeakFinder(planted, public)) == []


async def test_cloaked_is_the_targets_own_on_the_cloaked_prompt(default_pair, models, certificates, tmp_path):
    async with device(default_pair, certificates, tmp_path / "verifier.log", rtt=0.05, mode="cloaked") as client:
        for prompt in CLOAKED:
            generation = client.generate(prompt, SamplingParams(max_tokens=TOKENS))
            tokens, by_device = await decided(generation)
            assert tokens == models.greedy(list(client.public_view(prompt).tokens))
            assert not any(by_device)
