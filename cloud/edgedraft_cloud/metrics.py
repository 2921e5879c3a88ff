"""What the verifier does, as Prometheus metrics, and the little HTTP server that shows them and its health."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from edgedraft.errors import InvalidInput
from edgedraft_cloud.engines.base import Step

logger = logging.getLogger(__name__)

MAX_TENANTS: Final = 200
"""Tenants with series of their own; further ones share those of `OTHERS`."""
OTHERS: Final = "other"
LOOP_SECONDS: Final = 5.0
"""How soon the event loop must answer to count as alive."""
REQUEST_SECONDS: Final = 10.0
"""How long a client of the HTTP server may take over its request."""

# From a step on a GPU that is not busy to one on a loaded CPU.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS: Final = tuple(float(2**n) for n in range(14))
_SESSIONS: Final = (0.0, *(float(2**n) for n in range(11)))


@dataclass(frozen=True, slots=True)
class _TenantSeries:
    """One tenant's series, looked up once because a verdict touches three of them."""

    opened: Counter
    resumed: Counter
    prompt_tokens: Counter
    judged: Counter
    accepted: Counter
    settled: Counter


class Metrics:
    """The verifier's metrics. Its labels are names of tenants, which certificates bound, and words of this program.

    What each one means stands in its help text, which `/metrics` shows. All methods may be called from one thread while
    others read.

    Attributes:
        registry: Holds them, apart from those of other libraries in the process.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"edgedraft_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"edgedraft_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"edgedraft_{name}", text, labels, buckets=buckets, registry=registry)

        self._opened = counter("sessions_opened", "Sessions that were taken in.", "tenant")
        self._resumed = counter("sessions_resumed", "Sessions whose device came back.", "tenant")
        self._closed = counter("sessions_closed", "Sessions that ended, by why.", "tenant", "reason")
        self._refused = counter("sessions_refused", "Sessions that were not taken in, by why.", "tenant", "reason")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of the prompts of opened sessions.", "tenant")
        self._judged = counter("draft_tokens_judged", "Draft tokens that the target judged.", "tenant")
        self._accepted = counter("draft_tokens_accepted", "Draft tokens that the target accepted.", "tenant")
        self._settled = counter("tokens_settled", "Tokens of answers: accepted drafts and the target's own.", "tenant")
        self._queue = histogram("queue_seconds", "How long a session's work waited for its step.", _SECONDS)
        self._verify = histogram("verify_seconds", "How long the step of a session's work took.", _SECONDS)
        self._step_seconds = histogram("step_seconds", "How long a step of the engine took.", _SECONDS)
        self._step_rows = histogram("step_rows", "Rows of a step: drafts, one more a session, prompt.", _ROWS)
        step_sessions = histogram("step_sessions", "Sessions in a step, by whether they had drafts.", _SESSIONS, "kind")
        self._drafting = step_sessions.labels("drafting")
        self._decoding = step_sessions.labels("decoding")
        self._prompt_rows = counter("step_prompt_rows", "Rows of steps that were prompt, read first or again.")
        self._kv_used = gauge("kv_used_ratio", "Share of the KV cache that is in use.")
        self._evictions = counter("kv_evictions", "Sessions whose KV was given up for others.")
        sessions = gauge("sessions", "Sessions by state.", "state")
        self._working = sessions.labels("working")
        self._parked = sessions.labels("parked")
        self._detached = sessions.labels("detached")
        self._restarts = counter("engine_restarts", "Times that a dead engine was started again.")
        self._ready = gauge("ready", "1 while sessions are taken in.")
        self._is_ready = False
        self._is_draining = False
        self._tenants: dict[str, _TenantSeries] = {}

    def opened(self, tenant: str, prompt_tokens: int) -> None:
        """A session was taken in."""
        series = self._of(tenant)
        series.opened.inc()
        series.prompt_tokens.inc(prompt_tokens)

    def resumed(self, tenant: str) -> None:
        """A session's device came back."""
        self._of(tenant).resumed.inc()

    def closed(self, tenant: str, reason: str) -> None:
        """A session ended.

        Args:
            tenant: Whose it was.
            reason: `stop`, `length`, `closed`, `failed`, `expired` or `drained`.
        """
        self._closed.labels(self._label(tenant), reason).inc()

    def refused(self, tenant: str, reason: str) -> None:
        """A session was not taken in.

        Args:
            tenant: Who asked; one that never had a session gets no series of its own.
            reason: `sessions`, `tenant_sessions`, `tenant_tokens`, `unknown_tenant`,
                `draining`, `engine`, `engine_room` or `opening` (a stream that is no session yet).
        """
        self._refused.labels(self._label(tenant), reason).inc()

    def verdict(
        self, tenant: str, *, queue_seconds: float, verify_seconds: float, judged: int, accepted: int, settled: int
    ) -> None:
        """A session's work was done.

        Args:
            tenant: Whose it is.
            queue_seconds: How long the work waited for its step.
            verify_seconds: How long the step took.
            judged: Draft tokens that the target judged.
            accepted: Those of them that it accepted.
            settled: Newly settled tokens.
        """
        self._queue.observe(queue_seconds)
        self._verify.observe(verify_seconds)
        series = self._of(tenant)
        series.judged.inc(judged)
        series.accepted.inc(accepted)
        series.settled.inc(settled)

    def step(self, step: Step, *, drafting: int, decoding: int) -> None:
        """The engine has done a step.

        Args:
            step: What it reports.
            drafting: Sessions in it that had drafts.
            decoding: Sessions in it that had none.
        """
        self._step_seconds.observe(step.seconds)
        self._step_rows.observe(step.tokens)
        self._prompt_rows.inc(step.prompt_tokens)
        self._drafting.observe(drafting)
        self._decoding.observe(decoding)
        self._kv_used.set(step.kv_used)
        self._evictions.inc(step.evicted)

    def sessions(self, *, working: int, parked: int, detached: int) -> None:
        """How many sessions are in each state now: with work, without, and without their device."""
        self._working.set(working)
        self._parked.set(parked)
        self._detached.set(detached)

    def engine_restarted(self) -> None:
        """A dead engine was started again."""
        self._restarts.inc()

    def ready(self, ready: bool) -> None:
        """Whether sessions are taken in from now on; not so at first."""
        self._is_ready = ready and not self._is_draining
        self._ready.set(self._is_ready)

    def draining(self) -> None:
        """No sessions are taken in any more, whatever becomes of the engine meanwhile."""
        self._is_draining = True
        self.ready(False)

    @property
    def is_ready(self) -> bool:
        """Whether sessions are taken in."""
        return self._is_ready

    def serve(self, host: str, port: int, loop: asyncio.AbstractEventLoop | None = None) -> MetricsServer:
        """Serve `/metrics`, `/readyz` and `/healthz` over HTTP, on a thread of its own.

        `/readyz` answers 200 while sessions are taken in and 503 otherwise; `/healthz` answers 200 as long as the
        event loop runs.

        Args:
            host: Address to listen on.
            port: Port; 0 takes a free one.
            loop: The event loop that has to be alive; None: that the process is there is enough.

        Raises:
            InvalidInput: The port cannot be had.
        """
        try:
            return MetricsServer(_Listener(host, port, self, loop))
        except OSError as error:
            raise InvalidInput(
                "metrics_port",
                f"{host}:{port} cannot be listened on ({error.strerror})",
                "choose another, or 0 for a free one",
            ) from error

    def _label(self, tenant: str) -> str:
        return tenant if tenant in self._tenants else OTHERS

    def _of(self, tenant: str) -> _TenantSeries:
        series = self._tenants.get(tenant)
        if series is None:
            name = tenant if len(self._tenants) < MAX_TENANTS else OTHERS
            series = _TenantSeries(
                opened=self._opened.labels(name),
                resumed=self._resumed.labels(name),
                prompt_tokens=self._prompt_tokens.labels(name),
                judged=self._judged.labels(name),
                accepted=self._accepted.labels(name),
                settled=self._settled.labels(name),
            )
            if name == tenant:
                self._tenants[tenant] = series
        return series


