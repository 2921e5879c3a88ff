"""Traces: nothing at all when off, spans without content when on, and a collector that fails disturbs nobody."""

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from edgedraft.errors import InvalidInput
from edgedraft_cloud.tracing import Tracer

STEP = {"queue_seconds": 0.25, "verify_seconds": 0.5, "judged": 4, "accepted": 2, "settled": 3}


def run(tracer: Tracer, reason: str = "stop") -> None:
    trace = tracer.session("s-1", "acme", "phone-1")
    trace.step(**STEP)
    trace.end(reason)
    tracer.close()


def test_off_records_nothing_and_loads_nothing():
    code = (
        "import sys\nfrom edgedraft_cloud.tracing import Tracer\n"
        "trace = Tracer.off().session('s', 't', 'd')\n"
        f"trace.step(**{STEP!r})\ntrace.end('stop')\nTracer.off().close()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.stdout == "[]\n", shown.stderr


def test_off_makes_no_object_a_session():
    tracer = Tracer.off()
    assert tracer.session("a", "t", "d") is tracer.session("b", "t", "d")


def test_a_session_is_a_span_with_its_steps_below_it():
    exporter = InMemorySpanExporter()
    run(Tracer.through(exporter))
    step, session = exporter.get_finished_spans()
    assert (session.name, session.parent) == ("session", None)
    assert dict(session.attributes) == {
        "edgedraft.session": "s-1",
        "edgedraft.tenant": "acme",
        "edgedraft.device": "phone-1",
        "edgedraft.reason": "stop",
    }
    assert step.name == "step"
    assert step.parent.span_id == session.context.span_id
    assert dict(step.attributes) == {f"edgedraft.{name}": value for name, value in STEP.items()}
    assert step.end_time - step.start_time == 750_000_000
    assert session.resource.attributes["service.name"] == "edgedraft-verifier"


@pytest.mark.parametrize(("reason", "status"), [("failed", "ERROR"), ("closed", "UNSET")])
def test_a_session_that_failed_is_marked(reason, status):
    exporter = InMemorySpanExporter()
    run(Tracer.through(exporter), reason)
    assert exporter.get_finished_spans()[-1].status.status_code.name == status


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans = []

    def Export(self, request, context):
        self.spans += [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


def test_a_collector_gets_them_over_grpc():
    collector = Collector()
    with ThreadPoolExecutor(1) as workers:
        server = grpc.server(workers)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        run(Tracer.to(f"http://127.0.0.1:{port}"))
        server.stop(None).wait()
    assert [span.name for span in collector.spans] == ["step", "session"]


class Broken(SpanExporter):
    def export(self, spans):
        raise RuntimeError("no collector")

    def shutdown(self):
        pass


class Refusing(SpanExporter):
    def export(self, spans):
        return SpanExportResult.FAILURE

    def shutdown(self):
        pass


@pytest.mark.parametrize("exporter", [Broken, Refusing])
def test_an_exporter_that_fails_disturbs_nobody(exporter):
    run(Tracer.through(exporter()))


def test_a_collector_that_is_not_there_is_told_to_the_log(caplog, unused_tcp_port):
    with caplog.at_level(logging.WARNING):
        run(Tracer.to(f"http://127.0.0.1:{unused_tcp_port}"))
    assert any("127.0.0.1" in record.getMessage() for record in caplog.records)


def test_what_comes_after_the_end_is_dropped():
    exporter = InMemorySpanExporter()
    tracer = Tracer.through(exporter)
    tracer.close()
    run(tracer)
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    "endpoint", ["", "localhost:4317", "http://", "http://host", "http://host:port", "grpc://host:1", "http://h:1/v1"]
)
def test_an_endpoint_is_a_url_with_a_port(endpoint):
    with pytest.raises(InvalidInput, match="otlp_endpoint"):
        Tracer.to(endpoint)


def test_without_opentelemetry_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(InvalidInput, match=r"edgedraft\[otel\]"):
        Tracer.to("http://localhost:4317")
