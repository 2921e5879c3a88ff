"""Shares one engine among the sessions of all tenants: takes their works to it step by step, and the outcomes back.

What goes into a step is the planner's to say, what a session may do is its own; here is what ties them to time, to the
engine and to streams that come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from functools import partial
from typing import Final

from edgedraft.errors import InvalidInput, Overloaded, Unauthenticated, VerifierUnavailable
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.admission import check_request, new_session, sampling_of
from edgedraft_cloud.engines.base import Engine, Outcome, Step, Work
from edgedraft_cloud.gather import MOMENT, Gathering
from edgedraft_cloud.live import LiveSession, SessionHandle
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.occupancy import RESTART_AFTER, RETRY_AFTER, Occupancy
from edgedraft_cloud.places import Places
from edgedraft_cloud.planner import Part, Planner
from edgedraft_cloud.registry import Registry
from edgedraft_cloud.session import State
from edgedraft_cloud.step_loop import StepLoop
from edgedraft_cloud.step_times import StepTimes, most_rows
from edgedraft_cloud.supervisor import Supervisor
from edgedraft_cloud.tenants import Tenant, Tenants
from edgedraft_cloud.tracing import Tracer

logger = logging.getLogger(__name__)

TIDY_SECONDS: Final = 1.0

_REASONS: Final = {
    pb.Finished.REASON_STOP: "stop",
    pb.Finished.REASON_LENGTH: "length",
    pb.Finished.REASON_CLOSED: "closed",
}


class Orchestrator:
    """All sessions of one engine.

    Args:
        engine: Runs the target.
        tenants: Who is served.
        metrics: Counts what happens.
        tracer: Where spans go.
        window: Unverified tokens that a session may have in flight at most.
        run_ahead: Tokens that the cloud may settle beyond what the device has acknowledged; 0 is off.
        sealed_run_ahead: The same in sealed mode, where the device may have another word for each of them.
        step_tokens: Rows that a step has at most; None: what the engine says, or else what is measured at the start.
        resume_seconds: How long a session waits for a device that went away.
        idle_seconds: How long a session may go without a frame of its device.
        session_seconds: How long a session may live.
        modes: Privacy modes that are served.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tenants: Tenants | None = None,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
        window: int = 32,
        run_ahead: int = 64,
        sealed_run_ahead: int = 4,
        step_tokens: int | None = None,
        resume_seconds: float = 60.0,
        idle_seconds: float = 600.0,
        session_seconds: float = 3600.0,
        modes: Collection[pb.Mode] = (pb.MODE_SEALED, pb.MODE_CLOAKED, pb.MODE_OPEN),
    ) -> None:
        if window < 1:
            raise InvalidInput("window", f"is {window}", "grant at least 1 token")
        for name, ahead in (("run_ahead", run_ahead), ("sealed_run_ahead", sealed_run_ahead)):
            if ahead < 0:
                raise InvalidInput(name, f"is {ahead}", "use 0 (off) or more")
        info = engine.info
        self._engine = engine
        self._tenants = Tenants.anyone() if tenants is None else tenants
        self._metrics = Metrics() if metrics is None else metrics
        self._tracer = Tracer.off() if tracer is None else tracer
        self._window = window
        self._run_ahead = run_ahead
        self._sealed_run_ahead = sealed_run_ahead
        self._resume_seconds = resume_seconds
        self._idle_seconds = idle_seconds
        self._session_seconds = session_seconds
        self._modes = tuple(modes)
        room = info.room if step_tokens is None else step_tokens
        self._times = StepTimes(most_rows(info), room)
        self._supervisor = Supervisor(engine, self._metrics, self._times if room is None else None)
        self._planner = Planner(self._times, window)
        self._gathering = Gathering(self._times, self._planner)
        self._occupancy = Occupancy(engine, self._planner)
        self._sessions = Registry()
        self._places = Places(self._sessions, self._planner, self._metrics, info.max_sessions)
        self._batch = 0
        self._under_way = False
        self._flush_at: asyncio.TimerHandle | None = None
        self._steps = StepLoop(engine, self._take, RESTART_AFTER)
        self._draining = False
        self._empty = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self._engine

    @property
    def live_sessions(self) -> int:
        """Sessions whose device is there."""
        return self._sessions.connected

    @property
    def room(self) -> int:
        """Rows that the next step has at most."""
        return self._times.room

    async def start(self) -> None:
        """Start the engine and measure its steps.

        Raises:
            ModelError: The target cannot be loaded.
        """
        await self._supervisor.start()
        self._tasks = [
            asyncio.create_task(self._run(), name="edgedraft-steps"),
            asyncio.create_task(self._tidy(), name="edgedraft-tidy"),
        ]

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

    def readiness(self) -> AsyncGenerator[bool, None]:
        """Whether sessions are taken in, now and at each change; it ends when the engine is given up."""
        return self._supervisor.readiness()

    # ------------------------------------------------------------ sessions come and go

    async def open(self, message: pb.Open, tenant: str, device: str) -> SessionHandle:
        """Take in a session, or one whose device comes back.

        Args:
            message: The device's `Open`.
            tenant: From its certificate.
            device: From its certificate.

        Raises:
            InvalidInput: The message is wrong.
            Unauthenticated: This tenant is not served.
            Overloaded: There is no room; nothing was changed.
            VerifierUnavailable: The verifier is loading or shutting down, or its engine died.
        """
        known = self._admit(tenant)
        check_request(message, self._engine.info, self._modes)
        kept = self._sessions.resumable(message.resume_token)
        if kept is not None:
            return await self._reattach(kept, message, tenant, device)
        away = self._places.place_for(known, time.monotonic())
        run_ahead = self._sealed_run_ahead if message.mode == pb.MODE_SEALED else self._run_ahead
        session = new_session(message, self._engine.info, window=self._window, run_ahead=run_ahead)
        live = LiveSession(
            session,
            known,
            device,
            sampling_of(message.sampling),
            background=message.service_class == pb.SERVICE_CLASS_BACKGROUND,
            trace=self._tracer.session(session.id, tenant, device),
        )
        self._sessions.add(live)
        # All that is read, or else a text that comes as settled tokens would cost its tenant nothing; and before it is,
        # or else many that come at once would all be within the rate.
        read = len(session.text)
        self._planner.meter(known, read, time.monotonic())
        try:
            with self._giving_way(away):
                await self._occupancy.enter(live)
        except BaseException as error:
            self._planner.put_back(known, read)
            self._forget(live, "refused")
            if isinstance(error, Overloaded):
                self._metrics.refused(tenant, "engine_room")
            raise
        self._metrics.opened(tenant, len(message.prompt))
        logger.info(
            "session opened",
            extra={"session": session.id, "tenant": tenant, "device": device, "prompt_tokens": len(message.prompt)},
        )
        return self._attach(live, message)

    def _admit(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            self._metrics.refused(name, "unknown_tenant")
            raise Unauthenticated(f"tenant {name!r} is not served here; ask the operator to add it")
        if self._supervisor.fatal is not None:
            raise self._supervisor.fatal
        if self._draining:
            self._metrics.refused(name, "draining")
            raise VerifierUnavailable("the verifier is shutting down; try again in a moment", RETRY_AFTER)
        if not self._supervisor.ready:
            self._metrics.refused(name, "engine")
            raise VerifierUnavailable("the verifier is loading its model; try again in a moment", RESTART_AFTER)
        return tenant

    @contextlib.contextmanager
    def _giving_way(self, away: LiveSession | None) -> Iterator[None]:
        """Let a session give way to one that enters; where that is refused, all that is lost is its KV."""
        if away is None:
            yield
            return
        since, away.detached_at = away.detached_at, 0.0  # so that it gives way to no other as well
        if sum(live.in_engine for live in self._sessions) >= self._engine.info.max_sessions:
            self._drop(away, Overloaded("its place was wanted", RETRY_AFTER))
        try:
            yield
        except BaseException:
            if away.handle is None:
                away.detached_at = since
            raise
        if away.handle is not None:  # it has come back meanwhile, and is to do so again
            away.handle.fail(VerifierUnavailable("the place of this session is taken; try again", RETRY_AFTER))
        self._forget(away, "expired")

    async def _reattach(self, live: LiveSession, message: pb.Open, tenant: str, device: str) -> SessionHandle:
        session = live.session
        if (live.tenant.name, live.device) != (tenant, device):
            raise InvalidInput("open.resume_token", "is of another device", "open a new session")
        if tuple(message.prompt) != session.prompt:
            raise InvalidInput("open.prompt", "is not that of the session to resume", "send the same Open again")
        session.resume(message.resume_tokens)
        if not live.in_engine or session.unread:
            live.detached_at = 0.0  # it is not away any more, only not attached yet
            try:
                await self._occupancy.enter(live)
            except BaseException:
                live.detached_at = time.monotonic()
                raise
        self._metrics.resumed(tenant)
        logger.info("session resumed", extra={"session": session.id, "tenant": tenant, "device": device})
        return self._attach(live, message)

    def _attach(self, live: LiveSession, message: pb.Open) -> SessionHandle:
        if live.handle is not None:
            live.handle.fail(VerifierUnavailable("the device has opened another stream for this session"))
        window = self._planner.window(live.tenant, live.session)
        held = len(message.resume_tokens)
        handle = SessionHandle(live, held, window, changed=self._heard, closed=self._detach)
        self._sessions.attach(live, handle, message.resume_token)
        self._update(live)
        return handle

    def _detach(self, handle: SessionHandle, over: bool) -> None:
        """A stream has ended; unless its session is over, it waits for its device to come back."""
        live = handle.live
        if live.handle is not handle:
            return
        live.handle = None
        live.detached_at = time.monotonic()
        if over or not self._resume_seconds:
            self._forget(live, _REASONS.get(live.session.finish_reason, "failed"))
        else:
            self._planner.pause(live.session.id)
        if not self.live_sessions:
            self._empty.set()

    def _forget(self, live: LiveSession, reason: str) -> None:
        if not self._sessions.remove(live):
            return
        self._occupancy.leave(live)
        live.trace.end(reason)
        if reason == "refused":
            return
        self._metrics.closed(live.tenant.name, reason)
        logger.info("session closed", extra={"session": live.session.id, "reason": reason, **live.session.counts})

    def _heard(self, live: LiveSession) -> None:
        """The device of a session has sent something."""
        self._sessions.heard(live)
        self._update(live)

    def _update(self, live: LiveSession) -> None:
        """Something changed for a session: let it wait for a step if it has something to do."""
        if not live.session.needs_engine:
            # A reader that takes its time must not hold the engine's memory.
            self._occupancy.leave(live)
        elif live.handle is None or not live.handle.is_open:
            pass
        elif live.session.unread and self._supervisor.ready:
            self._occupancy.begin_again(live)
        elif live.session.unread:
            live.handle.fail(VerifierUnavailable("the verifier is loading its model; try again", RESTART_AFTER))
        elif live.in_engine:
            self._planner.update(live.session.id)
            if not self._under_way and (wait := self._gathering.changed(live.session, time.monotonic())) is not None:
                self._flush_in(wait)

    # ------------------------------------------------------------ steps

    def _flush_in(self, seconds: float) -> None:
        """Begin the next step so much later, unless that is but a moment and it begins before."""
        if self._under_way or not self._supervisor.ready:
            return
        loop = asyncio.get_running_loop()
        if self._flush_at is not None:
            if seconds <= MOMENT and self._flush_at.when() <= loop.time() + seconds:
                return
            self._flush_at.cancel()
        self._flush_at = loop.call_later(seconds, self._steps.guard, self._flush)

    def _flush(self) -> None:
        """Hand over the next step, if none is under way and there is something to do."""
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        if self._under_way or not self._supervisor.ready:
            return
        now = time.monotonic()
        self._gathering.begun()
        parts = self._planner.plan(now)
        if parts:
            for part in parts:
                if (live := self._sessions.get(part.work.session)) is not None:
                    live.part = part
            self._batch = self._engine.submit([part.work for part in parts])
            self._under_way = True
        elif (wait := self._planner.next_refill(now)) is not None:
            self._flush_in(wait)

    async def _run(self) -> None:
        """Take steps until the engine is given up or this is cancelled."""
        while self._supervisor.fatal is None:
            self._lose_engine(await self._steps.run())
            await self._supervisor.restart()

    def _lose_engine(self, error: VerifierUnavailable) -> None:
        """Every session is lost to the engine, not to us: their devices may come back to the next one."""
        self._supervisor.lost(error)
        if error.retry_after is None:
            error.retry_after = RESTART_AFTER
        self._under_way = False
        self._batch = 0
        self._gathering.begun()  # nobody is waited for any more
        for live in self._sessions:
            live.in_engine = False
            live.part = None
            live.session.lose_work()
            self._planner.leave(live.session.id)
            if live.handle is not None and live.session.needs_engine:
                live.handle.go_away(RESTART_AFTER)
                live.handle.fail(error)

    def _take(self, step: Step) -> None:
        now = time.monotonic()
        done = []
        for outcome in step.outcomes:
            live = self._sessions.get(outcome.session)
            if live is not None and live.in_engine and not live.session.unread:
                part, live.part = live.part or Part(Work(outcome.session), 0.0), None
                self._apply(live, outcome, part, step, now)
                done.append((live, outcome, part))
        if not self._under_way or step.batch >= self._batch:
            self._under_way = False
            wait = self._gathering.ended((live.session for live, *_ in done if live.handle is not None), now)
            if wait:
                self._flush_in(wait)
            else:
                # At once, so that the engine does not wait for what follows.
                self._flush()
        if step.tokens and not step.prompt_tokens:
            self._times.observe(step.tokens, step.seconds)
            self._times.earned(step.tokens, sum(len(outcome.tokens) for outcome in step.outcomes), step.seconds)
        drafting = sum(outcome.judged > 0 for outcome in step.outcomes)
        self._metrics.step(step, drafting=drafting, decoding=len(step.outcomes) - drafting)
        for live, outcome, part in done:
            for record in (partial(self._metrics.verdict, live.tenant.name), live.trace.step):
                record(
                    queue_seconds=part.waited,
                    verify_seconds=step.seconds,
                    judged=part.work.drafts(outcome.judged),
                    accepted=part.work.drafts(outcome.accepted),
                    settled=len(outcome.tokens),
                )

    def _apply(self, live: LiveSession, outcome: Outcome, part: Part, step: Step, now: float) -> None:
        """Let a session take the outcome of its part."""
        session = live.session
        if outcome.error is not None:
            self._drop(live, outcome.error)
            return
        if session.state is State.FINISHED:
            return
        try:
            verdict = session.apply(outcome, now=now, queue_seconds=part.waited, verify_seconds=step.seconds)
        except Exception as error:  # noqa: BLE001  its stream raises it; the others have no part in it
            self._drop(live, error)
            return
        self._planner.settle(session.id, len(outcome.tokens), outcome.judged + 1, now)
        if live.handle is not None:
            verdict.window = self._planner.window(live.tenant, session)
            live.handle.tell(verdict)
        self._update(live)

    def _drop(self, live: LiveSession, error: Exception) -> None:
        """A session cannot go on in the engine; its device may come back and have it opened anew."""
        self._occupancy.leave(live)
        live.session.lose_work()
        if live.handle is not None:
            live.handle.fail(error)

    # ------------------------------------------------------------ time and the end

    async def _tidy(self) -> None:
        """End what has had its time, once a second."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.tidy(time.monotonic())

    def tidy(self, now: float) -> None:
        """End sessions that are silent, too old, or whose device did not come back.

        Args:
            now: The time, on the monotonic clock.
        """
        counts = {"working": 0, "parked": 0, "detached": 0}
        for live in self._sessions:
            if live.handle is None:
                if live.detached_at and now - live.detached_at > self._resume_seconds:
                    self._forget(live, "expired")
                    continue
                counts["detached"] += 1
            elif now - live.heard_at > self._idle_seconds:
                live.handle.end(f"has sent nothing for {self._idle_seconds:g} s, the limit here")
            elif now - live.opened_at > self._session_seconds:
                live.handle.end(f"has lived for {self._session_seconds:g} s, the limit here")
            else:
                counts["working" if live.session.state is State.WORKING else "parked"] += 1
        self._metrics.sessions(**counts)

    async def idle(self) -> None:
        """Wait until no device is connected."""
        while self.live_sessions:
            self._empty.clear()
            await self._empty.wait()

    async def drain(self, grace: float) -> None:
        """Take no new sessions, let live ones finish for up to `grace` seconds, then ask the others to go elsewhere."""
        self._draining = True
        self._metrics.draining()
        with contextlib.suppress(TimeoutError):  # they had their time
            async with asyncio.timeout(grace):
                await self.idle()
        for live in self._sessions:
            if live.handle is not None:
                live.handle.go_away(RETRY_AFTER)

    async def close(self) -> None:
        """Stop the engine; sessions that are still live fail."""
        self._draining = True
        await self._occupancy.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        error = VerifierUnavailable("the verifier was shut down", RETRY_AFTER)
        for live in self._sessions:
            if live.handle is not None:
                live.handle.fail(error)
            self._forget(live, "drained")
        await self._supervisor.close()
