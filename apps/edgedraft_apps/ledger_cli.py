"""`edgedraft ledger`: look at what left this device."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from edgedraft.errors import LedgerError
from edgedraft.privacy.ledger import Entry, read_ledger
from edgedraft.privacy.sealed_file import KEY_BYTES, ledger_key

ledger_app = typer.Typer(no_args_is_help=True, help="Look at what left this device, and what was held back.")


@ledger_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="The ledger file that an app or `generate --ledger` has written.")],
    identity: Annotated[
        Path | None, typer.Option(help="Folder of this device's key and certificate, where `ledger.key` lies.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="A file with the 32 bytes of the key, in its place.")] = None,
    generation: Annotated[int | None, typer.Option(help="Only the n-th generation. [all]")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Empty frames too, which only keep a pace.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a line, with every field and the bytes of each frame.")
    ] = False,
) -> None:
    """Show every frame that left this device or came to it, with its text and what was held back from it.

    A file that was cut, changed or put in another order is told, behind what is found to be genuine.
    """
    secret = _key(identity, key)
    console = Console()
    for entry in read_ledger(file, secret):
        if generation not in (None, entry.generation):
            continue
        if as_json:
            typer.echo(json.dumps(entry.as_json(), ensure_ascii=False))
        elif everything or entry.kind != "empty":
            console.print(describe(entry), soft_wrap=True)


def describe(entry: Entry) -> Text:
    """A line for an entry, and one for what was held back."""
    line = Text(f"{datetime.fromtimestamp(entry.at):%H:%M:%S.%f}"[:-3], style="dim")
    arrow, style = ("→", "bold") if entry.direction == "up" else ("←", "")
    line.append(f" {arrow} {entry.kind:<15} {entry.size:>6} B  {entry.mode:<7} ", style=style)
    line.append(repr(entry.text) if entry.text else _ids(entry))
    if any(entry.given):
        line.append(f"  given: {sum(entry.given)} of {len(entry.given)}", style="cyan")
    for held in entry.held:
        line.append(f"\n{'':>15}kept on the device at {held.position}: {held.text or held.token!r}", style="green")
    return line


def _ids(entry: Entry) -> str:
    return f"{len(entry.tokens)} tokens" if entry.tokens else ""


def _key(identity: Path | None, key: Path | None) -> bytes:
    if identity is not None:
        return ledger_key(identity.expanduser())
    if key is None:
        raise LedgerError("no key was named; pass --identity or --key")
    secret = key.expanduser().read_bytes()
    if len(secret) != KEY_BYTES:
        raise LedgerError(f"{key} has {len(secret)} bytes, a key has {KEY_BYTES}")
    return secret
