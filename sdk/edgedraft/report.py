"""Usage and timing of one generation, and the small meters that gather them."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedraft.core.draft import Settlement


@dataclass(frozen=True, slots=True)
class Report:
    """What a generation cost and gained. Times are seconds, sizes bytes of frames before TLS.

    Attributes:
        prompt_tokens: Tokens of the prompt on the device.
        tokens: Tokens generated.
        seconds: From the start until the last token was settled.
        tokens_per_second: `tokens / seconds`.
        first_draft_seconds: Until the first provisional token; None where there was none.
        first_token_seconds: Until the first settled token; None where there was none.
        drafted: Draft tokens made.
        wasted: Draft tokens that were dropped.
        judged: Settled positions for which the device had a draft, and left it to the target.
        acceptance_rate: α, the share of judged drafts that were right; None where none was judged.
        rounds: Verdicts received.
        rollbacks: Epochs begun by a wrong draft.
        vetoes: How often the device overruled the target.
        device_tokens: Tokens that the device decided; the target decided the others.
        held_back: Tokens that stayed on the device, or where the target decided because they would have had to.
        resumes: How often it went on over a new stream after the verifier had been lost.
        rtt_seconds: Shortest round trip seen, without queue and verification; None in mode `local`.
        verify_seconds: Mean time of a target step that this session took part in.
        bytes_up: Sent.
        bytes_down: Received.
        frames_up: Frames sent.
        frames_down: Frames received.
        padding_bytes_up: The part of `bytes_up` that is padding, empty frames included.
        padding_bytes_down: The part of `bytes_down` that is padding, empty frames included.
        empty_frames_up: Frames sent only to keep the pace.
        empty_frames_down: Frames received that only kept the pace.
        pace_delay_seconds: Mean time that a frame waited for its beat before it was sent; 0 without a pace.
        wait_seconds: Time during which at least one draft was on its way or being verified.
        hidden_seconds: The part of it during which the device drafted on.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    first_draft_seconds: float | None = None
    first_token_seconds: float | None = None
    drafted: int = 0
    wasted: int = 0
    judged: int = 0
    acceptance_rate: float | None = None
    rounds: int = 0
    rollbacks: int = 0
    vetoes: int = 0
    device_tokens: int = 0
    held_back: int = 0
    resumes: int = 0
    rtt_seconds: float | None = None
    verify_seconds: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    frames_up: int = 0
    frames_down: int = 0
    padding_bytes_up: int = 0
    padding_bytes_down: int = 0
    empty_frames_up: int = 0
    empty_frames_down: int = 0
    pace_delay_seconds: float = 0.0
    wait_seconds: float = 0.0
    hidden_seconds: float = 0.0

    @property
    def hidden_share(self) -> float | None:
        """The share of the wait that drafting hid; None where there was no wait."""
        return self.hidden_seconds / self.wait_seconds if self.wait_seconds > 0 else None


