"""The verifier's metrics say what happened, stay few, and are served with the probes on a port of their own."""

import asyncio
import http.client
import socket
import threading

import pytest

from edgedraft.errors import InvalidInput
from edgedraft_cloud import metrics as module
from edgedraft_cloud.engines.base import Step
from edgedraft_cloud.metrics import MAX_TENANTS, Metrics


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def server(metrics):
    server = metrics.serve("127.0.0.1", 0)
    yield server
    server.close()


def get(server, path, accept="*/*", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers={"Accept": accept})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"edgedraft_{name}", labels)


def test_a_session_is_counted_from_its_opening_to_its_end(metrics):
    metrics.opened("acme", prompt_tokens=12)
    metrics.resumed("acme")
    metrics.closed("acme", "length")
    assert value(metrics, "sessions_opened_total", tenant="acme") == 1
    assert value(metrics, "prompt_tokens_total", tenant="acme") == 12
    assert value(metrics, "sessions_resumed_total", tenant="acme") == 1
    assert value(metrics, "sessions_closed_total", tenant="acme", reason="length") == 1


def test_a_verdict_adds_to_its_tenants_tokens_and_to_the_times_of_all(metrics):
    for tenant in ("acme", "bolt"):
        metrics.verdict(tenant, queue_seconds=0.004, verify_seconds=0.2, judged=5, accepted=3, settled=4)
    assert value(metrics, "draft_tokens_judged_total", tenant="acme") == 5
    assert value(metrics, "draft_tokens_accepted_total", tenant="acme") == 3
    assert value(metrics, "tokens_settled_total", tenant="bolt") == 4
    assert value(metrics, "queue_seconds_count") == 2
    assert value(metrics, "queue_seconds_bucket", le="0.005") == 2
    assert value(metrics, "queue_seconds_bucket", le="0.0025") == 0
    assert value(metrics, "verify_seconds_sum") == pytest.approx(0.4)


def test_a_step_is_shown_by_rows_sessions_and_memory(metrics):
    step = Step(batch=1, outcomes=(), tokens=40, prompt_tokens=30, seconds=0.05, kv_used=0.25, evicted=2)
    metrics.step(step, drafting=3, decoding=1)
    metrics.step(step, drafting=0, decoding=0)
    assert value(metrics, "step_rows_sum") == 80
    assert value(metrics, "step_prompt_rows_total") == 60
    assert value(metrics, "step_seconds_count") == 2
    assert value(metrics, "step_sessions_sum", kind="drafting") == 3
    assert value(metrics, "step_sessions_bucket", kind="drafting", le="0.0") == 1
    assert value(metrics, "step_sessions_sum", kind="decoding") == 1
    assert value(metrics, "kv_used_ratio") == 0.25
    assert value(metrics, "kv_evictions_total") == 4


def test_states_restarts_and_readiness(metrics):
    assert value(metrics, "ready") == 0
    metrics.ready(True)
    metrics.sessions(working=3, parked=2, detached=1)
    metrics.engine_restarted()
    assert value(metrics, "ready") == 1
    assert metrics.is_ready
    assert [value(metrics, "sessions", state=state) for state in ("working", "parked", "detached")] == [3, 2, 1]
    assert value(metrics, "engine_restarts_total") == 1


def test_labels_of_tenants_are_bounded_and_nothing_is_lost(metrics):
    for number in range(MAX_TENANTS + 5):
        metrics.opened(f"tenant-{number}", 1)
        metrics.closed(f"tenant-{number}", "stop")
    assert value(metrics, "sessions_opened_total", tenant=f"tenant-{MAX_TENANTS - 1}") == 1
    assert value(metrics, "sessions_opened_total", tenant=f"tenant-{MAX_TENANTS}") is None
    assert value(metrics, "sessions_opened_total", tenant="other") == 5
    assert value(metrics, "sessions_closed_total", tenant="other", reason="stop") == 5


def test_whoever_is_only_refused_takes_no_label(metrics):
    metrics.opened("acme", 1)
    metrics.refused("acme", "tenant_tokens")
    for number in range(3):
        metrics.refused(f"stranger-{number}", "unknown_tenant")
    assert value(metrics, "sessions_refused_total", tenant="acme", reason="tenant_tokens") == 1
    assert value(metrics, "sessions_refused_total", tenant="other", reason="unknown_tenant") == 3
    assert "stranger" not in str(list(metrics.registry.collect()))


def test_two_verifiers_in_a_process_do_not_mix(metrics):
    other = Metrics()
    other.opened("acme", 1)
    assert value(metrics, "sessions_opened_total", tenant="acme") is None


def test_prometheus_reads_them_in_both_of_its_formats(metrics, server):
    metrics.opened("acme", 1)
    plain = get(server, "/metrics")
    newer = get(server, "/metrics?x=1", accept="application/openmetrics-text;version=1.0.0")
    for status, text in (plain, newer):
        assert status == 200
        assert 'edgedraft_sessions_opened_total{tenant="acme"} 1.0' in text
        assert "process_resident_memory_bytes" in text
    assert newer[1].endswith("# EOF\n")
    assert not plain[1].endswith("# EOF\n")


def test_ready_follows_what_it_was_told(metrics, server):
    assert get(server, "/readyz") == (503, "not ready\n")
    metrics.ready(True)
    assert get(server, "/readyz") == (200, "ready\n")
    metrics.ready(False)
    assert get(server, "/readyz")[0] == 503


def test_other_paths_and_methods_are_refused(server):
    assert get(server, "/")[0] == 404
    assert get(server, "/metrics/../readyz")[0] == 404
    assert get(server, "/metrics", method="POST")[0] == 501


def test_nonsense_disturbs_nobody(server, capfd):
    for nonsense in (b"\x16\x03\x01\x00\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(nonsense)
    assert get(server, "/healthz") == (200, "alive\n")
    assert capfd.readouterr() == ("", "")


async def test_alive_is_as_long_as_the_event_loop_answers(metrics, monkeypatch):
    loop = asyncio.get_running_loop()
    server = metrics.serve("127.0.0.1", 0, loop)
    try:
        assert await asyncio.to_thread(get, server, "/healthz") == (200, "alive\n")
        monkeypatch.setattr(module, "LOOP_SECONDS", 0.01)
        # On this thread, so that the loop cannot run meanwhile.
        assert get(server, "/healthz")[0] == 503
    finally:
        server.close()


def test_an_event_loop_that_is_closed_is_not_alive(metrics):
    loop = asyncio.new_event_loop()
    loop.close()
    server = metrics.serve("127.0.0.1", 0, loop)
    try:
        assert get(server, "/healthz")[0] == 503
    finally:
        server.close()


def test_close_gives_back_the_port_and_the_thread(metrics):
    server = metrics.serve("127.0.0.1", 0)
    server.close()
    assert "edgedraft-metrics" not in {thread.name for thread in threading.enumerate()}
    metrics.serve("127.0.0.1", server.port).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no such host"])
def test_a_port_that_cannot_be_had_is_named(metrics, server, host):
    with pytest.raises(InvalidInput, match=f"metrics_port: {host}:{server.port} cannot be listened on"):
        metrics.serve(host, server.port)


def test_it_listens_on_ipv6_too(metrics):
    try:
        metrics.serve("::1", 0).close()
    except InvalidInput as error:
        pytest.skip(f"this machine has no IPv6: {error}")
