"""`edgedraft-verifier` as an operator uses it: settings from file and flags, the check, certificates, the process."""

import asyncio
import json
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy import scripted_info, toy_target

import edgedraft_cloud.cli as cli
from edgedraft import __version__
from edgedraft.errors import (
    EdgedraftError,
    IdentityError,
    InvalidInput,
    ModelFormatError,
    ModelNotFound,
    VerifierUnavailable,
)
from edgedraft.identity import Identity
from edgedraft.runtime.manifest import Manifest, hash_file
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION, decode_describe_response, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.config import ENGINES, ServerConfig
from edgedraft_cloud.engines.scripted import ScriptedEngine

MODEL_CONFIG = {
    "model_type": "llama",
    "quantization": "q0f16",
    "eos_token_id": [2],
    "model_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 400,
        "context_window_size": 256,
    },
}


@pytest.fixture
def artifact(tmp_path) -> Path:
    """A folder that looks like an artifact; nothing can run it."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "mlc-chat-config.json").write_text(json.dumps(MODEL_CONFIG))
    files = {"mlc-chat-config.json": hash_file(folder / "mlc-chat-config.json")}
    Manifest("toy", "llama", "q0f16", "native", (), "f" * 64, "a" * 64, "Apache-2.0", files, "b" * 64).save(folder)
    return folder


def run(*arguments, **settings) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "edgedraft_cloud", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


# ---------------------------------------------------------------- check


def test_check_passes_what_is_sound_and_starts_nothing(invoke, artifact, certificates):
    shown = invoke("serve", "--check", "--model", artifact, "--tls", certificates.server())
    assert shown.exit_code == 0, shown.exception
    assert json.loads(shown.stdout) == {"event": "checked", "model": str(artifact)}


def test_check_finds_what_is_not_sound(invoke, artifact, certificates, tmp_path):
    def error(**changes) -> BaseException | None:
        flags = {"--model": artifact, "--tls": certificates.server(), **changes}
        return invoke("serve", "--check", *[part for pair in flags.items() for part in pair]).exception

    assert isinstance(error(**{"--tls": tmp_path}), IdentityError)
    assert isinstance(error(**{"--model": tmp_path}), ModelNotFound)
    assert isinstance(error(**{"--port": -1}), InvalidInput)
    assert isinstance(error(**{"--otlp-endpoint": "localhost"}), InvalidInput)
    assert isinstance(error(**{"--tenants": tmp_path / "none.toml"}), InvalidInput)
    (artifact / "mlc-chat-config.json").write_text(json.dumps(MODEL_CONFIG) + " ")
    assert isinstance(error(), ModelFormatError)


def test_check_names_the_line_of_a_mistake_in_the_tenants_file(artifact, certificates, tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[default]\nmax_sessions = 4\n\n[tenants.acme]\nweight = 3\ntokens_per_minute = -5\n")
    shown = run("serve", "--check", "--model", artifact, "--tls", certificates.server(), "--tenants", tenants)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith(f"error: tenants: {tenants}, line 6: tokens_per_minute is -5")
    tenants.write_text(tenants.read_text().replace("-5", "5"))
    shown = run("serve", "--check", "--model", artifact, "--tls", certificates.server(), "--tenants", tenants)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_an_engine_that_there_is_not_is_told_with_those_there_are(artifact, certificates):
    shown = run("serve", "--check", "--engine", "nonsense", "--model", artifact, "--tls", certificates.server())
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == "error: engine: is 'nonsense'; use one of: embedded, vllm, trace\n"


def test_the_trace_engine_needs_no_model(invoke, certificates, tmp_path):
    flags = ("serve", "--check", "--engine", "trace", "--tls", certificates.server())
    assert invoke(*flags, "--model", "any").exit_code == 0
    assert invoke(*flags, "--model", "any", "--verify-ms", "fast").exception.field == "verify_ms"
    assert isinstance(invoke(*flags, "--model", tmp_path / "none.jsonl").exception, InvalidInput)


def test_tls_files_that_are_none_are_told(invoke, artifact, tmp_path, certificates):
    tls = tmp_path / "tls"
    tls.mkdir()
    for name in ("key.pem", "cert.pem", "ca.pem"):
        (tls / name).write_bytes((certificates.server() / name).read_bytes())
    (tls / "cert.pem").write_text("nothing")
    shown = invoke("serve", "--check", "--model", artifact, "--tls", tls)
    assert isinstance(shown.exception, EdgedraftError)


# ---------------------------------------------------------------- certificates


def test_dev_ca_makes_what_server_and_device_need(invoke, tmp_path):
    folder = tmp_path / "ca"
    shown = invoke("dev-ca", folder, "--name", "verifier.example", "--tenant", "acme", "--device", "phone-1")
    made = json.loads(shown.stdout)
    identity = Identity.load(made["device"])
    assert (identity.tenant, identity.device) == ("acme", "phone-1")
    assert Path(made["server"]) == folder / "server"
    assert stat.S_IMODE((folder / "ca-key.pem").stat().st_mode) == 0o600
    assert json.loads(invoke("dev-ca", folder).stdout)["device"].endswith("dev/device")


def test_dev_ca_names_a_bad_name(invoke, tmp_path):
    assert invoke("dev-ca", tmp_path, "--tenant", "a/b").exception.field == "tenant"


# ---------------------------------------------------------------- the process


def test_version_and_help(invoke):
    assert invoke("--version").stdout.strip() == __version__
    shown = invoke("--help").output
    assert "serve" in shown
    assert "dev-ca" in shown


def test_help_teaches_how_to_serve(invoke):
    shown = " ".join(invoke("serve", "--help").output.split())
    assert "edgedraft-verifier serve --model ./target --tls ./certs/server" in shown
    for engine in ENGINES:
        assert engine in shown


def test_an_error_is_one_line_on_standard_error(tmp_path):
    shown = run("serve", "--tls", tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("error: model: is missing")
    assert shown.stderr.count("\n") == 1
    assert run("serve", "--port", "x").returncode == 2


SERVE_SCRIPTED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from edgedraft_cloud import cli
def make_engine(settings):
    from edgedraft_cloud.engines.scripted import ScriptedEngine
    from toy import scripted_info, toy_target
    from types import SimpleNamespace
    return ScriptedEngine(toy_target, scripted_info(SimpleNamespace(fingerprint="a" * 64, vocab_size=400)))
cli.make_engine = make_engine
cli.main()
"""
"""The real command, with an engine that needs no model."""


