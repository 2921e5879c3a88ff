"""The model of time: how long a token takes when device and cloud share the work, from a few measured quantities.

Pure functions, in seconds and tokens. They leave out jitter and assume that every draft token is right with the same
probability, whatever came before: good for the shape of things and for choosing a policy, no substitute for a
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edgedraft.errors import InvalidInput

LONGEST_DRAFT: Final = 24
"""Draft tokens a round beyond which no synchronous round is tried."""
MOST_CLIENTS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Times:
    """What one token costs where, in seconds.

    Attributes:
        draft: T_draft, one step of the drafter.
        verify: T_verify, one step of the target over a block.
        rtt: Round trip between device and verifier.
        decode: t_ar, one token that the target decodes by itself; a step of it with one row.

    Raises:
        InvalidInput: A time is negative or no number, or a step takes none.
    """

    draft: float
    verify: float
    rtt: float
    decode: float

    def __post_init__(self) -> None:
        for name, least in (("draft", 0.0), ("verify", 0.0), ("rtt", None), ("decode", 0.0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or value == least:
                raise InvalidInput(f"times.{name}", f"is {value}", "use a time in seconds above 0 (the RTT may be 0)")


def expected_tokens(acceptance: float, gamma: int) -> float:
    """E[A]: tokens that a round of γ draft tokens settles, with the one that the target puts behind them.

    (1 - α^(γ+1)) / (1 - α), Leviathan et al. 2023, arXiv 2211.17192, equation 1.

    Args:
        acceptance: α, the probability that a draft token is right; below 1.
        gamma: γ, draft tokens in the round.

    Raises:
        InvalidInput: A value is out of range.
    """
    _check(acceptance)
    if gamma < 0:
        raise InvalidInput("gamma", f"is {gamma}", "use 0 or more")
    return (1 - acceptance ** (gamma + 1)) / (1 - acceptance)


def synchronous(acceptance: float, gamma: int, times: Times) -> float:
    """Seconds a token where the device drafts γ tokens, sends them and waits: (γ·T_draft + RTT + T_verify) / E[A].

    Leviathan et al. 2023, section 3.3, with the round trip added.
    """
    return (gamma * times.draft + times.rtt + times.verify) / expected_tokens(acceptance, gamma)


def best_gamma(acceptance: float, times: Times) -> tuple[int, float]:
    """The γ from 1 to `LONGEST_DRAFT` with the shortest time a token, and that time."""
    return min(
        ((gamma, synchronous(acceptance, gamma, times)) for gamma in range(1, LONGEST_DRAFT + 1)),
        key=lambda pair: pair[1],
    )


def pipelined(acceptance: float, times: Times, *, block: int = 16, covered: float = 0.0) -> float:
    """Seconds a token where the device drafts on while its drafts travel, and the cloud waits for them.

    A run lasts until a rejection that no branch covers. Its drafts come at the slower of T_draft and T_verify a block;
    then the device has to hear of the rejection, draft anew, be heard and verified, and a step that is under way takes
    half of T_verify on the average.

    Args:
        acceptance: α.
        times: The times; `draft` with what a step over the branches costs.
        block: Draft tokens that one step verifies at most.
        covered: Share of the rejections where the right token was there already, as a branch; below 1.
    """
    tokens, seconds = _run(acceptance, times, block, covered)
    return (seconds + times.rtt + 1.5 * times.verify + times.draft) / tokens


def running_ahead(acceptance: float, times: Times, *, block: int = 16, covered: float = 0.0) -> float:
    """Seconds a token where both sides run ahead: the cloud decodes whenever no draft is there.

    Behind a rejection the cloud decodes alone, and the device gets in front again with n right drafts in a row, so many
    that it has made up for the round trip: n > RTT / (t_ar - T_draft). Until n in a row are right it takes
    (1 - αⁿ) / ((1 - α)·αⁿ) tokens on the average (Feller, An Introduction to Probability Theory I, 3rd edition,
    section XIII.7, equation 7.7). Then drafts come as in `pipelined` until they are wrong. Never more than `decode`.

    Args:
        acceptance: α.
        times: The times; `draft` with what a step over the branches costs.
        block: Draft tokens that one step verifies at most.
        covered: Share of the rejections where the right token was there already, as a branch; below 1.
    """
    gain = times.decode - times.draft
    if gain <= 0 or acceptance == 0:
        return times.decode
    tokens, seconds = _run(acceptance, times, block, covered)
    streak = math.floor(times.rtt / gain) + 1
    right = acceptance**streak
    if right == 0.0:
        return times.decode
    alone = (1 - right) / ((1 - acceptance) * right)
    return min(times.decode, (alone * times.decode + seconds + times.verify) / (alone + tokens))


def break_even_rtt(acceptance: float, gamma: int, times: Times) -> float:
    """The RTT up to which synchronous drafting beats the cloud's own decoding; negative where it never does.

    (E[A] - 1)·t_ar - γ·T_draft, with T_verify as long as a step of decoding.
    """
    return expected_tokens(acceptance, gamma) * times.decode - times.verify - gamma * times.draft


def capacity_gain(gamma: int, draft: float, verify: float) -> float:
    """Clients of one target with the drafter on their devices, over those with it beside the target.

    1 + γ·T_draft / T_verify: so much time of the target's machine a round is freed.

    Args:
        gamma: γ.
        draft: T_draft of the drafter beside the target, in seconds.
        verify: T_verify, in seconds.
    """
    return 1 + gamma * draft / verify


def roofline(rows: float, base: float, knee: float) -> float:
    """Seconds of a step of the target over so many rows (tokens of all sessions together).

    Below the knee memory binds and rows are free; beyond it arithmetic binds (Williams, Waterman and Patterson 2009,
    Communications of the ACM 52(4)).

    Args:
        rows: Of the step.
        base: Seconds of a step with one row: bytes of weights over the memory's bandwidth.
        knee: Rows where arithmetic takes as long as that.
    """
    return base * max(1.0, rows / knee)


def clients(
    seconds_a_token: float, tokens: float, rows: float, step: Callable[[float], float], beside: float = 0.0
) -> int:
    """How many clients one target serves at a time a token, each with a block in every step.

    Args:
        seconds_a_token: What each client gets.
        tokens: Tokens that a client's block settles a step.
        rows: Rows that it takes.
        step: Seconds of a step by its rows.
        beside: Seconds a step that the target's machine spends on something else, such as a drafter beside it.

    Returns:
        0 where not even one is served so fast; at most `MOST_CLIENTS`.
    """
    low, high = 0, MOST_CLIENTS
    while low < high:
        middle = (low + high + 1) // 2
        if step(middle * rows) + beside <= seconds_a_token * tokens:
            low = middle
        else:
            high = middle - 1
    return low


def _run(acceptance: float, times: Times, block: int, covered: float) -> tuple[float, float]:
    """Tokens and seconds from the first right draft in front until a rejection that no branch covers."""
    _check(acceptance)
    if not 0 <= covered < 1:
        raise InvalidInput("covered", f"is {covered}", "use 0 up to, not including, 1")
    if block < 1:
        raise InvalidInput("block", f"is {block}", "use at least 1")
    pace = max(times.draft, times.verify / block)
    right = acceptance / (1 - acceptance)
    return (right + 1) / (1 - covered), right * pace / (1 - covered)


def _check(acceptance: float) -> None:
    if not 0 <= acceptance < 1:
        raise InvalidInput("acceptance", f"is {acceptance}", "use 0 up to, not including, 1")
