"""Loading a verifier: the devices are real clients over mutual TLS, and what they saw is counted."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgedraft.errors import InvalidInput, Unauthenticated
from edgedraft.identity import Identity
from edgedraft_apps.bench.crowd import Crowd, Pace, ParkedSessions
from edgedraft_apps.bench.echo import echo_cost
from edgedraft_apps.bench.load import LoadSettings, make_identities, run_load
from edgedraft_apps.bench.measured import LoopLag, Samples
from edgedraft_apps.bench.suite import Suite
from edgedraft_apps.bench.trace_drafter import AnyMaterial
from edgedraft_apps.cli import app
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.engines.trace import StepTime, TraceEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import start_server
from edgedraft_cloud.tenants import Tenant, Tenants

SECONDS = 60


@asynccontextmanager
async def verifier(folder: Path, **settings):
    """A verifier with a trace engine in this process; yields its address."""
    engine = TraceEngine(None, StepTime.parse("1"), max_sessions=settings.pop("max_sessions", 16))
    server = await start_server(Orchestrator(engine, **settings), DevelopmentAuthority(folder).server(), "localhost", 0)
    try:
        yield f"localhost:{server.port}"
    finally:
        await server.stop(0)


async def until(condition) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


def figures(rows) -> dict[tuple[str, str], float]:
    return {(row.metric, row.case): row.value for row in rows}


async def test_many_devices_of_two_tenants(tmp_path):
    stages = []
    async with verifier(tmp_path) as address:
        settings = LoadSettings(address, 4, 1.0, 0.2, rtt=0.002, pace=Pace(0.001, 16))
        rows = await run_load(
            settings, make_identities(tmp_path, 2, 2), AnyMaterial(0.8), lambda *report: stages.append(report[0])
        )
    found = figures(rows)
    assert found["settled tokens/s", "all"] > 0
    assert found["sessions finished", "all"] > 0
    assert found["settled tokens", "tenant-1"] > 0
    assert found["settled tokens", "tenant-2"] > 0
    assert 0.5 < found["acceptance rate α", "all"] < 1
    assert found["verdict time p99", "all"] >= found["verdict time p50", "all"] > 0
    assert (found["errors", "all"], found["sessions refused", "all"]) == (0, 0)
    assert set(stages) == {"connect", "warm up", "load", "stop"}


async def test_refusals_are_counted_and_tried_again(tmp_path):
    DevelopmentAuthority(tmp_path)
    (devices,) = make_identities(tmp_path, 1, 1)
    samples = Samples()
    async with (
        verifier(tmp_path, max_sessions=1) as address,
        Crowd(address, devices, AnyMaterial(1.0), Pace(0.01, 4096), samples) as crowd,
    ):
        crowd.start(2)
        await until(lambda: crowd.refused and samples.verdicts)
        await crowd.stop()
    assert not crowd.errors


async def test_where_nothing_can_be_measured_the_error_says_why(tmp_path):
    acme = Tenants({"acme": Tenant("acme")}, None)
    async with verifier(tmp_path, tenants=acme) as address:
        settings = LoadSettings(address, sessions=2, seconds=0.2, warm_up=0.2)
        with pytest.raises(Unauthenticated, match="'tenant-1' is not served here"):
            await run_load(settings, make_identities(tmp_path, 1, 2), AnyMaterial(1.0), lambda *_: None)


async def test_a_verifier_of_a_real_target_needs_a_trace(tmp_path, bench):
    identities = [[bench.identity]]
    settings = LoadSettings(f"localhost:{bench.server.port}", sessions=1, seconds=0.2)
    with pytest.raises(InvalidInput, match="trace: is missing; record the target's answers with `edgedraft bench rec"):
        await run_load(settings, identities, AnyMaterial(1.0), lambda *_: None)


async def test_a_verifier_that_dies_is_an_error_to_each_session(tmp_path):
    DevelopmentAuthority(tmp_path)
    (devices,) = make_identities(tmp_path, 1, 2)
    samples = Samples()
    async with verifier(tmp_path) as address:
        crowd = Crowd(address, devices, AnyMaterial(1.0), Pace(0.01, 4096), samples)
        crowd.start(2)
        await until(lambda: samples.verdicts)
        await crowd.stop()
    async with crowd:
        with pytest.raises(Exception, match="nothing listens"):
            await Crowd(address, devices, AnyMaterial(1.0), Pace(), samples).connect()


async def test_a_device_of_another_authority_is_refused(tmp_path):
    stranger = Identity.load(DevelopmentAuthority(tmp_path / "other").device("a", "b"))
    own = DevelopmentAuthority(tmp_path / "own").device("a", "b")
    mixed = Identity(stranger.key, stranger.certificate, Identity.load(own).ca, "a", "b")
    async with (
        verifier(tmp_path / "own") as address,
        Crowd(address, [mixed], AnyMaterial(1.0), Pace(), Samples()) as crowd,
    ):
        with pytest.raises(Unauthenticated):
            await crowd.connect()


async def test_parked_sessions_come_to_rest_and_stay(tmp_path):
    DevelopmentAuthority(tmp_path)
    ((device,),) = make_identities(tmp_path, 1, 1)
    engine = TraceEngine(None, StepTime.parse("1"), max_sessions=16)
    orchestrator = Orchestrator(engine, run_ahead=4)
    server = await start_server(orchestrator, DevelopmentAuthority(tmp_path).server(), "localhost", 0)
    async with ParkedSessions(f"localhost:{server.port}", device, AnyMaterial(1.0), 5) as parked:
        await parked.rest(0.2)
        assert orchestrator.live_sessions == 5
        assert not parked.errors
        await server.stop(0)
        await until(lambda: parked.errors.total() == 5)


async def test_the_loop_s_own_delay_is_seen():
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    async with LoopLag(clock) as lag:
        await until(lambda: len(lag.lags) > 2)
    assert all(delay == pytest.approx(0.48) for delay in lag.between(0, 1e9))
    assert lag.between(0, 0) == []


def test_a_suite_has_tenants_and_a_shorter_time_when_quick(tmp_path):
    suite = Suite(tmp_path, True, lambda *report: None)
    assert suite.seconds(60) == 10
    assert "weight = 3" in suite.tenants(a=3).read_text(encoding="utf-8")
    assert [each.tenant for each in suite.devices("a", 2)] == ["a", "a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("load", "--verifier", "localhost:1"), "identity"),
        (("load", "--verifier", "localhost:1", "--identity", "x", "--tenants", "2"), "tenants"),
        (("load", "--verifier", "localhost:1", "--ca", "none"), "ca"),
        (("load", "--verifier", "localhost:1", "--ca", "none", "--alpha", "2"), "alpha"),
        (("load", "--verifier", "localhost:1", "--ca", "none", "--trace", "none"), "trace"),
        (("verifier", "--only", "nonsense"), "only"),
        (("record", "out", "--prompts", "none"), "prompts"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_one_line(arguments, message):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 1
    assert f"error: {message}" in result.stderr


async def test_the_command_writes_its_json(tmp_path):
    async with verifier(tmp_path) as address:
        DevelopmentAuthority(tmp_path).device("dev", "device")
        command = [sys.executable, "-m", "edgedraft_apps", "bench", "load", "--verifier", address]
        command += ["--identity", str(tmp_path / "devices" / "dev" / "device"), "--sessions", "2", "--seconds", "0.5"]
        command += ["--warm-up", "0", "--draft-ms", "1", "--json", str(tmp_path / "load.json")]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert "settled tokens/s" in output.decode()
    assert json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))["suite"] == "load"


async def test_what_grpc_alone_costs_is_measured_on_its_own_streams(tmp_path):
    suite = Suite(tmp_path, quick=True, progress=lambda *_: None)
    before = children(os.getpid())
    cost = await echo_cost(suite, streams=3, frames_a_second=50, seconds=1)
    assert 0 < cost < 1
    assert children(os.getpid()) == before


def children(pid: int) -> list[int]:
    """Processes whose parent this is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_suite_leaves_no_verifier(number, code):
    command = [sys.executable, "-m", "edgedraft_apps", "bench", "verifier", "--only", "cost"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("connect" in line for line in process.stderr)
        handles = [os.pidfd_open(child) for child in children(process.pid)]
        process.send_signal(number)
        process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert handles
    for handle in handles:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        assert poller.poll(SECONDS * 1000)
        os.close(handle)
