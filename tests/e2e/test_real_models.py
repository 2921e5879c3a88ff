"""End to end on real weights: a verifier process over mTLS, the compiled drafter, the compiled target.

The prompts are ours unless EDGEDRAFT_PROMPTS names another file of the same form.
"""

import asyncio
import json
import os
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from edgedraft.client import Client
from edgedraft.events import Verified
from edgedraft.prompt import Prompt
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft_apps.bench.prompts import DEFAULT_PROMPTS
from edgedraft_apps.local_verifier import local_verifier
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.engines.base import Sampling
from edgedraft_cloud.verification import probabilities

TOKENS = 64
PROMPT_COUNT = 20
PROMPTS = Path(os.environ.get("EDGEDRAFT_PROMPTS") or DEFAULT_PROMPTS)


def prompts(count: int) -> list[str]:
    """Every n-th prompt of the file, so that all its kinds are there."""
    lines = [json.loads(line)["turns"][0] for line in PROMPTS.read_text(encoding="utf-8").splitlines() if line.strip()]
    short = [text for text in lines if len(text) < 4000]
    return short[:: max(1, len(short) // count)][:count]


class Target:
    """The target by itself, one token at a time."""

    def __init__(self, folder: Path) -> None:
        self.codec = TextCodec.load(folder)
        self._model = CompiledModel.load(folder)
        self._cache = self._model.new_cache(4096)

    def chat(self, text: str) -> list[int]:
        return self.codec.encode_chat([{"role": "user", "content": text}])

    def logits(self, prompt: list[int]) -> np.ndarray:
        sequence = self._cache.new_sequence()
        try:
            return self._model.forward(self._cache, [Feed(sequence, prompt)])[0].copy()
        finally:
            self._cache.free(sequence)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        sequence = self._cache.new_sequence()
        tokens: list[int] = []
        feed = prompt
        while len(tokens) < count and not (tokens and tokens[-1] in self.codec.eos_token_ids):
            tokens.append(int(np.argmax(self._model.forward(self._cache, [Feed(sequence, feed)])[0])))
            feed = tokens[-1:]
        self._cache.free(sequence)
        return tokens


@pytest.fixture(scope="module")
def target(default_pair) -> Target:
    return Target(default_pair.target)


@pytest.fixture(scope="module")
def greedy(target) -> dict[str, list[int]]:
    """The target's own greedy tokens for each prompt."""
    return {text: target.greedy(target.chat(text), TOKENS) for text in prompts(PROMPT_COUNT)}


SETTINGS = {
    "plain": ((), 0.0, 4),
    "far away": ((), 0.1, 4),
    "token by token, cloud waits": (("--run-ahead", "0"), 0.0, 1),
    "tiny window, far away": (("--window", "3", "--max-block", "2", "--run-ahead", "0"), 0.03, 2),
    "large blocks": (("--window", "48", "--max-block", "32"), 0.02, 32),
}


@asynccontextmanager
async def device(pair, certificates, log, *arguments, rtt=0.0, block_size=4):
    """A client over mTLS, on one thread, of a verifier in a process of its own, on another."""
    async with AsyncExitStack() as stack:
        verifier = local_verifier(pair.target, certificates.server(), log=log, arguments=("--threads", "1", *arguments))
        port = await stack.enter_async_context(verifier)
        if rtt:
            port = (await stack.enter_async_context(WanProxy("127.0.0.1", port, rtt=rtt, jitter=rtt / 4))).port
        yield await stack.enter_async_context(
            Client(
                pair.drafter,
                verifier=f"localhost:{port}",
                identity=certificates.device("acme", "phone-1"),
                mode="open",
                threads=1,
                block_size=block_size,
            )
        )


async def tokens_of(generation) -> list[int]:
    return [token async for event in generation if isinstance(event, Verified) for token in event.tokens]


@pytest.mark.parametrize("name", SETTINGS)
async def test_greedy_output_is_the_targets_own(name, default_pair, target, greedy, certificates, tmp_path):
    """Token for token, for every prompt; one alone, then the others four at a time, whose blocks share steps."""
    arguments, rtt, block_size = SETTINGS[name]
    log = tmp_path / "verifier.log"
    sampling = SamplingParams(max_tokens=TOKENS)
    assert len(greedy) == PROMPT_COUNT
    texts = list(greedy)
    async with device(default_pair, certificates, log, *arguments, rtt=rtt, block_size=block_size) as client:
        alone = client.generate(texts[0], sampling)
        assert await tokens_of(alone) == greedy[texts[0]]
        assert alone.report.drafted > 0
        for start in range(1, PROMPT_COUNT, 4):
            together = [client.generate(text, sampling) for text in texts[start : start + 4]]
            found = await asyncio.gather(*map(tokens_of, together))
            assert found == [greedy[text] for text in texts[start : start + 4]]
            assert [generation.text for generation in together] == [target.codec.decode(tokens) for tokens in found]


async def test_sampling_follows_the_targets_distribution(default_pair, target, certificates, tmp_path):
    """At temperature 1 with a draft for every token but the first: the second token against the target's softmax."""
    runs = 300
    prompt = target.codec.encode(text := "Once upon a time, there was")
    first = int(np.argmax(target.logits(prompt)))
    found = np.zeros(len(target.logits(prompt)))
    judged = 0
    async with device(default_pair, certificates, tmp_path / "verifier.log", "--run-ahead", "0") as client:
        for seed in range(runs):
            generation = client.generate(Prompt(raw=text), SamplingParams(max_tokens=3, temperature=1.0, seed=seed))
            tokens = await tokens_of(generation)
            if tokens[0] == first:
                found[tokens[1]] += 1
                judged += generation.report.judged
    assert judged >= found.sum() >= runs / 2, "the first token was to be almost certain, and each second one drafted"
    expected = probabilities(target.logits([*prompt, first]), Sampling(temperature=1.0)) * found.sum()
    common = expected >= 5
    assert common.sum() >= 3
    observed = np.append(found[common], found[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    assert chisquare(observed, wanted).pvalue > 1e-4
