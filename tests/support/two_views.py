"""A drafter with a mind of its own where it sees the private prompt, and what sealed mode must make of it."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from toy import toy_target

from edgedraft.drafters.scripted import ScriptedDrafter
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import Guard
from edgedraft.text import TextCodec

RULE = DecisionRule(theta=0.4, cut=0.2)
STOPS = (2, 0)
Text = tuple[int, ...]


@dataclass
class TwoViewScript:
    """Best choices behind a text, with the private prompt and without it.

    Args:
        codec: The tokenizer.
        private: Token ids of the whole prompt.
        public: Token ids of what the cloud sees of it.
        says: Tokens that it says where the private prompt speaks.
    """

    codec: TextCodec
    private: list[int]
    public: list[int]
    says: list[int] = field(default_factory=lambda: list(range(70, 90)))

    def __call__(self, tokens: Text) -> Text:
        if tokens[: len(self.private)] == tuple(self.private):
            return self.own(tokens[len(self.private) :])
        return self.other(tokens[len(self.public) :])

    def own(self, text: Text) -> Text:
        """With the private prompt; the public choices where it has nothing to say."""
        plain = self.other(text)
        if len(text) % 24 < 16:
            return self.says[len(text) % len(self.says)], plain[0]
        value = zlib.crc32(repr(("private", *text[-3:])).encode())
        if value % 31 == 0 and plain[0] not in STOPS:
            return STOPS[0], plain[0]
        return plain

    def other(self, text: Text) -> Text:
        """Without it: right most of the time as the target is, which reads the public prompt."""
        value = zlib.crc32(repr(("public", *text[-4:])).encode())
        right = toy_target((*self.public, *text))
        return (right if value % 4 else right + 1, right if value % 5 else right + 2, 3)

    def drafter(self, **settings) -> ScriptedDrafter:
        facts = {"vocab_size": self.codec.vocab_size, "tokenizer_fingerprint": self.codec.fingerprint}
        return ScriptedDrafter(self, **{**facts, **settings})


@dataclass
class Outcome:
    """What sealed mode comes to, position by position."""

    text: list[int] = field(default_factory=list)
    wire: list[int] = field(default_factory=list)
    by_device: list[bool] = field(default_factory=list)

    def put(self, token: int, wire: int, by_device: bool) -> None:
        self.text.append(token)
        self.wire.append(wire)
        self.by_device.append(by_device)


def sealed_outcome(
    script: TwoViewScript, max_tokens: int, placeholder: int, guard: Guard, *, rule: DecisionRule = RULE
) -> Outcome:
    """The rule of sealed mode where nobody runs ahead and nothing is in flight."""
    out, trail = Outcome(), guard.root()
    holds: Callable[[int], bool] = lambda token: guard.step(trail, token)[1]  # noqa: E731  it follows the trail
    while len(out.text) < max_tokens and (not out.text or out.text[-1] not in STOPS):
        own, other = (
            dict(zip(ids, (0.5, 0.25, 0.125), strict=False))
            for ids in (script.own(tuple(out.text)), script.other(tuple(out.wire)))
        )
        left_over = abs(sum(own.values()) - sum(other.values()))
        distance = (sum(abs(own.get(i, 0) - other.get(i, 0)) for i in own | other) + left_over) / 2
        best = next(iter(own))
        proposed = toy_target((*script.public, *out.wire))
        if distance > rule.theta or holds(best):
            out.put(best, placeholder if holds(best) else best, True)
        elif proposed == best or (own.get(proposed, 0) >= rule.cut * own[best] and not holds(proposed)):
            out.put(proposed, proposed, False)
        else:
            out.put(best, best, True)
        trail, _ = guard.step(trail, out.text[-1])
        trail.known = not out.by_device[-1]
    return out
