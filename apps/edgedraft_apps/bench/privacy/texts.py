"""What a model expects after many texts at once; texts that begin alike share the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edgedraft.runtime.compiled import CompiledModel
from edgedraft.runtime.kv import Feed, SequenceId
from edgedraft_apps.bench.privacy.rules import LogProbs, log_softmax

Text = tuple[int, ...]

_LONG: Final = 8  # tokens from which on a feed is a beginning, which others may share


class TextPool:
    """The KV cache of a model, kept by the texts that it holds.

    Args:
        model: The model.
        tokens: Tokens of all texts together, shared ones counted once.
        texts: Texts at a time.
    """

    def __init__(self, model: CompiledModel, tokens: int, texts: int) -> None:
        self._model = model
        self._cache = model.new_cache(tokens, sequences=2 * texts + 1)  # while they grow, the shorter ones are held too
        self._held: dict[Text, SequenceId] = {}
        self._expected: dict[Text, LogProbs] = {}

    def expect(self, texts: Iterable[Text]) -> dict[Text, LogProbs]:
        """Log-probabilities of the next token after each text, float32 [vocab]; all other texts are forgotten.

        Raises:
            InvalidInput: A text is empty or too long for the model.
            CacheFull: They are too many or too long together.
        """
        wanted = set(texts)
        feeds: dict[Text, Feed] = {}
        for text in sorted(wanted - self._expected.keys()):
            start = self._fork(text)
            feed = Feed(self._held[text], text[start:])
            if len(feed.tokens) < _LONG:
                feeds[text] = feed
            else:  # at once, so that the next text can share it
                self._forward({text: feed})
        if feeds:
            self._forward(feeds)
        for text in self._held.keys() - wanted:
            self._cache.free(self._held.pop(text))
            del self._expected[text]
        return dict(self._expected)

    def _forward(self, feeds: dict[Text, Feed]) -> None:
        logits = self._model.forward(self._cache, list(feeds.values()))
        self._expected |= {text: log_softmax(row) for text, row in zip(feeds, logits, strict=True)}

    def _fork(self, text: Text) -> int:
        """Hold a text by sharing the longest beginning there is; returns the length of that."""
        best, length = text[:-1], len(text) - 1
        if best not in self._expected:
            # The last token has to be fed, as its logits are what is asked for.
            shared = ((_shared(held, text[:-1]), held) for held in self._expected)
            length, best = max(shared, default=(0, ()))
        self._held[text] = self._cache.fork(self._held[best], length) if length else self._cache.new_sequence()
        return length


def _shared(one: Text, other: Text) -> int:
    """How many tokens two texts begin with alike."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
