"""`edgedraft bench load`: many devices of many tenants against a running verifier, and what they saw."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from edgedraft.errors import InvalidInput
from edgedraft.identity import Identity
from edgedraft_apps.bench.crowd import Crowd, Pace, jain_index, percentile
from edgedraft_apps.bench.measured import LoopLag, Samples
from edgedraft_apps.bench.results import Row
from edgedraft_apps.bench.trace_drafter import Material, RecordedMaterial
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.authority import DevelopmentAuthority

Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What to load a verifier with.

    Attributes:
        verifier: `host:port`.
        sessions: Generations under way at once, all tenants together.
        seconds: How long to measure.
        warm_up: Seconds before that.
        rtt: Round trip to add, in seconds.
        pace: What each device does.

    Raises:
        InvalidInput: A value is out of range.
    """

    verifier: str
    sessions: int
    seconds: float
    warm_up: float = 2.0
    rtt: float = 0.0
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise InvalidInput("sessions", f"is {self.sessions}", "use at least 1")
        if not 0 < self.seconds <= 86_400:
            raise InvalidInput("seconds", f"is {self.seconds}", "use more than 0, up to a day")
        if not 0 <= self.warm_up <= 3600:
            raise InvalidInput("warm_up", f"is {self.warm_up}", "use 0 to 3600")


def make_identities(authority: Path, tenants: int, devices: int) -> list[list[Identity]]:
    """Certificates for devices of several tenants, from a development CA.

    Args:
        authority: The CA's folder; `edgedraft-verifier dev-ca` makes one.
        tenants: How many; their names are `tenant-1`, `tenant-2`, ...
        devices: How many each.

    Raises:
        InvalidInput: A number is out of range, or there is no CA.
        IdentityError: The CA cannot be used.
    """
    for name, value in (("tenants", tenants), ("devices", devices)):
        if not 1 <= value <= 4096:
            raise InvalidInput(name, f"is {value}", "use 1 to 4096")
    if not (authority / "ca-key.pem").is_file():
        raise InvalidInput("ca", f"{authority} holds none", "pass the folder of `edgedraft-verifier dev-ca`")
    issuer = DevelopmentAuthority(authority)
    return [
        [Identity.load(issuer.device(f"tenant-{tenant}", f"device-{device}")) for device in range(1, devices + 1)]
        for tenant in range(1, tenants + 1)
    ]


async def run_load(
    settings: LoadSettings, identities: Sequence[Sequence[Identity]], material: Material, progress: Progress
) -> list[Row]:
    """Load a verifier and gather what the devices saw.

    Args:
        settings: How much.
        identities: The devices of each tenant.
        material: What to ask and to draft.
        progress: Told how far it is.

    Raises:
        InvalidInput: The verifier's target is not that of the material.
        VerifierError: The verifier cannot be reached, refuses a device, or not one session came to a verdict.
    """
    samples, lag = Samples(), LoopLag()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(lag)
        verifier = settings.verifier
        if settings.rtt:
            host, _, port = verifier.rpartition(":")
            proxy = await stack.enter_async_context(WanProxy(host, int(port), rtt=settings.rtt))
            verifier = f"localhost:{proxy.port}"
        crowds = [
            await stack.enter_async_context(Crowd(verifier, devices, material, settings.pace, samples))
            for devices in identities
        ]
        for number, crowd in enumerate(crowds):
            progress("connect", number, len(crowds), "tenants")
            try:
                await crowd.connect()
            except InvalidInput as error:
                raise InvalidInput(
                    "trace",
                    "is not of this verifier's target" if isinstance(material, RecordedMaterial) else "is missing",
                    "record the target's answers with `edgedraft bench record`; without a trace, only "
                    "`edgedraft-verifier serve --engine trace --model any` can be loaded",
                ) from error
        for number, crowd in enumerate(crowds):
            share = settings.sessions // len(crowds) + (number < settings.sessions % len(crowds))
            crowd.start(share)
        await wait("warm up", settings.warm_up, progress)
        start = time.monotonic()
        await wait("load", settings.seconds, progress)
        end = time.monotonic()
        progress("stop", 0, 1, "")
        for crowd in crowds:
            await crowd.stop()
    problem = next((crowd.problem for crowd in crowds if crowd.problem is not None), None)
    if problem is not None and not samples.between(start, end):
        raise problem
    names = [devices[0].tenant for devices in identities]
    own = percentile(lag.between(start, end), 0.99) * 1000
    return [*_rows(samples, crowds, names, start, end), Row("delay of the load tool itself p99", "all", own, "ms")]


async def wait(stage: str, seconds: float, progress: Progress) -> None:
    """Let time pass, and tell."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress(stage, round(seconds - left), round(seconds), "seconds")
        await asyncio.sleep(min(1.0, left))


def _rows(samples: Samples, crowds: Sequence[Crowd], names: Sequence[str], start: float, end: float) -> list[Row]:
    seen = samples.between(start, end)
    waits = [wait for sample in seen for wait in sample.waits]
    settled = {name: sum(s.settled for s in seen if s.tenant == name) for name in names}
    seconds = end - start
    reports = [report for crowd in crowds for report in crowd.reports]
    right, wrong = (sum(getattr(sample, name) for sample in seen) for name in ("right", "wrong"))
    rows = [
        Row("settled tokens/s", "all", sum(settled.values()) / seconds, "1/s"),
        Row("accepted drafts/s", "all", sum(sample.accepted for sample in seen) / seconds, "1/s"),
        Row("verdicts/s", "all", len(seen) / seconds, "1/s"),
        Row("verdict time p50", "all", percentile(waits, 0.5) * 1000, "ms"),
        Row("verdict time p99", "all", percentile(waits, 0.99) * 1000, "ms"),
        Row("sessions finished", "all", len(reports)),
        Row("sessions refused", "all", sum(crowd.refused for crowd in crowds)),
        Row("Jain index of settled tokens", f"{len(names)} tenants", jain_index(list(settled.values()))),
    ]
    if right + wrong:
        rows.append(Row("acceptance rate α", "all", right / (right + wrong)))
    errors = sum((crowd.errors for crowd in crowds), Counter[str]())
    rows.append(Row("errors", "all", errors.total()))
    rows += [Row("errors", kind, count) for kind, count in sorted(errors.items())]
    for name, crowd in zip(names, crowds, strict=True):
        mine = [wait for sample in seen if sample.tenant == name for wait in sample.waits]
        rows += [
            Row("settled tokens", name, settled[name]),
            Row("verdict time p99", name, percentile(mine, 0.99) * 1000, "ms"),
            Row("sessions finished", name, len(crowd.reports)),
            Row("sessions refused", name, crowd.refused),
        ]
    return rows
