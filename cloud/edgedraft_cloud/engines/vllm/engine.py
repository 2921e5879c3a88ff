"""The gateway's side of the vLLM engine: sessions and works go in, reports of steps come out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edgedraft.errors import InvalidInput, ModelError, Overloaded, VerifierUnavailable
from edgedraft_cloud.engines.base import Engine, EngineInfo, Outcome, Sampling, SessionId, Step, Work
from edgedraft_cloud.engines.names import Names, session_of
from edgedraft_cloud.engines.vllm import hooks, launch
from edgedraft_cloud.engines.vllm.messages import pack_works, unpack_step
from edgedraft_cloud.engines.vllm.target import Target

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core_client import AsyncMPClient

RETRY_AFTER: Final = 2.0
PROMPT_SLOTS: Final = 16
"""Sessions whose prompts are read at a time."""
MOST_DRAFTS: Final = 128
"""What vLLM's rejection sampler takes for one session in one step."""


class VllmEngine(Engine):
    """Runs a target on vLLM.

    Args:
        model: A folder of safetensors, or an id on the Hugging Face hub.
        context: Most tokens of prompt and answer; None takes the model's.
        max_sessions: Sessions that may be open at once; beyond what the KV cache holds, those that rest give theirs up.
        max_block: Draft tokens in one work.
        step_tokens: Rows that the works of one batch may have: draft tokens and one more a session.
        prompt_tokens: Prompt tokens that one step reads at most; an eighth of it where the step has works too.
        kv_tokens: Tokens that the KV cache holds, all sessions together; None takes what memory a GPU has.
        park_seconds: After so long with nothing to do a session's KV is given up.
        threads: Threads for the arithmetic on a CPU; None takes one a core.

    Raises:
        ModelError: The target's files cannot be used.
        InvalidInput: A setting is out of its range.
    """

    def __init__(
        self,
        model: str,
        *,
        context: int | None = None,
        max_sessions: int = 64,
        max_block: int = 16,
        step_tokens: int = 512,
        prompt_tokens: int = 512,
        kv_tokens: int | None = None,
        park_seconds: float = 300.0,
        threads: int | None = None,
    ) -> None:
        _check("max_block", max_block, 1, MOST_DRAFTS)
        _check("max_sessions", max_sessions, 1, 1 << 20)
        _check("step_tokens", step_tokens, max_block + 1, 1 << 20)
        _check("prompt_tokens", prompt_tokens, 8, 1 << 20)
        if kv_tokens is not None:
            _check("kv_tokens", kv_tokens, 64, 1 << 40)
        target = Target.find(model)
        if context is not None:
            _check("context", context, 2, target.context_length)
        length = min(size for size in (target.context_length, context, kv_tokens) if size is not None)
        self._settings = launch.Settings(
            target=target,
            context=length,
            max_block=max_block,
            step_tokens=step_tokens,
            step_sessions=min(max_sessions, step_tokens),
            prompt_tokens=prompt_tokens,
            prompt_slots=PROMPT_SLOTS,
            kv_tokens=kv_tokens,
            park_seconds=park_seconds,
            threads=threads,
        )
        self._info = EngineInfo(
            engine="vllm",
            model=target.name,
            model_fingerprint=target.model_fingerprint,
            tokenizer_fingerprint=target.tokenizer_fingerprint,
            vocab_size=target.vocab_size,
            context_length=length,
            max_block=max_block,
            max_sessions=max_sessions,
            eos_token_ids=target.eos_token_ids,
            max_rows=step_tokens,
        )
        self._client: AsyncMPClient | None = None
        self._dead: VerifierUnavailable | None = None
        self._batch = 0
        # vLLM may act on the end of a request after the next one came, so that no id may come twice.
        self._names = Names()
        self._busy: set[SessionId] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._getting: asyncio.Task[Any] | None = None

    @property
    def info(self) -> EngineInfo:
        """Fixed facts."""
        return self._info

    async def start(self) -> None:
        """Start vLLM's processes and load the target.

        Raises:
            ModelError: vLLM is not installed, is of another kind than this engine knows, or cannot load the target.
        """
        await self.close()
        abandoned = threading.Event()
        try:
            client = await asyncio.to_thread(_start, self._settings, abandoned)
            self._client = client
            await client.collective_rpc_async(launch.TAKE_GIVEN_TOKENS)
        except asyncio.CancelledError:
            launch.abandon(abandoned)
            raise

    async def open(self, session: SessionId, prompt: Sequence[int], sampling: Sampling, salt: str) -> None:
        """Take in a session; where the KV cache has no room for it, others that rest give way.

        Raises:
            Overloaded: All places are taken.
            InvalidInput: The prompt leaves no room for a token, or the session is open already.
            VerifierUnavailable: The engine is dead or not started.
        """
        client = self._alive()
        room = self._info.context_length - len(prompt)
        if not prompt or room < 1:
            raise InvalidInput(
                "prompt", f"has {len(prompt)} tokens, allowed are 1 to {self._info.context_length - 1}", "shorten it"
            )
        if self._names.of(session) is not None:
            raise InvalidInput("session", f"{session!r} is open already", "take another id")
        if len(self._names) >= self._info.max_sessions:
            raise Overloaded(f"all {self._info.max_sessions} sessions are taken", RETRY_AFTER)
        name = self._names.add(session)
        order = client.add_request_async(_request(name, prompt, sampling, salt, room))
        self._busy.add(session)
        await self._send(order)

    def submit(self, works: Sequence[Work]) -> int:
        """Hand over works; they go together in the next step.

        Raises:
            InvalidInput: Together they have more rows than a step, or one is not as it must be.
            VerifierUnavailable: The engine is not started.
        """
        client = self._alive()
        rows = sum(len(work.tokens) + 1 for work in works)
        if rows > self._settings.step_tokens:
            raise InvalidInput("works", f"have {rows} rows, a step has {self._settings.step_tokens}", "hand over fewer")
        for work in works:
            self._check_work(work)
        named = [replace(work, session=name) for work in works if (name := self._names.of(work.session)) is not None]
        self._busy.update(session_of(work.session) for work in named)
        self._batch += 1
        # The call is answered after the step that runs now, which nobody should wait for.
        self._send(client.call_utility_async("scheduler", self._batch, pack_works(named)))
        return self._batch

    async def step(self) -> Step:
        """Wait for the next step to end.

        Raises:
            VerifierUnavailable: The engine died.
        """
        client = self._alive()
        while True:
            self._getting = asyncio.create_task(client.get_output_async())
            try:
                outputs = await self._getting
            except asyncio.CancelledError:
                if self._dead is None or _is_cancelled():
                    raise
                raise self._dead from None
            except Exception as error:  # whatever it was, no step will follow
                raise self._died(error) from error
            for output in outputs.outputs:
                if output.kv_transfer_params is not None:
                    return self._report(unpack_step(output.kv_transfer_params))

    def release(self, session: SessionId) -> None:
        """Forget a session."""
        name = self._names.drop(session)
        if name is None:
            return
        self._busy.discard(session)
        if self._client is not None and self._dead is None:
            self._send(self._client.abort_requests_async([name]))

    async def close(self) -> None:
        """Stop vLLM's processes."""
        client, self._client = self._client, None
        self._dead = None
        self._batch = 0
        self._names.clear()
        self._busy.clear()
        if client is not None:
            await launch.stop(client)

    # ------------------------------------------------------------ inside

    def _check_work(self, work: Work) -> None:
        most, vocabulary = self._info.max_block, self._info.vocab_size
        if work.session in self._busy:
            raise InvalidInput("work.session", f"{work.session!r} has a work under way", "wait for its outcome")
        if len(work.tokens) > most:
            raise InvalidInput("work.tokens", f"has {len(work.tokens)}, at most {most} are taken", "send fewer")
        if not all(0 <= token < vocabulary for token in work.tokens):
            raise InvalidInput("work.tokens", f"has one outside 0 to {vocabulary - 1}", "send ids of this vocabulary")
        if work.given and len(work.given) != len(work.tokens):
            raise InvalidInput("work.given", f"has {len(work.given)} flags", f"set {len(work.tokens)}, or none")

    def _report(self, step: Step) -> Step:
        """The same step, of the sessions that are still open."""
        outcomes: list[Outcome] = []
        for outcome in step.outcomes:
            session = self._names.session(outcome.session)
            if session is not None:
                self._busy.discard(session)
                outcomes.append(replace(outcome, session=session))
        return replace(step, outcomes=tuple(outcomes))

    def _alive(self) -> AsyncMPClient:
        if self._dead is not None:
            raise self._dead
        if self._client is None:
            raise VerifierUnavailable("the verifier's engine is not running")
        return self._client

    def _died(self, error: BaseException) -> VerifierUnavailable:
        if self._dead is None:
            self._dead = VerifierUnavailable("the verifier's engine died; try again in a moment")
            self._dead.__cause__ = error
            if self._getting is not None:
                # An order that failed may be all that tells of it, and no output ever come.
                self._getting.cancel()
        return self._dead

    def _send(self, order: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Send in the order of the calls; whoever wants to knows by the task that it is sent."""
        task = asyncio.get_running_loop().create_task(order)
        self._sending.add(task)
        task.add_done_callback(partial(self._sent, self._client))
        return task

    def _sent(self, client: AsyncMPClient, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        # What was still on its way to one that is closed must not end the one that was started in its place.
        if not task.cancelled() and (error := task.exception()) is not None and client is self._client:
            self._died(error)


def _is_cancelled() -> bool:
    """Whether whoever calls is being cancelled itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _start(settings: launch.Settings, abandoned: threading.Event) -> AsyncMPClient:
    try:
        return launch.start(settings, abandoned)
    except ImportError as error:
        raise ModelError(f"vLLM cannot be used ({error}); {hooks.INSTALL}") from error
    except (ValueError, RuntimeError, OSError) as error:
        raise ModelError(f"vLLM cannot run {settings.target.folder}: {error}") from error


def _request(name: str, prompt: Sequence[int], sampling: Sampling, salt: str, max_tokens: int) -> EngineCoreRequest:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=list(prompt),
        mm_features=None,
        sampling_params=SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            max_tokens=max_tokens,
            ignore_eos=True,  # the gateway knows where a text ends
            detokenize=False,
        ),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=salt,
        data_parallel_rank=None,
    )


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidInput(name, f"is {value}, allowed are {least} to {most}", "choose one of these")
