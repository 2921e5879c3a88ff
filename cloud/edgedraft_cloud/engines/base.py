"""What an engine must offer: many sessions, each step one batch of blocks, whoever they belong to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

SessionId = str


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Fixed facts about an engine and its target.

    Attributes:
        engine: `embedded`, `vllm`, ...
        model: The target's name.
        model_fingerprint: Hex sha256 of weights and format.
        tokenizer_fingerprint: Hex sha256 of the tokenizer.
        vocab_size: Token ids lie in [0, vocab_size).
        context_length: Prompt and generated tokens together.
        max_block: Draft tokens in one `Work`.
        max_sessions: Sessions that may be open at once.
        eos_token_ids: Tokens that end a text.
        max_rows: Rows that the works of one step may have: a row a draft token and one more a session; None: any.
        room: Rows that a step should have at most, where the engine knows; None: measure it.
    """

    engine: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    max_block: int
    max_sessions: int
    eos_token_ids: tuple[int, ...]
    max_rows: int | None = None
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's next token is chosen.

    Attributes:
        temperature: 0 is greedy.
        top_p: 1 is off.
        top_k: 0 is off.
        seed: Fixes the draws of this session; None draws afresh.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One session's part of a step: verify `tokens`, or decode one token where there are none.

    Attributes:
        session: Whose.
        tokens: Draft tokens that follow what is settled, 0 to `max_block`.
        given: One flag a token: take it as it stands. Empty: none is.
    """

    session: SessionId
    tokens: tuple[int, ...] = ()
    given: tuple[bool, ...] = ()

    def drafts(self, count: int) -> int:
        """How many of its first `count` tokens are drafts, for the target to judge, and not given."""
        return count - sum(self.given[:count])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did for one session.

    Attributes:
        session: Whose.
        tokens: Newly settled tokens: the accepted drafts and the one that the target puts after them.
        accepted: How many of them were tokens of the work.
        judged: How many tokens of the work, given ones too, were put before the target; fewer than it had (even none)
            where room ran out, which says nothing about the others.
        error: Why the session cannot go on, or None; then `tokens` is empty.
    """

    session: SessionId
    tokens: tuple[int, ...]
    accepted: int
    judged: int = 0
    error: Exception | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Step:
    """What the engine did in one step.

    Attributes:
        batch: Number of the newest `submit` whose works it has taken in.
        outcomes: Of the sessions that something was finished for; perhaps none.
        tokens: Rows of the step: draft tokens, one more a session, and pieces of prompts.
        prompt_tokens: How many of the rows were prompt, read for the first time or again.
        seconds: How long it took.
        kv_used: Share of the KV cache that is in use, 0 to 1.
        evicted: Sessions whose KV was given up for others.
    """

    batch: int
    outcomes: tuple[Outcome, ...]
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    kv_used: float = 0.0
    evicted: int = 0


class Engine(ABC):
    """A target that verifies many sessions' blocks in one batch.

    All methods are called from one event loop; the steps run elsewhere (a thread, a process). A session has at most one
    `Work` under way. Between works it costs nothing but its KV, and where that is wanted for others it is given up and
    built again with the session's next work.
    """

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """Fixed facts; known before `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model and start stepping; may be called again after `close`, with no session left over.

        Raises:
            ModelError: The target cannot be loaded.
        """

    @abstractmethod
    async def open(self, session: SessionId, prompt: Sequence[int], sampling: Sampling, salt: str) -> None:
        """Take in a session; its prompt is read in the coming steps.

        That counts as its first work, one without drafts: once the prompt is read there is an outcome with the token
        that the target puts after it.

        Args:
            session: A new id.
            prompt: Token ids, checked by the caller; for a session that goes on, with what was settled before.
            sampling: How to choose tokens.
            salt: Sessions of different salts share no cached prefix.

        Raises:
            Overloaded: No place or no KV room for it; nothing was changed.
        """

    @abstractmethod
    def submit(self, works: Sequence[Work]) -> int:
        """Hand over works, of different sessions, to go together in the next step; returns at once.

        Returns:
            The number of this batch, counted from 1.
        """

    @abstractmethod
    async def step(self) -> Step:
        """Wait for the next step to end.

        Raises:
            VerifierUnavailable: The engine died; every session is lost to it.
        """

    @abstractmethod
    def release(self, session: SessionId) -> None:
        """Forget a session; a work of it that is under way yields no outcome. Unknown ids are ignored.

        The session may be opened again at once, with another text, which should cost no more than what is new in it.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop stepping and give back the memory."""
