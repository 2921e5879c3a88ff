"""Sessions and their steps as OpenTelemetry traces: off unless a collector is named, and then free of cost."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from edgedraft.errors import InvalidInput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span
    from opentelemetry.trace import Tracer as OtelTracer

SERVICE: Final = "edgedraft-verifier"
EXPORT_SECONDS: Final = 3
"""How long the collector may take for a batch, retries included; also the most that `close` waits for it."""


class SessionTrace:
    """The trace of one session; this one records nothing."""

    __slots__ = ()

    def step(self, *, queue_seconds: float, verify_seconds: float, judged: int, accepted: int, settled: int) -> None:
        """A work of the session was done, just now.

        Args:
            queue_seconds: How long it waited for its step.
            verify_seconds: How long the step took.
            judged: Draft tokens that the target judged.
            accepted: Those of them that it accepted.
            settled: Newly settled tokens.
        """

    def end(self, reason: str) -> None:
        """The session ended.

        Args:
            reason: `stop`, `length`, `closed`, `failed`, `expired` or `drained`.
        """


class Tracer:
    """Where traces go; this one sends none."""

    __slots__ = ()

    @staticmethod
    def off() -> Tracer:
        """Record nothing."""
        return Tracer()

    @staticmethod
    def to(endpoint: str) -> Tracer:
        """Send traces to a collector by OTLP over gRPC, in the background.

        Where it cannot be reached, traces are dropped and the log says so. The variables that OpenTelemetry defines for
        every program work here too, such as `OTEL_TRACES_SAMPLER` and `OTEL_EXPORTER_OTLP_CERTIFICATE`.

        Args:
            endpoint: `http://host:port`, or `https://` for TLS.

        Raises:
            InvalidInput: The endpoint is no such URL, or OpenTelemetry is not installed.
        """
        try:
            url = urlsplit(endpoint)
            good = url.scheme in ("http", "https") and url.hostname and url.port and not url.path.strip("/")
        except ValueError:  # e.g. a port that is no number
            good = False
        if not good:
            raise InvalidInput("otlp_endpoint", f"is {endpoint!r}", "use http://host:port or https://host:port")
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        except ModuleNotFoundError as error:
            raise InvalidInput(
                "otlp_endpoint", "needs OpenTelemetry, which is not installed", "pip install 'edgedraft[otel]'"
            ) from error
        return Tracer.through(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS))

    @staticmethod
    def through(exporter: SpanExporter) -> Tracer:
        """Send traces through an exporter of OpenTelemetry, in the background."""
        return _SendingTracer(exporter)

    def session(self, session_id: str, tenant: str, device: str) -> SessionTrace:
        """Begin the trace of a session."""
        return _NO_TRACE

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""


_NO_TRACE: Final = SessionTrace()


class _SendingTracer(Tracer):
    """Keeps to itself: no global provider is set, so that other libraries in the process trace as they like."""

    __slots__ = ("_provider", "_tracer")

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        release = version("edgedraft")
        resource = Resource.create({"service.name": SERVICE, "service.version": release})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: OtelTracer = self._provider.get_tracer("edgedraft_cloud", release)

    def session(self, session_id: str, tenant: str, device: str) -> SessionTrace:
        span = self._tracer.start_span(
            "session",
            attributes={"edgedraft.session": session_id, "edgedraft.tenant": tenant, "edgedraft.device": device},
        )
        return _SentTrace(self._tracer, span)

    def close(self) -> None:
        self._provider.shutdown()


class _SentTrace(SessionTrace):
    """A span for the session, and one below it for each of its steps."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: OtelTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def step(self, *, queue_seconds: float, verify_seconds: float, judged: int, accepted: int, settled: int) -> None:
        from opentelemetry.trace import set_span_in_context

        end = time.time_ns()
        span = self._tracer.start_span(
            "step",
            context=set_span_in_context(self._span),
            start_time=end - round((queue_seconds + verify_seconds) * 1e9),
            attributes={
                "edgedraft.queue_seconds": queue_seconds,
                "edgedraft.verify_seconds": verify_seconds,
                "edgedraft.judged": judged,
                "edgedraft.accepted": accepted,
                "edgedraft.settled": settled,
            },
        )
        span.end(end)

    def end(self, reason: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("edgedraft.reason", reason)
        if reason == "failed":
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