@dataclass(slots=True)
class Traffic:
    """What went over the streams of one generation; the fields are those of `Report`.

    Attributes:
        delay_seconds: That all frames together waited for their beats.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    frames_up: int = 0
    frames_down: int = 0
    padding_bytes_up: int = 0
    padding_bytes_down: int = 0
    empty_frames_up: int = 0
    empty_frames_down: int = 0
    delay_seconds: float = 0.0

    def sent(self, size: int, padding: int, empty: bool) -> None:
        """Count a frame that left."""
        self.bytes_up += size
        self.frames_up += 1
        self.padding_bytes_up += size if empty else padding
        self.empty_frames_up += empty

    def received(self, size: int, padding: int, empty: bool) -> None:
        """Count a frame that came."""
        self.bytes_down += size
        self.frames_down += 1
        self.padding_bytes_down += size if empty else padding
        self.empty_frames_down += empty

    @property
    def mean_delay(self) -> float:
        """Seconds that a frame with something in it waited for its beat."""
        return self.delay_seconds / max(1, self.frames_up - self.empty_frames_up)


@dataclass(slots=True)
class OverlapMeter:
    """Adds up how long one thing lasted, and how much of that another went on beside it."""

    waiting: bool = False
    busy: bool = False
    wait_seconds: float = 0.0
    hidden_seconds: float = 0.0
    _since: float = 0.0

    def update(self, now: float, *, waiting: bool | None = None, busy: bool | None = None) -> None:
        """Account for the time up to `now`, then change what goes on."""
        if self.waiting:
            self.wait_seconds += now - self._since
            if self.busy:
                self.hidden_seconds += now - self._since
        self._since = now
        if waiting is not None:
            self.waiting = waiting
        if busy is not None:
            self.busy = busy


@dataclass(slots=True)
class Meter:
    """Gathers the figures of a running generation; `report` freezes them."""

    started: float
    prompt_tokens: int = 0
    tokens: int = 0
    first_draft: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    drafted: int = 0
    wasted: int = 0
    matched: int = 0
    missed: int = 0
    rounds: int = 0
    rollbacks: int = 0
    vetoes: int = 0
    device_tokens: int = 0
    held_back: int = 0
    resumes: int = 0
    rtt: float | None = None
    verify_seconds: float = 0.0
    overlap: OverlapMeter = field(default_factory=OverlapMeter)
    traffic: Traffic = field(default_factory=Traffic)

    def drafted_token(self, now: float) -> None:
        """Count one draft token."""
        self.drafted += 1
        if self.first_draft is None:
            self.first_draft = now

    def settled(self, now: float, settlement: Settlement) -> None:
        """Count what a verdict changed."""
        self.settled_tokens(now, len(settlement.tokens))
        self.matched += settlement.matched
        self.missed += settlement.missed
        self.wasted += settlement.dropped - len(settlement.revived)
        self.rollbacks += settlement.rolled_back
        self.vetoes += settlement.vetoed
        self.device_tokens += len(settlement.given)
        self.held_back += settlement.held

    def settled_tokens(self, now: float, count: int) -> None:
        """Count newly settled tokens."""
        self.tokens += count
        if count:
            self.last_token = now
            if self.first_token is None:
                self.first_token = now

    def round_trip(self, seconds: float) -> None:
        """Take one sample of the round trip, without what the verifier says it took itself."""
        if seconds >= 0 and (self.rtt is None or seconds < self.rtt):
            self.rtt = seconds

    def report(self, now: float) -> Report:
        """The figures so far."""
        seconds = (self.last_token if self.last_token is not None else now) - self.started
        judged = self.matched + self.missed
        return Report(
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            seconds=seconds,
            tokens_per_second=self.tokens / seconds if seconds > 0 else 0.0,
            first_draft_seconds=None if self.first_draft is None else self.first_draft - self.started,
            first_token_seconds=None if self.first_token is None else self.first_token - self.started,
            drafted=self.drafted,
            wasted=self.wasted,
            judged=judged,
            acceptance_rate=self.matched / judged if judged else None,
            rounds=self.rounds,
            rollbacks=self.rollbacks,
            vetoes=self.vetoes,
            device_tokens=self.device_tokens,
            held_back=self.held_back,
            resumes=self.resumes,
            rtt_seconds=self.rtt,
            verify_seconds=self.verify_seconds / self.rounds if self.rounds else None,
            bytes_up=self.traffic.bytes_up,
            bytes_down=self.traffic.bytes_down,
            frames_up=self.traffic.frames_up,
            frames_down=self.traffic.frames_down,
            padding_bytes_up=self.traffic.padding_bytes_up,
            padding_bytes_down=self.traffic.padding_bytes_down,
            empty_frames_up=self.traffic.empty_frames_up,
            empty_frames_down=self.traffic.empty_frames_down,
            pace_delay_seconds=self.traffic.mean_delay,
            wait_seconds=self.overlap.wait_seconds,
            hidden_seconds=self.overlap.hidden_seconds,
        )
