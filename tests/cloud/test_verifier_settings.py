"""The settings of `edgedraft-verifier`, from file and flags."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

import edgedraft_cloud.cli as cli
from edgedraft.errors import (
    InvalidInput,
)
from edgedraft_cloud.config import ServerConfig

REQUIRED = {"model": "m", "tls": "t"}


def test_defaults_hold_where_neither_file_nor_flag_says_more():
    settings = ServerConfig.load(None, REQUIRED)
    assert settings == ServerConfig("m", Path("t"))
    assert (settings.host, settings.port, settings.engine) == ("127.0.0.1", 7443, "embedded")


def test_flags_overrule_the_file_and_absent_ones_do_not(tmp_path):
    file = tmp_path / "verifier.toml"
    file.write_text('model = "~/m"\ntls = "~/t"\nport = 1\nwindow = 40\ngrace_seconds = 2.5\n')
    settings = ServerConfig.load(file, {"port": 2, "window": None, "model": None})
    assert settings == ServerConfig("~/m", Path.home() / "t", port=2, window=40, grace_seconds=2.5)


def test_the_file_takes_every_setting(tmp_path):
    values = {
        "model": "m",
        "tls": "t",
        "host": "::1",
        "port": 0,
        "engine": "trace",
        "tenants": "tenants.toml",
        "threads": 2,
        "max_sessions": 3,
        "window": 20,
        "max_block": 10,
        "run_ahead": 0,
        "sealed_run_ahead": 2,
        "kv_tokens": 100,
        "context": 200,
        "step_tokens": 64,
        "verify_ms": "30+0.5@64",
        "grace_seconds": 0,
        "resume_seconds": 0,
        "idle_seconds": 1,
        "session_seconds": 60.5,
        "metrics_port": 0,
        "otlp_endpoint": "http://localhost:4317",
        "log_level": "debug",
    }
    assert set(values) == {field.name for field in fields(ServerConfig)}, "keep this list complete"
    file = tmp_path / "verifier.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    paths = {name: Path(values[name]) for name in ("tls", "tenants")}
    assert ServerConfig.load(file, {}) == ServerConfig(**{**values, **paths})


BAD_SETTINGS = [
    ("port", -1),
    ("port", 65536),
    ("port", "7443"),
    ("port", True),
    ("max_sessions", 0),
    ("window", 0),
    ("window", 2.5),
    ("max_block", 0),
    ("max_block", 33),  # more than the window
    ("run_ahead", -1),
    ("sealed_run_ahead", -1),
    ("kv_tokens", 63),
    ("context", 63),
    ("step_tokens", 7),
    ("step_tokens", 1.5),
    ("metrics_port", 65536),
    ("resume_seconds", -1),
    ("idle_seconds", 0),
    ("session_seconds", 0.5),
    ("session_seconds", True),
    ("verify_ms", 30),
    ("otlp_endpoint", 4317),
    ("tenants", 3),
    ("grace_seconds", -0.1),
    ("grace_seconds", float("inf")),
    ("grace_seconds", float("nan")),
    ("grace_seconds", "10"),
    ("threads", 0),
    ("threads", "2"),
    ("host", ""),
    ("host", 3),
    ("host", "no such host!"),
    ("host", "[::1]"),
    ("host", "a\0b"),
    ("log_level", "x" * 10_000),
    ("tls", "a\0b"),
    ("tls", "~nosuchuser/x"),
    ("tenants", "a\0b"),
    ("tenants", "~nosuchuser/x"),
    ("model", "a\0b"),
    ("model", "~nosuchuser/x"),
    ("metrics_port", 7443),  # as `port`
    ("engine", "abacus"),
    ("log_level", "INFO"),
    ("model", 3),
    ("model", ""),
    ("tls", []),
    ("colour", "red"),
]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_a_bad_setting_is_named_with_its_value_and_a_cure(name, value):
    with pytest.raises(InvalidInput) as caught:
        ServerConfig.load(None, {**REQUIRED, name: value})
    assert caught.value.field == name
    assert caught.value.cure
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", REQUIRED)
def test_a_setting_that_is_needed_is_asked_for(name):
    with pytest.raises(InvalidInput, match=f"pass --{name} or write it") as caught:
        ServerConfig.load(None, {other: value for other, value in REQUIRED.items() if other != name})
    assert caught.value.field == name


def test_a_number_that_python_reads_and_does_not_write_is_told(tmp_path):
    file = tmp_path / "verifier.toml"
    file.write_text(f"port = 0x{'f' * 5000}\n")
    with pytest.raises(InvalidInput, match="port: is a number of thousands of digits"):
        ServerConfig.load(file, REQUIRED)


def test_ports_that_are_to_be_found_may_be_the_same():
    assert ServerConfig.load(None, {**REQUIRED, "port": 0, "metrics_port": 0}).metrics_port == 0


@pytest.mark.parametrize(
    "content",
    [None, b"port = \n", b"\xff\xfe", b"port = " + b"1" * 5000, b"port = " + b"[" * 3000],
    ids=["none", "no value", "no UTF-8", "long number", "deep"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    file = tmp_path / "verifier.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"verifier\.toml") as caught:
        ServerConfig.load(file, REQUIRED)
    assert caught.value.field == "config"


def test_every_setting_is_a_flag(invoke):
    shown = invoke("serve", "--help").output
    for field in fields(ServerConfig):
        assert f"--{field.name.replace('_', '-')[:10]}" in shown


def test_flags_reach_the_settings(invoke, monkeypatch, tmp_path):
    seen = []

    async def serve(settings, exit_with_stdin):
        seen.append((settings, exit_with_stdin))

    monkeypatch.setattr(cli, "_serve", serve)
    file = tmp_path / "verifier.toml"
    file.write_text('host = "::1"\nthreads = 1\n')
    flags = "--model m --tls t --threads 2 --port 0 --max-block 4 --run-ahead 0 --grace-seconds 1.5 --log-level error"
    assert invoke("serve", "--config", file, *flags.split(), "--exit-with-stdin").exit_code == 0
    expected = ServerConfig(
        "m",
        Path("t"),
        host="::1",
        threads=2,
        port=0,
        max_block=4,
        run_ahead=0,
        grace_seconds=1.5,
        log_level="error",
    )
    assert seen == [(expected, True)]
