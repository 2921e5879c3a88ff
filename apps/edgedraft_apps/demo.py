"""The terminal demo: a verifier in a process of its own, mutual TLS, and one prompt answered through the SDK."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from edgedraft.client import Client
from edgedraft.errors import InvalidInput
from edgedraft.generation import Generation
from edgedraft.privacy.ledger import Page
from edgedraft.prompt import Mode, Prompt
from edgedraft.sampling import SamplingParams
from edgedraft_apps.local_verifier import HOST, local_verifier
from edgedraft_apps.terminal import printable, show
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_models import BuiltPair

PROMPT: Final = "Explain to [[Maria Lindqvist]] in a few sentences why the sky is blue."
MAX_RTT: Final = 10.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo is asked to do.

    Attributes:
        prompt: One user message; what is in [[double brackets]] is private.
        mode: The privacy mode.
        sampling: How to choose tokens and when to stop.
        rtt: Round trip to put between device and verifier, in seconds.
        engine: What runs the target.

    Raises:
        InvalidInput: A setting is wrong.
    """

    prompt: str = PROMPT
    mode: Mode = Mode.SEALED
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rtt: float = 0.0
    engine: str = "embedded"

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise InvalidInput("prompt", "is empty", "ask something")
        Prompt.marked(self.prompt)
        if not 0 <= self.rtt <= MAX_RTT:
            raise InvalidInput("rtt", f"is {self.rtt * 1000:g} ms", f"use 0 to {MAX_RTT * 1000:g}")


async def answer(settings: DemoSettings, pair: BuiltPair, folder: Path, console: Console) -> Generation:
    """Start a verifier, answer the prompt through the SDK, and show it.

    Args:
        settings: What to ask, and how.
        pair: A drafter and its target.
        folder: Where to keep the development CA and the verifier's log.
        console: Where to show it.

    Returns:
        The finished generation.

    Raises:
        EdgedraftError: What went wrong, with the cure.
    """
    drafter_threads, target_threads = share_cores(len(os.sched_getaffinity(0)))
    prompt = Prompt.marked(settings.prompt)
    async with AsyncExitStack() as stack:
        place, where = "none: the drafter answers alone", dict[str, Any]()
        if settings.mode is not Mode.LOCAL:
            place, where = await _verifier(settings, pair, folder, target_threads, stack, console)
        threads = drafter_threads if where else None
        client = await stack.enter_async_context(Client(pair.drafter, mode=settings.mode, threads=threads, **where))
        if where:
            await client.connect()
        for text in (f"drafter: {_name(pair.drafter)}", f"target:  {place}"):
            console.print(text, style="bright_black", markup=False, highlight=False, soft_wrap=True)
        console.print(_prompt(prompt), soft_wrap=True)
        _show_cloud(console, "before the answer", client.public_view(prompt).view.text)
        console.print()
        generation = client.generate(prompt, settings.sampling)
        await show(generation, console)
        _show_cloud(console, "of the answer", cloud_answer(generation.ledger))
    return generation


async def _verifier(
    settings: DemoSettings, pair: BuiltPair, folder: Path, threads: int, stack: AsyncExitStack, console: Console
) -> tuple[str, dict[str, Any]]:
    """Start a verifier for as long as the stack is open: what it is, and how a client gets there."""
    authority = DevelopmentAuthority(folder / "certificates")
    # One session fits any step, so there is no need to measure them.
    arguments = ["--engine", settings.engine, "--threads", str(threads), "--step-tokens", "64"]
    vllm = settings.engine == "vllm"
    model = pair.target_hf if vllm else pair.target
    with console.status("start the verifier" + (", vLLM takes about a minute" if vllm else "")):
        port = await stack.enter_async_context(
            local_verifier(model, authority.server(), log=folder / "verifier.log", arguments=arguments)
        )
    if settings.rtt:
        port = (await stack.enter_async_context(WanProxy(HOST, port, rtt=settings.rtt))).port
    link = f"over mTLS, {settings.rtt * 1000:g} ms of RTT added" if settings.rtt else "over mTLS"
    way = {"verifier": f"{HOST}:{port}", "identity": authority.device("demo", "this-device")}
    return f"{_name(model)} on {settings.engine}, in another process, {link}", way


def cloud_answer(page: Page) -> str:
    """The answer as the cloud has it in the end, from what left this device and what came: text."""
    tokens: dict[int, int] = {}
    for entry in page.entries():
        if entry.kind in ("draft", "verdict"):
            for position in [position for position in tokens if position >= entry.position + len(entry.tokens)]:
                del tokens[position]
            tokens |= dict(enumerate(entry.tokens, entry.position))
    return page.text_of([tokens[position] for position in sorted(tokens)])


def _prompt(prompt: Prompt) -> Text:
    """The prompt, its private parts marked."""
    text = Text("\n> ", style="bold")
    for part in (part for message in prompt.messages for part in message.parts):
        text.append(printable(part.text), "bold reverse" if part.private else "bold")
    return text


def _show_cloud(console: Console, what: str, text: str) -> None:
    shown = printable(text.strip()) or "nothing"
    console.print(f"\nthe cloud sees {what}: {shown}", style="magenta", markup=False, highlight=False, soft_wrap=True)


def share_cores(cores: int) -> tuple[int, int]:
    """Threads for the drafter and for the target where both run on one machine."""
    drafter = max(1, cores // 2)
    return drafter, max(1, cores - drafter)


def _name(folder: Path) -> str:
    return f"{folder.parent.name} {folder.name}"
