"""`edgedraft bench`: record real generations, load a verifier, and measure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from edgedraft.errors import InvalidInput
from edgedraft.identity import Identity
from edgedraft_apps.bench.command import (
    OutOption,
    PromptsOption,
    QuickOption,
    StrictOption,
    chosen_parts,
    finish,
    run_suite,
)
from edgedraft_apps.bench.crowd import Pace
from edgedraft_apps.bench.gateway import fairness, gateway_cost, isolation, parked
from edgedraft_apps.bench.load import LoadSettings, make_identities, run_load
from edgedraft_apps.bench.machine import describe_machine
from edgedraft_apps.bench.privacy.cli import privacy, rule
from edgedraft_apps.bench.prompts import DEFAULT_PROMPTS, load_prompts
from edgedraft_apps.bench.results import Result, Row
from edgedraft_apps.bench.steps import steps
from edgedraft_apps.bench.suite import Suite, run_to_the_end
from edgedraft_apps.bench.trace_drafter import AnyMaterial, Material, RecordedMaterial
from edgedraft_apps.models_cli import RegistryOption, SourceOption
from edgedraft_apps.progress import ProgressBars
from edgedraft_cloud.engines.trace_file import TraceFile
from edgedraft_models import build_hf, build_model, build_pair, load_registry

bench_app = typer.Typer(no_args_is_help=True, help="Measure: real figures as a table and as JSON.")
bench_app.command()(privacy)
bench_app.command()(rule)

VERIFIER_PARTS: Final[dict[str, Callable[[Suite], Coroutine[Any, Any, list[Row]]] | None]] = {
    "same": None,
    "speed": None,
    "engine": None,
    "cost": gateway_cost,
    "fairness": fairness,
    "isolation": isolation,
    "steps": steps,
    "parked": parked,
}
"""Parts of the suite `verifier`; those without a function are `target_figures`, on vLLM."""


@bench_app.command()
def record(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="The trace file to make.")],
    prompts: PromptsOption = DEFAULT_PROMPTS,
    pair: Annotated[str | None, typer.Option(help="Pair of `edgedraft models list`. [the default pair]")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Artifact folder, in place of the pair's.")] = None,
    target: Annotated[Path | None, typer.Option(help="Artifact folder, in place of the pair's.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 128,
    limit: Annotated[int | None, typer.Option(help="Take so many prompts, evenly spread over the file. [all]")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for the arithmetic. [the cores]")] = None,
    registry: RegistryOption = None,
    source: SourceOption = None,
) -> None:
    """Record what a target answers, and what a drafter would have drafted at each token.

    `edgedraft-verifier serve --engine trace --model OUT` and `bench load --trace OUT` replay it at any speed. What was
    interrupted goes on where it was.
    """
    # Only here: it loads TVM.
    from edgedraft_apps.bench.record import Recorder, RecordSettings
    from edgedraft_apps.bench.record import record as record_traces

    asked = load_prompts(prompts, limit)
    with ProgressBars(Console(stderr=True)) as progress:
        if drafter is None or target is None:
            built = build_pair(context.obj, load_registry(registry).pair(pair), source=source, progress=progress)
            drafter, target = drafter or built.drafter, target or built.target
        recorder = Recorder(RecordSettings(drafter, target, max_tokens, threads), describe_machine())
        traces = record_traces(recorder, asked, out, progress)
    tokens = sum(len(trace.tokens) for trace in traces.traces.values())
    typer.echo(f"{out}: {len(traces.traces)} prompts, {tokens} tokens, α {traces.acceptance_rate:.3f}")


@bench_app.command()
def load(
    verifier: Annotated[str, typer.Option(help="host:port of a running verifier.")],
    identity: Annotated[
        Path | None, typer.Option(help="Folder with key.pem, cert.pem and ca.pem: all devices are this one.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Folder of `dev-ca`: issues a certificate for each device.")] = None,
    sessions: Annotated[int, typer.Option(help="Generations under way at once.")] = 16,
    tenants: Annotated[int, typer.Option(help="Tenants that they are spread over; needs --ca.")] = 1,
    devices: Annotated[int | None, typer.Option(help="Devices of each tenant. [one for each session]")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 30.0,
    warm_up: Annotated[float, typer.Option(help="Seconds before that.")] = 2.0,
    trace: Annotated[
        Path | None, typer.Option(help="What `bench record` made. [for `--engine trace --model any`]")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Share of the drafts that are right. [the trace's own; without one, 0.8]")
    ] = None,
    draft_ms: Annotated[float, typer.Option(help="Time of a step of each device's drafter.")] = 20.0,
    rtt: Annotated[float, typer.Option(help="Round trip to add, in milliseconds.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 128,
    block_size: Annotated[int, typer.Option(help="Draft tokens to gather into a frame.")] = 4,
    seed: Annotated[int, typer.Option(help="Fixes where drafts are wrong.")] = 0,
    out: OutOption = None,
) -> None:
    """Load a running verifier with devices that replay drafts, over mutual TLS, and show what they saw.

    A verifier that serves a real target needs a trace of that target. Certificates that `--ca` issues are kept in its
    folder; their tenants are called tenant-1, tenant-2 and so on, and the verifier must serve them.

    Example: `edgedraft bench load --verifier localhost:7443 --ca ./certs --sessions 64 --tenants 4 --trace out.jsonl`
    """
    material: Material
    if trace is None:
        material = AnyMaterial(0.8 if alpha is None else alpha, seed)
    else:
        material = RecordedMaterial(TraceFile.load(trace), alpha, seed)
    settings = LoadSettings(
        verifier, sessions, seconds, warm_up, rtt / 1000, Pace(draft_ms / 1000, max_tokens, block_size)
    )
    if (identity is None) == (ca is None):
        raise InvalidInput("identity", "and ca exclude each other, and one is needed", "pass --identity or --ca")
    each = devices if devices is not None else -(-sessions // max(1, tenants))
    if ca is not None:
        identities = make_identities(ca, tenants, each)
    elif tenants > 1:
        raise InvalidInput("tenants", f"is {tenants}, one identity has one tenant", "pass --ca")
    else:
        assert identity is not None
        identities = [[Identity.load(identity)] * max(1, each)]
    with ProgressBars(Console(stderr=True)) as progress:
        rows = run_to_the_end(run_load(settings, identities, material, progress))
    finish(Result("load", rows), out, strict=False)


@bench_app.command()
def verifier(
    context: typer.Context,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only this part; may be given again. One of: {', '.join(VERIFIER_PARTS)}.")
    ] = None,
    prompts: PromptsOption = DEFAULT_PROMPTS,
    pair: Annotated[str | None, typer.Option(help="Pair of `edgedraft models list`. [the default pair]")] = None,
    limit: Annotated[int, typer.Option(help="Take so many prompts, evenly spread over the file.")] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 128,
    draft_ms: Annotated[float, typer.Option(help="Time of a step of each device's drafter.")] = 10.0,
    registry: RegistryOption = None,
    source: SourceOption = None,
    quick: QuickOption = False,
    strict: StrictOption = False,
    out: OutOption = None,
) -> None:
    """Check the verifier's figures.

    `same` and `speed` compare the verifier on vLLM with plain vLLM: the same tokens, and how much faster they come. The
    drafts are those of the pair's real drafter, replayed, so that it takes no time from the target. `engine` looks at
    vLLM without a gateway. `cost`, `fairness`, `isolation`, `steps` and `parked` look at what is around the engine,
    with one that only replays.
    """
    parts = chosen_parts(only, VERIFIER_PARTS)
    on_vllm = [name for name in parts if VERIFIER_PARTS[name] is None]
    settings = None
    if on_vllm:
        # Only here: it loads TVM.
        from edgedraft_apps.bench.target import TargetSettings, target_figures

        chosen, store = load_registry(registry).pair(pair), context.obj
        with ProgressBars(Console(stderr=True)) as progress:
            hf = build_hf(store, chosen.target.model, source=source, progress=progress)
            drafter = build_model(store, chosen.drafter, source=source, progress=progress)
        settings = TargetSettings(hf, drafter, load_prompts(prompts, limit), tokens, draft_ms / 1000)

    async def run(suite: Suite) -> list[Row]:
        rows = [] if settings is None else await target_figures(suite, settings, on_vllm)
        for name in parts:
            part = VERIFIER_PARTS[name]
            rows += [] if part is None else await part(suite)
        return rows

    finish(Result("verifier", run_suite(run, quick)), out, strict=strict)


@bench_app.command()
def capacity(
    context: typer.Context,
    prompts: PromptsOption = DEFAULT_PROMPTS,
    pair: Annotated[str, typer.Option(help="Pair of `edgedraft models list`.")] = "qwen2.5-coder",
    limit: Annotated[int, typer.Option(help="Take so many prompts, evenly spread over the file.")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 24,
    draft_ms: Annotated[float, typer.Option(help="Time of a step of each device's drafter.")] = 20.0,
    gamma: Annotated[int, typer.Option(help="Draft tokens a step of the draft model beside the target.")] = 4,
    clients: Annotated[str, typer.Option(help="Numbers of clients to measure with, ascending.")] = "1,2,4,8",
    registry: RegistryOption = None,
    source: SourceOption = None,
    quick: QuickOption = False,
    strict: StrictOption = False,
    out: OutOption = None,
) -> None:
    """Count the clients that one target serves at the same time between tokens, by who drafts.

    Devices draft for a verifier on vLLM; a draft model drafts beside the target in vLLM; or nobody drafts.
    """
    # Only here: it loads TVM.
    from edgedraft_apps.bench.capacity import CapacitySettings, capacity_figures

    chosen, store = load_registry(registry).pair(pair), context.obj
    with ProgressBars(Console(stderr=True)) as progress:
        target, beside = (
            build_hf(store, each.model, source=source, progress=progress) for each in (chosen.target, chosen.drafter)
        )
        drafter = build_model(store, chosen.drafter, source=source, progress=progress)
    try:
        numbers = tuple(int(number) for number in clients.split(","))
    except ValueError as error:
        raise InvalidInput("clients", f"is {clients!r}", "write numbers, e.g. 1,2,4,8") from error
    settings = CapacitySettings(
        target, beside, drafter, load_prompts(prompts, limit), tokens, draft_ms / 1000, gamma, numbers
    )
    rows = run_suite(lambda suite: capacity_figures(suite, settings), quick)
    finish(Result("capacity", rows), out, strict=strict)
