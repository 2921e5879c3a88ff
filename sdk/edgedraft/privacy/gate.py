"""The rule of mode `sealed`: the target decides what is public, the device decides what is private."""

from __future__ import annotations

from dataclasses import dataclass

from edgedraft.drafters.base import Contrast
from edgedraft.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """Who decides a position, from what the drafter expects there with the private prompt and without it.

    Where the two views are far apart, the private prompt has much to do with the next word, and the device decides.
    Elsewhere the target does, unless what it wants is implausible to who knows the private prompt.

    Attributes:
        theta: Distance (total variation, 0 to 1) above which the device decides; 1 leaves all to the target, but for
            the cut.
        cut: Share of the best candidate's probability that the target's token must have under the private view (as the
            plausibility constraint of contrastive decoding, arXiv 2210.15097); 0 takes every token.

    Raises:
        InvalidInput: A value is out of range.
    """

    theta: float = 0.6
    cut: float = 0.1

    def __post_init__(self) -> None:
        for name in ("theta", "cut"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"rule.{name}", f"is {getattr(self, name)}", "use 0 to 1")

    def device_decides(self, contrast: Contrast) -> bool:
        """Whether the position is the device's, whatever the target says."""
        return contrast.distance > self.theta

    def takes(self, contrast: Contrast, token: int) -> bool:
        """Whether the device takes a token of the target at a position that is the target's to decide.

        A token beyond the candidates of the contrast counts as implausible, unless every token is taken.
        """
        if self.cut == 0:
            return True
        candidates = contrast.candidates
        least = self.cut * candidates.probs[0]
        return any(
            token == each and probability >= least
            for each, probability in zip(candidates.ids, candidates.probs, strict=True)
        )