@pytest.fixture
async def start(certificates):
    """Starts verifiers and tells their ports; none outlives its test."""
    processes = []

    async def begin(*flags) -> tuple[asyncio.subprocess.Process, int]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVE_SCRIPTED, "serve"),
            *("--model", "m", "--tls", certificates.server(), "--port", "0", *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        ready = json.loads(await process.stdout.readline())
        assert ready["event"] == "ready"
        return process, ready["port"]

    yield begin
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def finish(process) -> tuple[int, list[dict]]:
    """Its exit status and its log."""
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    return process.returncode, [json.loads(line) for line in errors.decode().splitlines()]


async def test_it_serves_at_the_port_it_tells_and_leaves_in_good_order(start, certificates):
    process, port = await start()
    transport = GrpcTransport(f"localhost:{port}", Identity.load(certificates.device("acme", "phone-1")))
    request = pb.DescribeRequest(protocol=PROTOCOL_VERSION).SerializeToString()
    description = decode_describe_response(await transport.describe(request))
    await transport.close()
    assert (description.models[0].name, description.version) == ("toy", __version__)
    process.send_signal(signal.SIGTERM)
    status, log = await finish(process)
    assert status == 0
    assert [line["event"] for line in log] == ["loading", "serving", "stopping", "stopped"]


async def test_it_stops_when_standard_input_closes(start):
    process, _ = await start("--exit-with-stdin")
    process.stdin.close()
    assert (await finish(process))[0] == 0


@pytest.fixture
async def live_session(certificates):
    """Opens a session that stays parked: nothing is drafted, and the cloud goes no further than the first token."""
    transports = []

    async def begin(port):
        transport = GrpcTransport(f"localhost:{port}", Identity.load(certificates.device("acme", "phone-1")))
        transports.append(transport)
        stream = await transport.open_stream()
        opening = pb.Open(
            protocol=PROTOCOL_VERSION,
            tokenizer_fingerprint="a" * 64,
            mode=pb.MODE_OPEN,
            prompt=[5],
            limits=pb.Limits(max_tokens=9),
        )
        await stream.send(pb.ClientFrame(open=opening).SerializeToString())
        assert decode_server_frame(await stream.receive()).HasField("opened")
        assert decode_server_frame(await stream.receive()).HasField("verdict")
        return stream

    yield begin
    for transport in transports:
        await transport.close()


async def test_live_sessions_are_asked_to_go_when_their_time_is_over(start, live_session):
    process, port = await start("--grace-seconds", "0", "--run-ahead", "0")
    stream = await live_session(port)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        assert decode_server_frame(await stream.receive()).HasField("go_away")
    status, log = await finish(process)
    assert status == 0
    assert next(line for line in log if line["event"] == "stopping")["sessions"] == 1


async def test_a_second_interrupt_does_not_wait_for_live_sessions(start, live_session):
    process, port = await start("--grace-seconds", "3000", "--run-ahead", "0")
    await live_session(port)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        while json.loads(await process.stderr.readline())["event"] != "stopping":
            pass
    process.send_signal(signal.SIGINT)
    status, log = await finish(process)
    assert status == 130
    assert "stopped" not in [line["event"] for line in log]


async def test_a_port_that_is_taken_is_an_error_of_one_line(start, certificates):
    process, port = await start()
    command = [sys.executable, "-c", SERVE_SCRIPTED, "serve", "--model", "m", "--tls", certificates.server()]
    shown = await asyncio.to_thread(
        subprocess.run, [*command, "--port", str(port)], capture_output=True, text=True, timeout=120
    )
    process.send_signal(signal.SIGTERM)
    await finish(process)
    assert shown.returncode == 1
    *log, error = shown.stderr.splitlines()
    assert error.startswith(f"error: port: 127.0.0.1:{port} cannot be listened on")
    assert [json.loads(line)["event"] for line in log] == ["loading"]


@pytest.mark.parametrize("flags", [(), ("--metrics-port", "0")])
def test_a_host_that_nobody_knows_is_told_as_the_host(certificates, flags):
    command = ("serve", "--engine", "trace", "--model", "any", "--tls", certificates.server(), "--port", "0")
    shown = run(*command, "--host", "a..b", *flags)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == "error: host: 'a..b' is not known here; use an address or a name of this machine\n"


def test_the_embedded_engine_refuses_a_context_that_it_would_not_keep_to(invoke, artifact, certificates):
    command = ("serve", "--check", "--model", artifact, "--tls", certificates.server())
    assert invoke(*command, "--context", "128").exception.field == "context"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of open files is raised on Linux only")
async def test_it_takes_as_many_open_files_as_it_may(certificates):
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(256, hard)
    script = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({few}, {hard}))\n{SERVE_SCRIPTED}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, "serve", "--model", "m", "--tls", certificates.server(), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert json.loads(await process.stdout.readline())["event"] == "ready"
        limits = await asyncio.to_thread(Path(f"/proc/{process.pid}/limits").read_text)
    finally:
        process.kill()
        await process.communicate()
    (line,) = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
    assert line[3] == line[4] == str(hard)


