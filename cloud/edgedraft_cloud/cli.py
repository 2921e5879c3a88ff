"""`edgedraft-verifier`: serve a target, or make certificates for development."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from edgedraft.errors import EdgedraftError, InvalidInput, VerifierUnavailable
from edgedraft_cloud import logs
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.config import ServerConfig
from edgedraft_cloud.engines.make import check_model, make_engine
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.tenants import Tenants
from edgedraft_cloud.tracing import Tracer

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLD: Final = 20_000
"""Objects that a collection of the youngest waits for: a busy verifier makes and drops thousands a second."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="The cloud side of Edgedraft: one target model that verifies the drafts of many devices over mutual TLS.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("edgedraft"))
        raise typer.Exit


@app.callback()
def main_options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Shared options."""


@app.command()
def serve(
    context_: typer.Context,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The target: a built folder (embedded), a safetensors folder or hub id (vllm), a trace (trace)."
        ),
    ] = None,
    tls: Annotated[Path | None, typer.Option(help="Folder with key.pem, cert.pem and ca.pem.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="What runs the target: embedded, vllm, or trace (only replays one). [embedded]")
    ] = None,
    tenants: Annotated[Path | None, typer.Option(help="TOML file of tenants and limits. [every tenant]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 for all. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [7443]")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for the arithmetic. [the cores]")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Sessions that may be open at once. [16]")] = None,
    window: Annotated[int | None, typer.Option(help="Unverified tokens a session may have in flight. [32]")] = None,
    max_block: Annotated[int | None, typer.Option(help="Draft tokens in one frame. [16]")] = None,
    run_ahead: Annotated[
        int | None, typer.Option(help="Tokens the cloud may decode ahead of a device; 0 is off. [64]")
    ] = None,
    sealed_run_ahead: Annotated[
        int | None, typer.Option(help="The same in sealed mode, where the device may decide otherwise. [4]")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens in the KV cache, all sessions. [16384; with vllm on a GPU what it holds]")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of prompt and answer, not for embedded. [the model's]")
    ] = None,
    step_tokens: Annotated[
        int | None, typer.Option(help="Drafts and decoded tokens in one step. [measured at the start]")
    ] = None,
    verify_ms: Annotated[
        str | None, typer.Option(help="Step time of the trace engine: base or base+per_token@knee. [30]")
    ] = None,
    grace_seconds: Annotated[float | None, typer.Option(help="Time for live sessions at shutdown. [10]")] = None,
    resume_seconds: Annotated[
        float | None, typer.Option(help="How long a session waits for a device that went away. [60]")
    ] = None,
    idle_seconds: Annotated[float | None, typer.Option(help="How long a device may send nothing. [600]")] = None,
    session_seconds: Annotated[float | None, typer.Option(help="How long a session may live. [3600]")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port for Prometheus and probes. [none]")] = None,
    otlp_endpoint: Annotated[str | None, typer.Option(help="OpenTelemetry collector for traces. [none]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check settings, certificates and model, then exit.")] = False,
    exit_with_stdin: Annotated[
        bool, typer.Option(help="Stop when standard input closes: for a parent that may be killed.")
    ] = False,
) -> None:
    """Serve a target until SIGTERM or Ctrl-C; both let live sessions finish first, a second Ctrl-C does not.

    Once it serves, one JSON line on standard output tells the port. Logs go to standard error, as JSON lines, and hold
    no content.

    For example `edgedraft-verifier serve --model ./target --tls ./certs/server --port 7443`

    or `edgedraft-verifier serve --engine vllm --model ./target-hf --tls ./certs/server --tenants tenants.toml`
    """
    names = {field.name for field in fields(ServerConfig)}
    flags = {name: value for name, value in context_.params.items() if name in names}
    settings = ServerConfig.load(config, flags)
    logs.configure(settings.log_level)
    if check:
        _check(settings)
        typer.echo(json.dumps({"event": "checked", "model": settings.model}))
        return
    asyncio.run(_serve(settings, exit_with_stdin))


@app.command("dev-ca")
def dev_ca(
    folder: Annotated[Path, typer.Argument(help="Where to keep the authority; made if it is not there.")],
    name: Annotated[list[str] | None, typer.Option(help="Further host name or address of the server.")] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the device certificate.")] = "dev",
    device: Annotated[str, typer.Option(help="Name of the device certificate.")] = "device",
) -> None:
    """Make a certificate authority for development, a server certificate and one for a device.

    What is there and valid is kept. Never use it in production: its CA key lies unprotected in the folder.
    """
    authority = DevelopmentAuthority(folder)
    server, client = authority.server(name or []), authority.device(tenant, device)
    typer.echo(json.dumps({"server": str(server), "device": str(client)}))


def main() -> None:
    """Run the command; an error that we know is one line, not a traceback."""
    # gRPC's own lines on standard error are for its developers, and no JSON; what matters of them is in our errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except EdgedraftError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _check(settings: ServerConfig) -> None:
    from edgedraft_cloud.server import load_credentials

    load_credentials(settings.tls)
    _tenants(settings)
    _tracer(settings).close()
    check_model(settings)


def _tracer(settings: ServerConfig) -> Tracer:
    return Tracer.off() if settings.otlp_endpoint is None else Tracer.to(settings.otlp_endpoint)


def _tenants(settings: ServerConfig) -> Tenants:
    return Tenants.anyone() if settings.tenants is None else Tenants.load(settings.tenants)


async def _serve(settings: ServerConfig, exit_with_stdin: bool) -> None:
    # Here, because gRPC reads its environment when it is imported.
    from edgedraft_cloud.server import start_server

    await _check_host(settings.host)
    _raise_file_limit()
    stop = asyncio.Event()
    if exit_with_stdin:
        _watch_stdin(stop)
    engine = make_engine(settings)
    metrics = Metrics()
    tracer = _tracer(settings)
    orchestrator = Orchestrator(
        engine,
        tenants=_tenants(settings),
        metrics=metrics,
        tracer=tracer,
        window=settings.window,
        run_ahead=settings.run_ahead,
        sealed_run_ahead=settings.sealed_run_ahead,
        step_tokens=settings.step_tokens,
        resume_seconds=settings.resume_seconds,
        idle_seconds=settings.idle_seconds,
        session_seconds=settings.session_seconds,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(tracer.close)
        facts: dict[str, object] = {"event": "ready"}
        if settings.metrics_port is not None:
            listening = metrics.serve(settings.host, settings.metrics_port, asyncio.get_running_loop())
            stack.callback(listening.close)
            facts["metrics_port"] = listening.port
        logger.info("loading", extra={"model": engine.info.model, "engine": engine.info.engine})
        server = await start_server(orchestrator, settings.tls, settings.host, settings.port, metrics)
        # Not before: until here there is nothing to leave in good order, and the signals' own effect is the quickest.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop_or_quit, stop)
        # What was made until now stays; without this, every full collection walks all modules and the engine.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD, 10, 10)
        logger.info("serving", extra={"host": settings.host, "port": server.port, "room": orchestrator.room})
        sys.stdout.write(json.dumps({**facts, "port": server.port}) + "\n")
        sys.stdout.flush()
        lost = await _first(stop.wait(), server.engine_given_up()) == 1
        logger.info("stopping", extra={"sessions": orchestrator.live_sessions, "grace_seconds": settings.grace_seconds})
        await server.stop(0 if lost else settings.grace_seconds)
        logger.info("stopped")
    if lost:
        raise VerifierUnavailable("the engine died and could not be started again; its log lines say where")


async def _check_host(host: str) -> None:
    """Else a name that nobody knows would be told as a port that is taken."""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput("host", f"{host!r} is not known here", "use an address or a name of this machine") from error


def _raise_file_limit() -> None:
    """Take as many open files as this process may have: each connection of a device is one."""
    if sys.platform != "linux":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a sandbox may forbid it; what there is has to do
        logger.warning("limit of open files stays", extra={"limit": soft, "error": type(error).__name__})


async def _first(*waits: Coroutine[Any, Any, object]) -> int:
    """Wait for the first of them; its index."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(index for index, task in enumerate(tasks) if task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _stop_or_quit(stop: asyncio.Event) -> None:
    if stop.is_set():
        # Unwinding would wait for a step of the model, and grpcio complains of a server that nobody has stopped.
        os._exit(130)
    stop.set()


def _watch_stdin(stop: asyncio.Event) -> None:
    """Set `stop` when the other end of standard input closes, as it does when a parent dies in whatever way."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        with contextlib.suppress(OSError):  # it was never open
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch, name="edgedraft-stdin", daemon=True).start()
