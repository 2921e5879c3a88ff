"""Shares one engine among all sessions: takes their works to the engine, and the outcomes back to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Collection
from typing import Final

from edgedraft.errors import EdgedraftError, InvalidInput, Overloaded, VerifierUnavailable
from edgedraft.wire import FrameLimits, check_open
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Engine, Outcome, Sampling, SessionId
from edgedraft_cloud.session import Session, SessionLimits, State, merge_verdicts

logger = logging.getLogger(__name__)

RETRY_AFTER: Final = 2.0
"""Seconds after which a refused device should try again."""
DRAINED_RETRY_MS: Final = 1000


class SessionHandle:
    """One live session, as the server's stream sees it.

    Made by `Orchestrator.open`. Frames go in by `receive` and come out of `frames`; `close` must be called at the end.
    """

    def __init__(self, orchestrator: Orchestrator, session: Session) -> None:
        self._orchestrator = orchestrator
        self.session = session
        self._verdict: pb.Verdict | None = None
        self._going_away = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def receive(self, frame: pb.ClientFrame) -> None:
        """Take a frame of the device.

        Raises:
            InvalidInput: It breaks the protocol; end the stream.
        """
        self.session.receive(frame, time.monotonic())
        self._orchestrator.wake(self)
        self._changed.set()

    async def frames(self) -> AsyncGenerator[pb.ServerFrame, None]:
        """What to send to the device, `Opened` first, `Finished` or `GoAway` last.

        Verdicts that a slow reader has not taken yet are merged into one, so nothing piles up.

        Raises:
            VerifierUnavailable: The engine died.
            Overloaded: The engine had no room to go on.
        """
        limits = self.session.limits
        yield pb.ServerFrame(opened=pb.Opened(window=limits.window, max_block=limits.frames.max_block))
        while True:
            self._changed.clear()
            if self._verdict is not None:
                verdict, self._verdict = self._verdict, None
                yield pb.ServerFrame(verdict=verdict)
                continue
            if self._error is not None:
                raise self._error
            if self.session.state is State.FINISHED:
                finished = pb.Finished(reason=self.session.finish_reason, usage=self.session.usage)
                yield pb.ServerFrame(finished=finished)
                return
            if self._going_away:
                yield pb.ServerFrame(go_away=pb.GoAway(retry_after_ms=DRAINED_RETRY_MS))
                return
            await self._changed.wait()

    def close(self) -> None:
        """Forget the session; may be called again."""
        self._orchestrator.release(self)

    # ------------------------------------------------------------ for the orchestrator

    def apply(self, outcome: Outcome) -> None:
        """Take the outcome of the work under way."""
        if outcome.error is not None:
            self.fail(outcome.error)
            return
        if self.session.state is State.FINISHED:
            return
        verdict = self.session.apply(outcome, time.monotonic())
        self._verdict = verdict if self._verdict is None else merge_verdicts(self._verdict, verdict)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the session with an error, after what it has settled; the first error counts."""
        if self._error is None:
            self._error = error
        self._changed.set()

    def go_away(self) -> None:
        """Ask the device to come back later."""
        self._going_away = True
        self._changed.set()