def test_a_limit_of_open_files_that_may_not_be_raised_is_no_reason_not_to_serve(monkeypatch, caplog):
    resource = pytest.importorskip("resource")

    def refuse(*arguments):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    cli._raise_file_limit()
    assert caplog.messages == (["limit of open files stays"] if sys.platform == "linux" else [])


class Mortal(ScriptedEngine):
    """Starts once."""

    async def start(self) -> None:
        if self.starts:
            raise ModelNotFound("its disk is gone")
        await super().start()
        self.die()


async def test_an_engine_that_is_given_up_ends_the_process_with_an_error(certificates, monkeypatch):
    engine = Mortal(toy_target, scripted_info(SimpleNamespace(fingerprint="a", vocab_size=400)))
    monkeypatch.setattr(cli, "make_engine", lambda settings: engine)
    # They count for the whole process, which is the tests' own here.
    monkeypatch.setattr(cli, "gc", SimpleNamespace(collect=int, freeze=int, set_threshold=lambda *_: None))
    settings = ServerConfig.load(None, {"model": "m", "tls": str(certificates.server()), "port": 0})
    with pytest.raises(VerifierUnavailable, match="could not be started again"):
        async with asyncio.timeout(60):
            await cli._serve(settings, False)


async def test_a_real_verifier_replays_a_trace_over_the_wire(certificates):
    """The command as it stands, with the one engine that needs no model."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edgedraft_cloud", "serve", "--engine", "trace", "--model", "any"),
        *("--tls", certificates.server(), "--port", "0", "--verify-ms", "1", "--metrics-port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        ready = json.loads(await process.stdout.readline())
        assert ready["metrics_port"] != ready["port"]
        transport = GrpcTransport(f"localhost:{ready['port']}", Identity.load(certificates.device("acme", "phone-1")))
        request = pb.DescribeRequest(protocol=PROTOCOL_VERSION).SerializeToString()
        model = decode_describe_response(await transport.describe(request)).models[0]
        stream = await transport.open_stream()
        opening = pb.Open(
            protocol=PROTOCOL_VERSION,
            tokenizer_fingerprint=model.tokenizer_fingerprint,
            mode=pb.MODE_OPEN,
            prompt=[5],
            limits=pb.Limits(max_tokens=9, ignore_eos=True),
        )
        await stream.send(pb.ClientFrame(open=opening).SerializeToString())
        settled = 0
        while (data := await stream.receive()) is not None:
            settled += len(decode_server_frame(data).verdict.tokens)
        assert settled == 9
        await transport.close()
        process.send_signal(signal.SIGTERM)
        assert (await finish(process))[0] == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
