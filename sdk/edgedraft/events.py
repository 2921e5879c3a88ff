"""What an app sees of a generation, in order.

The `text` of all `Verified` events, joined, is the answer. `Drafted` text is provisional and follows the verified text;
a `Revised` takes provisional text back from a position on. What is verified stays, also where the verifier is lost and
found again in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edgedraft.report import Report


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The target ended the text, or a stop string or stop token came."""
    LENGTH = "length"
    """`max_tokens` or the end of the context."""
    CANCELLED = "cancelled"
    """The app cancelled it."""


class DecidedBy(StrEnum):
    """Who decided a token."""

    TARGET = "target"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafter proposes a token; show its text as provisional.

    Attributes:
        position: Position among the generated tokens, from 0.
        token: Token id.
        text: Provisional text that it adds; may be empty (half a character).
        probability: The drafter's own confidence.
    """

    position: int
    token: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Verified:
    """Tokens are settled; their text is final.

    Attributes:
        position: Position of the first one.
        tokens: Token ids, at least one; none where only held-back text is released at the end.
        text: Text to append to the verified text.
        by: Who decided them.
    """

    position: int
    tokens: tuple[int, ...]
    text: str
    by: DecidedBy = DecidedBy.TARGET


@dataclass(frozen=True, slots=True)
class Revised:
    """The target went another way: provisional tokens from a position on are void.

    Attributes:
        position: First void position.
        dropped: How many provisional tokens fell.
    """

    position: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The verifier was lost and is being looked for; until `Resumed`, only drafts come.

    Where it is not found in time, the generation raises an error instead.

    Attributes:
        reason: What happened, and what can be done about it.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A verifier has taken the generation up again where it was; nothing is lost, nothing comes twice."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event.

    Attributes:
        reason: Why it ended.
        text: The whole answer.
        report: Usage and timing.
    """

    reason: FinishReason
    text: str
    report: Report


Event = Drafted | Verified | Revised | Interrupted | Resumed | Finished