class MetricsServer:
    """A running HTTP server. Made by `Metrics.serve`; `close` must be called at the end.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, listener: _Listener) -> None:
        self._listener = listener
        self.port: int = listener.server_address[1]
        # It looks for the wish to close that often.
        self._thread = threading.Thread(
            target=listener.serve_forever, args=(0.2,), name="edgedraft-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end the thread."""
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()


class _Listener(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: Metrics, loop: asyncio.AbstractEventLoop | None) -> None:
        self.metrics = metrics
        self.loop = loop
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def loop_is_alive(self) -> bool:
        if self.loop is None:
            return True
        answer: Future[bool] = Future()
        try:
            self.loop.call_soon_threadsafe(answer.set_result, True)
            return answer.result(LOOP_SECONDS)
        except (RuntimeError, TimeoutError):  # closed, or stuck
            return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or sent nonsense is its own affair."""
        error = sys.exc_info()[0]
        logger.debug("metrics request failed", extra={"error": error and error.__name__})


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        metrics = self.server.metrics
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, encode(metrics.registry), kind)
            case "/readyz":
                self._say(metrics.is_ready, "ready", "not ready")
            case "/healthz":
                self._say(self.server.loop_is_alive(), "alive", "the event loop does not answer")
            case _:
                self._answer(404, b"try /metrics, /readyz or /healthz\n")

    def _say(self, fine: bool, yes: str, no: str) -> None:
        self._answer(200 if fine else 503, f"{yes if fine else no}\n".encode())

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not a word: a request comes every few seconds, and its text is the client's."""
