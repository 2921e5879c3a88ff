"""The terminal demo: everything real, on one machine, from the model's download to the answer."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from edgedraft.client import Client
from edgedraft.errors import InvalidInput
from edgedraft.events import Finished
from edgedraft.sampling import SamplingParams
from edgedraft_apps.local_verifier import local_verifier
from edgedraft_apps.progress import bars
from edgedraft_apps.terminal import report_table, show
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_models import BuiltPair, PairEntry, Store, build_pair


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo is asked to do.

    Attributes:
        prompt: One user message.
        pair: Drafter and target.
        source: Kind of source of the models; None takes the pair's default.
        rtt: Round-trip time to put in between, in seconds.
        sampling: How to choose tokens.

    Raises:
        InvalidInput: A setting is wrong.
    """

    prompt: str
    pair: PairEntry
    source: str | None
    rtt: float
    sampling: SamplingParams

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise InvalidInput("prompt", "is empty", "write something")
        if not 0 <= self.rtt <= 10:
            raise InvalidInput("rtt", f"is {self.rtt * 1000:g} ms", "use 0 to 10000")


def prepare(settings: DemoSettings, store: Store, console: Console) -> BuiltPair:
    """Fetch and build the pair, as far as it is not there.

    Raises:
        ModelError: It could not be had or built.
    """
    with bars(console) as report:
        return build_pair(store, settings.pair, source=settings.source, progress=report)


async def answer(settings: DemoSettings, pair: BuiltPair, home: Path, console: Console) -> Finished:
    """Start a verifier, answer the prompt through the SDK, and show it.

    Raises:
        EdgedraftError: Something failed.
    """
    authority = DevelopmentAuthority(home / "demo" / "certificates")
    async with AsyncExitStack() as stack:
        verifier = local_verifier(pair.target, authority.server(), log=home / "demo" / "verifier.log")
        port = await stack.enter_async_context(verifier)
        if settings.rtt:
            proxy = await stack.enter_async_context(WanProxy("127.0.0.1", port, rtt=settings.rtt))
            port = proxy.port
        client = await stack.enter_async_context(
            Client(pair.drafter, verifier=f"localhost:{port}", identity=authority.device("demo", "laptop"), mode="open")
        )
        await client.connect()
        where = f"another process, mTLS, RTT +{settings.rtt * 1000:.0f} ms"
        console.print(Text(f"drafter {pair.drafter.parent.name} {pair.drafter.name} here", style="dim"))
        console.print(Text(f"target  {pair.target.parent.name} {pair.target.name} in {where}", style="dim"))
        console.print(Rule(style="dim"))
        console.print(Text(settings.prompt, style="bold"))
        finished = await show(aiter(client.generate(settings.prompt, settings.sampling)), console)
    console.print(Rule(style="dim"))
    console.print(report_table(finished.report))
    return finished
