"""The law of given tokens, against any engine: what a work settles is what a naive target would, token by token.

The reference is the engine itself where nothing is drafted: the token that it puts after a text that was just opened.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgedraft_cloud.engines.base import Engine, Outcome, Sampling, Work

GREEDY = Sampling()
Text = tuple[int, ...]


@dataclass
class Reference:
    """The target's own next tokens."""

    engine: Engine
    _known: dict[Text, int] = field(default_factory=dict)
    _count: int = 0

    async def after(self, texts: Sequence[Text]) -> list[int]:
        """The token after each text."""
        asked = {text: f"reference-{self._count}-{i}" for i, text in enumerate(set(texts) - self._known.keys())}
        self._count += 1
        for text, name in asked.items():
            await self.engine.open(name, text, GREEDY, "reference")
        found = await outcomes_of(self.engine, asked.values())
        for text, name in asked.items():
            (self._known[text],) = found[name].tokens
            self.engine.release(name)
        return [self._known[text] for text in texts]

    async def judge(self, text: Text, work: Work) -> tuple[Text, int]:
        """What a work behind a text settles, and how many of its tokens are accepted: no batch, no cache, no trick."""
        for index, token in enumerate(work.tokens):
            if work.given and work.given[index]:
                continue
            (right,) = await self.after([(*text, *work.tokens[:index])])
            if right != token:
                return (*work.tokens[:index], right), index
        return (*work.tokens, *await self.after([(*text, *work.tokens)])), len(work.tokens)


async def outcomes_of(engine: Engine, names: Iterable[str]) -> dict[str, Outcome]:
    """One outcome of each session, over as many steps as it takes."""
    missing, found = set(names), {}
    while missing:
        for outcome in (await engine.step()).outcomes:
            assert outcome.error is None
            found[outcome.session] = outcome
            missing.discard(outcome.session)
    return found


async def draw_works(reference: Reference, texts: Sequence[Text], block: int, draws: random.Random) -> list[Work]:
    """A work behind each text: drafts right and wrong, given tokens that are the target's and others, in any order."""
    lengths = [draws.randint(0, block) for _ in texts]
    chains: list[list[tuple[int, bool]]] = [[] for _ in texts]
    vocabulary = reference.engine.info.vocab_size
    for index in range(max(lengths)):
        growing = [i for i, length in enumerate(lengths) if index < length]
        ends = [(*texts[i], *(token for token, _ in chains[i])) for i in growing]
        for i, right in zip(growing, await reference.after(ends), strict=True):
            given, wrong = draws.random() < 0.5, draws.random() < 0.3
            chains[i].append(((right + draws.randrange(1, 99)) % vocabulary if wrong else right, given))
    return [
        Work(f"s{i}", tuple(token for token, _ in chain), tuple(given for _, given in chain))
        for i, chain in enumerate(chains)
    ]


async def check_law(engine: Engine, prompts: Sequence[Sequence[int]], *, rounds: int, block: int, seed: int) -> int:
    """Let sessions go through works with given tokens, all in one batch each time; how many of those settled."""
    reference, draws = Reference(engine), random.Random(seed)
    names = [f"s{i}" for i in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        await engine.open(name, prompt, GREEDY, "salt")
    found = await outcomes_of(engine, names)
    texts = [(*prompt, *found[name].tokens) for name, prompt in zip(names, prompts, strict=True)]
    given = 0
    for _ in range(rounds):
        works = await draw_works(reference, texts, block, draws)
        engine.submit(works)
        found = await outcomes_of(engine, names)
        for i, work in enumerate(works):
            outcome = found[work.session]
            assert (outcome.tokens, outcome.accepted) == await reference.judge(texts[i], work)
            assert outcome.judged == len(work.tokens)
            texts[i] += outcome.tokens
            given += sum(work.given[: outcome.accepted])
    for name in names:
        engine.release(name)
    return given
