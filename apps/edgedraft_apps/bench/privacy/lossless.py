"""Mode `cloaked` beside plain greedy decoding of the target on the same cloaked prompt: the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from edgedraft.client import Client
from edgedraft.events import Finished, Verified
from edgedraft.prompt import Mode
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft_apps.bench.privacy.planted import KINDS, planted_prompts
from edgedraft_apps.bench.privacy.texts import TextPool
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.suite import Suite

_TOKENS: Final = 48


async def lossless_rows(suite: Suite, drafter: Path, target: Path, count: int) -> list[Row]:
    """Ask a verifier on the embedded engine, and the target by itself.

    Args:
        suite: The surroundings.
        drafter: Artifact folder of the drafter.
        target: Artifact folder of the target.
        count: How many prompts with planted secrets.

    Raises:
        EdgedraftError: A model or the verifier failed.
    """
    prompts, answers, rates = [], [], []
    (device,) = suite.devices("cloaked", 1)
    async with suite.verifier("embedded", str(target)) as verifier:
        client = Client(drafter, verifier=verifier.address, identity=device, mode=Mode.CLOAKED)
        async with client:
            for number, planted in enumerate(planted_prompts(count)):
                suite.progress("cloaked", number, count, "prompts")
                prompts.append(client.public_view(planted.prompt).tokens)
                tokens: list[int] = []
                async for event in client.generate(planted.prompt, SamplingParams(max_tokens=_TOKENS)):
                    if isinstance(event, Verified):
                        tokens += event.tokens
                    elif isinstance(event, Finished) and event.report.acceptance_rate is not None:
                        rates.append(event.report.acceptance_rate)
                answers.append(tuple(tokens))
    plain = _greedy(suite, target, prompts)
    same = sum(answer == each for answer, each in zip(answers, plain, strict=True))
    case = f"{count} prompts with secrets of {min(count, len(KINDS))} kinds, up to {_TOKENS} tokens"
    return [
        Row.exactly("cloaked answers that are the target's own", case, same, count),
        Row("acceptance rate α", f"cloaked, {case}", mean(rates)),
    ]


def _greedy(suite: Suite, target: Path, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The target's own answers."""
    codec = TextCodec.load(target)
    pool = TextPool(CompiledModel.load(target), sum(map(len, prompts)) + len(prompts) * _TOKENS, len(prompts))
    texts = list(prompts)
    for step in range(_TOKENS):
        suite.progress("the target by itself", step, _TOKENS, "tokens")
        going = [text for text in texts if text in prompts or text[-1] not in codec.eos_token_ids]
        expected = pool.expect(going) if going else {}
        texts = [(*text, int(np.argmax(expected[text]))) if text in expected else text for text in texts]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
