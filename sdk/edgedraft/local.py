"""Mode `local`: the drafter answers alone, and nothing leaves the device."""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate
from typing import Final

from edgedraft.call import Call
from edgedraft.drafters.base import Candidates
from edgedraft.events import DecidedBy, Finished, FinishReason, Verified
from edgedraft.generation import Generation
from edgedraft.report import Meter
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft.worker import DraftWorker

SAMPLED_CANDIDATES: Final = 64
"""Most probable tokens that sampling looks at; what lies beyond them is cut, as `top_k` would."""


async def generate_locally(
    generation: Generation,
    worker: DraftWorker,
    codec: TextCodec,
    call: Call,
) -> None:
    """Generate with the drafter alone and push the events.

    Raises:
        DrafterError: The drafter failed.
    """
    prompt, sampling, transcript = call.device_ids, call.sampling, call.transcript
    loop = asyncio.get_running_loop()
    meter = Meter(started=loop.time(), prompt_tokens=len(prompt))
    draws = random.Random(sampling.seed)
    stops = {*(() if sampling.ignore_eos else codec.eos_token_ids), *sampling.stop_token_ids}
    limit = min(sampling.max_tokens, worker.info.context_length - len(prompt))
    cancelled = asyncio.Event()
    generation.bind_cancel(cancelled.set)
    tokens: list[int] = []
    reason = FinishReason.LENGTH
    context = await worker.context()
    try:
        while len(tokens) < limit:
            count = SAMPLED_CANDIDATES if sampling.temperature > 0 else 1
            token = choose(await context.next(prompt + tokens, count), sampling, draws)
            if cancelled.is_set():
                reason = FinishReason.CANCELLED
                break
            meter.settled_tokens(loop.time(), 1)
            text = transcript.settle((token,))
            generation.push(Verified(len(tokens), (token,), text, DecidedBy.DEVICE))
            tokens.append(token)
            if transcript.stopped or token in stops:
                reason = FinishReason.STOP
                break
    finally:
        await context.close()
    tail = transcript.finish()
    if tail:
        generation.push(Verified(len(tokens), (), tail, DecidedBy.DEVICE))
    generation.push(Finished(reason, generation.text, meter.report(loop.time())))


def choose(candidates: Candidates, sampling: SamplingParams, draws: random.Random) -> int:
    """Choose among the drafter's candidates as the sampling settings say.

    Args:
        candidates: Best first, with probabilities at temperature 1.
        sampling: Temperature, top_k and top_p are applied in this order.
        draws: Where the randomness comes from.
    """
    if sampling.temperature == 0:
        return candidates.ids[0]
    count = sampling.top_k or len(candidates.ids)
    # Relative to the best, so that at a low temperature they do not all become 0.
    best = candidates.probs[0]
    weights = [(probability / best) ** (1 / sampling.temperature) for probability in candidates.probs[:count]]
    nucleus = sampling.top_p * sum(weights)
    kept = next((index for index, mass in enumerate(accumulate(weights), 1) if mass >= nucleus), len(weights))
    return draws.choices(candidates.ids[:kept], weights[:kept])[0]
