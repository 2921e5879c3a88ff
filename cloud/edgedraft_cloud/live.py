"""A live session beside its state machine: whose it is, the stream that serves it now, and how it is told apart."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Sampling
from edgedraft_cloud.planner import Part
from edgedraft_cloud.session import Session, State, merge_verdicts
from edgedraft_cloud.tenants import Tenant
from edgedraft_cloud.tracing import SessionTrace

_ODD: Final = 0x9E3779B97F4A7C15
"""2⁶⁴ over the golden ratio: its multiples lie far apart (Knuth, The Art of Computer Programming 3, section 6.4)."""


@dataclass(slots=True, eq=False)
class LiveSession:
    """A session from its first `Open` until nobody can come back to it.

    Attributes:
        session: Its state.
        tenant: Whose it is, from the certificate.
        device: Which device's, from the certificate.
        sampling: How the target chooses.
        background: Whether others of its tenant go first.
        trace: Its span.
        opened_at: When it was opened, on the monotonic clock.
        heard_at: When a frame of its device came last.
        resume_token: Proves to the verifier that a device means this session.
        former_token: The one that its device came with, until a frame shows that it has the next.
        handle: The stream that serves it; None while its device is away.
        detached_at: When its device went away.
        in_engine: Whether the engine holds it.
        part: Its part of the step that is under way.
    """

    session: Session
    tenant: Tenant
    device: str
    sampling: Sampling
    background: bool
    trace: SessionTrace
    opened_at: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    resume_token: bytes = b""
    former_token: bytes = b""
    handle: SessionHandle | None = None
    detached_at: float = 0.0
    in_engine: bool = False
    part: Part | None = None

    @property
    def is_away(self) -> bool:
        """Whether its device was there and is gone; one that is just coming is neither."""
        return self.handle is None and self.detached_at > 0

    def next_sampling(self) -> Sampling:
        """How the engine that opens it now is to draw: a seed must not draw again what it has drawn before.

        Also where that was in another verifier, so what tells is how much is settled.
        """
        seed, settled = self.sampling.seed, len(self.session.tree.settled)
        if seed is None or not settled:
            return self.sampling
        return replace(self.sampling, seed=(seed + settled * _ODD) % (1 << 64))

    def attach(self, handle: SessionHandle) -> None:
        """Let a new stream serve it, under a new token."""
        self.handle = handle
        self.heard_at = time.monotonic()
        self.resume_token = secrets.token_bytes(16)


class SessionHandle:
    """One stream of a session, as the server sees it.

    Frames go in by `receive` and come out of `frames`; `close` must be called at the end.

    Args:
        live: The session.
        held: Settled tokens that the device holds already.
        window: What it may have in flight at first.
        changed: Called after each frame that the session has taken.
        closed: Called once the stream is over, with whether the session is over too.
    """

    def __init__(
        self,
        live: LiveSession,
        held: int,
        window: int,
        *,
        changed: Callable[[LiveSession], None],
        closed: Callable[[SessionHandle, bool], None],
    ) -> None:
        self.live = live
        self._changed_session = changed
        self._closed = closed
        self._window = window
        self._verdict = live.session.verdict_since(held, window)
        self._going_away: pb.GoAway | None = None
        self._error: Exception | None = None
        self._over = False
        self._wake = asyncio.Event()

    def receive(self, frame: pb.ClientFrame) -> None:
        """Take a frame of the device; on a stream that is over it counts no more, another may have followed.

        Raises:
            InvalidInput: It breaks the protocol; end the stream.
        """
        if self._error is not None or self.live.handle is not self:
            return
        now = time.monotonic()
        self.live.heard_at = now
        if frame.WhichOneof("frame") is None and not frame.settled:
            return  # empty, to keep a pace
        # Also where the session has finished meanwhile and the device did not wait to hear it.
        self._over |= frame.HasField("close")
        verdict = self.live.session.receive(frame, now)
        if verdict is not None:
            verdict.window = self._window
            self.tell(verdict)
        self._changed_session(self.live)
        self._wake.set()

    async def frames(self) -> AsyncGenerator[pb.ServerFrame, None]:
        """What to send to the device, `Opened` first, `Finished` or `GoAway` last.

        Verdicts that a slow reader has not taken yet are merged into one, so nothing piles up.

        Raises:
            EdgedraftError: Why the stream cannot go on.
        """
        session = self.live.session
        yield pb.ServerFrame(
            opened=pb.Opened(
                resume_token=self.live.resume_token,
                window=self._window,
                max_block=session.limits.frames.max_block,
                settled=len(session.tree.settled),
                epoch=session.tree.epoch,
                last_block=session.tree.last_block,
            )
        )
        while True:
            self._wake.clear()
            if self._verdict is not None:
                verdict, self._verdict = self._verdict, None
                yield pb.ServerFrame(verdict=verdict)
                continue
            if self._going_away is not None:
                going, self._going_away = self._going_away, None
                yield pb.ServerFrame(go_away=going)
                if self._error is None:
                    return
            if self._error is not None:
                raise self._error
            if session.state is State.FINISHED:
                # A device leaves as soon as it has this, so nobody may ask for more. If it got lost, the device resumes
                # from its own tokens.
                self._over = True
                yield pb.ServerFrame(finished=pb.Finished(reason=session.finish_reason, usage=session.usage))
                return
            await self._wake.wait()

    def close(self) -> None:
        """The stream has ended, in whatever way; may be called again."""
        self._closed(self, self._over)

    # ------------------------------------------------------------ for the orchestrator

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended it; one that has failed may still wait for its device to take a frame."""
        return self._error is None

    def tell(self, verdict: pb.Verdict) -> None:
        """Send a verdict, unless the stream has failed: who comes back is told what it does not hold."""
        if not self.is_open:
            return
        self._window = verdict.window
        self._verdict = verdict if self._verdict is None else merge_verdicts(self._verdict, verdict)
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after what is settled; the first error counts, and a wrong frame's is final."""
        if self._error is None:
            self._error = error
            self._over |= isinstance(error, InvalidInput)
        self._wake.set()

    def end(self, problem: str) -> None:
        """End the session for good."""
        self.fail(InvalidInput("session", problem, "open a new one"))

    def go_away(self, retry_after: float) -> None:
        """Ask the device to come back, in so many seconds."""
        self._going_away = pb.GoAway(resume_token=self.live.resume_token, retry_after_ms=round(retry_after * 1000))
        self._wake.set()
