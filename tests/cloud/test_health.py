"""Readiness, as gRPC's health service and `/readyz` tell it, also where a watcher does not listen or there are many."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from bare_http2 import deaf_call
from devices import endless, turns
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edgedraft_cloud import health as health_module
from edgedraft_cloud.metrics import Metrics

WATCH = "/grpc.health.v1.Health/Watch"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@asynccontextmanager
async def health_stub(bench):
    identity = bench.identity
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.secure_channel(f"localhost:{bench.server.port}", credentials, options) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def request(service=""):
    return health_pb2.HealthCheckRequest(service=service)


@asynccontextmanager
async def deaf_watch(bench, certificates):
    """A watch that takes no status; the verifier has begun to write one."""
    folder = certificates.device("acme", "phone-1")
    before = bench.server._health._watches.total()
    async with deaf_call(bench.server.port, folder, WATCH, request().SerializeToString()), asyncio.timeout(30):
        while bench.server._health._watches.total() == before:
            await turns()
        yield


async def test_a_watcher_that_takes_nothing_holds_up_neither_the_others_nor_the_end(bench, certificates):
    async with deaf_watch(bench, certificates), health_stub(bench) as stub:
        watch = stub.Watch(request())
        assert (await watch.read()).status == SERVING
        async with asyncio.timeout(30):
            await bench.server.stop(0)
        assert (await watch.read()).status == NOT_SERVING


async def test_a_watcher_that_takes_nothing_is_not_kept(bench, certificates, monkeypatch):
    monkeypatch.setattr(health_module, "WRITE_SECONDS", 0.05)
    async with deaf_watch(bench, certificates), asyncio.timeout(30):
        while bench.server._health._watches:
            await turns()


async def test_watches_of_one_certificate_are_limited(bench, monkeypatch):
    monkeypatch.setattr(health_module, "DEVICE_WATCHES", 2)
    async with health_stub(bench) as stub:
        watches = [stub.Watch(request(service)) for service in ("", "unknown")]
        assert [(await watch.read()).status for watch in watches] == [SERVING, SERVICE_UNKNOWN]
        refused = stub.Watch(request())
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 watches of this certificate" in await refused.details()
        assert (await stub.Check(request())).status == SERVING
        for watch in watches:
            watch.cancel()
        async with asyncio.timeout(30):
            while bench.server._health._watches:
                await turns()
        again = stub.Watch(request())
        assert (await again.read()).status == SERVING
        again.cancel()


async def test_a_check_of_what_is_not_here_is_told(bench):
    async with health_stub(bench) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request("unknown"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_readiness_is_off_while_the_verifier_drains_and_an_engine_that_comes_back_changes_nothing(make, engine):
    metrics = Metrics()
    orchestrator = await make(metrics=metrics)
    assert metrics.is_ready
    handle = await orchestrator.open(endless(), "acme", "phone")
    draining = asyncio.create_task(orchestrator.drain(3000))
    await turns()
    assert not metrics.is_ready
    starts = engine.starts
    engine.die()
    async with asyncio.timeout(30):
        while engine.starts == starts or not orchestrator._supervisor.ready:
            await turns()
    assert not metrics.is_ready
    handle.close()
    draining.cancel()
    await asyncio.wait([draining])