class Orchestrator:
    """All sessions of one engine.

    Args:
        engine: Runs the target.
        window: Unverified tokens that a session may have in flight.
        run_ahead: Tokens that the cloud may settle beyond what the device has acknowledged; 0 is off.
        modes: Privacy modes that are served.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        window: int = 32,
        run_ahead: int = 64,
        modes: Collection[pb.Mode] = (pb.MODE_OPEN,),
    ) -> None:
        if window < 1:
            raise InvalidInput("window", f"is {window}", "grant at least 1 token")
        if run_ahead < 0:
            raise InvalidInput("run_ahead", f"is {run_ahead}", "use 0 (off) or more")
        self._engine = engine
        self._window = window
        self._run_ahead = run_ahead
        self._modes = tuple(modes)
        self._handles: dict[SessionId, SessionHandle] = {}
        self._ready: dict[SessionId, SessionHandle] = {}
        self._flushing = False
        self._draining = False
        self._empty = asyncio.Event()
        self._engine_error: VerifierUnavailable | None = None
        self._died = asyncio.Event()
        self._outcomes: asyncio.Task[None] | None = None

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self._engine

    @property
    def live_sessions(self) -> int:
        """Sessions that are open."""
        return len(self._handles)

    async def start(self) -> None:
        """Start the engine.

        Raises:
            ModelError: The target cannot be loaded.
        """
        await self._engine.start()
        self._outcomes = asyncio.create_task(self._take_outcomes(), name="edgedraft-outcomes")

    def describe(self) -> pb.DescribeResponse:
        """What is served; protocol and version are the server's to fill in."""
        info = self._engine.info
        model = pb.ModelInfo(
            name=info.model,
            model_fingerprint=info.model_fingerprint,
            tokenizer_fingerprint=info.tokenizer_fingerprint,
            vocab_size=info.vocab_size,
            context_length=info.context_length,
            max_block=info.max_block,
            max_window=self._window,
            modes=self._modes,
        )
        return pb.DescribeResponse(engine=info.engine, models=[model])

    async def open(self, message: pb.Open, tenant: str, device: str) -> SessionHandle:
        """Take in a session.

        Args:
            message: The device's `Open`.
            tenant: From its certificate.
            device: From its certificate.

        Raises:
            InvalidInput: The message is wrong.
            Overloaded: There is no room; nothing was changed.
            VerifierUnavailable: The verifier is loading or shutting down, or its engine died.
        """
        if self._engine_error is not None:
            raise self._engine_error
        if self._outcomes is None:
            raise VerifierUnavailable("the verifier is still loading its model; try again in a moment")
        if self._draining:
            raise VerifierUnavailable("the verifier is shutting down; try again in a moment")
        info = self._engine.info
        limits = FrameLimits(info.vocab_size, info.context_length, info.max_block)
        check_open(message, limits, info.tokenizer_fingerprint)
        self._check_served(message)
        if len(self._handles) >= info.max_sessions:
            raise Overloaded(f"all {info.max_sessions} sessions are taken", RETRY_AFTER)
        stops = set(message.limits.stop_token_ids)
        if not message.limits.ignore_eos:
            stops.update(info.eos_token_ids)
        session = Session(
            id=secrets.token_hex(8),
            limits=SessionLimits(
                frames=limits,
                max_tokens=message.limits.max_tokens,
                context_room=info.context_length - len(message.prompt),
                stop_tokens=frozenset(stops),
                window=self._window,
                run_ahead=self._run_ahead,
            ),
            prompt_tokens=len(message.prompt),
        )
        try:
            await self._engine.open(session.id, message.prompt, _sampling(message.sampling))
        except asyncio.CancelledError:
            # The device left meanwhile, and the engine may have taken the session already.
            self._engine.release(session.id)
            raise
        handle = SessionHandle(self, session)
        self._handles[session.id] = handle
        logger.info(
            "session opened",
            extra={"session": session.id, "tenant": tenant, "device": device, "prompt_tokens": len(message.prompt)},
        )
        self.wake(handle)
        return handle

    def wake(self, handle: SessionHandle) -> None:
        """Something changed for a session: if it has a work now, hand it over with all others of this moment."""
        session = handle.session
        if session.state is State.FINISHED:
            # A reader that takes its time must not hold the engine's memory.
            self._engine.release(session.id)
        if session.state is not State.PARKED or session.id not in self._handles:
            return
        self._ready[session.id] = handle
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def release(self, handle: SessionHandle) -> None:
        """Forget a session."""
        session = handle.session
        if self._handles.pop(session.id, None) is None:
            return
        if not self._handles:
            self._empty.set()
        self._ready.pop(session.id, None)
        self._engine.release(session.id)
        usage = session.usage
        logger.info(
            "session closed",
            extra={
                "session": session.id,
                "settled": usage.settled_tokens,
                "drafted": usage.drafted_tokens,
                "accepted": usage.accepted_tokens,
                "steps": usage.steps,
            },
        )

    async def engine_died(self) -> None:
        """Wait until the engine has died."""
        await self._died.wait()

    async def idle(self) -> None:
        """Wait until no session is open."""
        while self._handles:
            self._empty.clear()
            await self._empty.wait()

    async def drain(self, grace: float) -> None:
        """Take no new sessions, let live ones finish for up to `grace` seconds, then send the others away."""
        self._draining = True
        with contextlib.suppress(TimeoutError):  # they had their time
            async with asyncio.timeout(grace):
                await self.idle()
        for handle in self._handles.values():
            handle.go_away()

    async def close(self) -> None:
        """Stop the engine; sessions that are still live fail."""
        self._draining = True
        if self._outcomes is not None:
            self._outcomes.cancel()
            await asyncio.wait([self._outcomes])
        self._fail_all(VerifierUnavailable("the verifier was shut down"))
        await self._engine.close()

    # ------------------------------------------------------------ inside

    def _check_served(self, message: pb.Open) -> None:
        if message.model and message.model != self._engine.info.model:
            raise InvalidInput(
                "open.model", f"is {message.model!r}, this verifier serves {self._engine.info.model!r}", "ask for that"
            )
        if message.mode not in self._modes:
            served = ", ".join(pb.Mode.Name(mode) for mode in self._modes)
            raise InvalidInput(
                "open.mode", f"is {pb.Mode.Name(message.mode)}, this verifier serves {served}", "use one of these"
            )
        if message.resume_token:
            raise InvalidInput("open.resume_token", "is set, this verifier keeps no sessions", "open a new session")

    def _flush(self) -> None:
        """Hand over the works of all sessions that may have one, first come, first served."""
        self._flushing = False
        works = []
        for handle in self._ready.values():
            work = handle.session.next_work()
            if work is not None:
                works.append(work)
        self._ready.clear()
        if works:
            self._engine.submit(works)

    async def _take_outcomes(self) -> None:
        try:
            while True:
                for outcome in await self._engine.outcomes():
                    handle = self._handles.get(outcome.session)
                    if handle is not None:
                        handle.apply(outcome)
                        self.wake(handle)
                # At once, so that all sessions of this step can be in the next.
                self._flush()
        except VerifierUnavailable as error:
            self._die(error)
        except Exception as error:  # noqa: BLE001  a fault of ours; nobody may wait for outcomes that nobody takes
            death = VerifierUnavailable("the verifier failed; try again in a moment")
            death.__cause__ = error
            self._die(death)

    def _die(self, error: VerifierUnavailable) -> None:
        logger.error("engine died", exc_info=error.__cause__ or error)
        self._engine_error = error
        self._died.set()
        self._fail_all(error)

    def _fail_all(self, error: EdgedraftError) -> None:
        for handle in self._handles.values():
            handle.fail(error)


def _sampling(message: pb.Sampling) -> Sampling:
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        seed=message.seed if message.HasField("seed") else None,
    )
