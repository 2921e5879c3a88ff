"""Edgedraft on the device: draft here, verify in the cloud, keep the private prompt."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgedraft import errors
from edgedraft._version import __version__
from edgedraft.errors import EdgedraftError

if TYPE_CHECKING:
    from edgedraft.call import PublicView
    from edgedraft.client import Client
    from edgedraft.events import (
        DecidedBy,
        Drafted,
        Event,
        Finished,
        FinishReason,
        Interrupted,
        Resumed,
        Revised,
        Verified,
    )
    from edgedraft.generation import Generation
    from edgedraft.identity import Identity
    from edgedraft.privacy.detect import Detectors
    from edgedraft.privacy.gate import DecisionRule
    from edgedraft.privacy.guard import GuardLimits
    from edgedraft.privacy.ledger import Ledger
    from edgedraft.privacy.policy import Policy
    from edgedraft.privacy.shaping import Shaping
    from edgedraft.prompt import Message, Mode, Part, Prompt
    from edgedraft.report import Report
    from edgedraft.sampling import SamplingParams
    from edgedraft.sync import SyncClient

__all__ = [
    "Client",
    "DecidedBy",
    "DecisionRule",
    "Detectors",
    "Drafted",
    "EdgedraftError",
    "Event",
    "FinishReason",
    "Finished",
    "Generation",
    "GuardLimits",
    "Identity",
    "Interrupted",
    "Ledger",
    "Message",
    "Mode",
    "Part",
    "Policy",
    "Prompt",
    "PublicView",
    "Report",
    "Resumed",
    "Revised",
    "SamplingParams",
    "Shaping",
    "SyncClient",
    "Verified",
    "__version__",
    "errors",
]

_MODULES = {
    "call": ("PublicView",),
    "client": ("Client",),
    "events": (
        "DecidedBy",
        "Drafted",
        "Event",
        "FinishReason",
        "Finished",
        "Interrupted",
        "Resumed",
        "Revised",
        "Verified",
    ),
    "generation": ("Generation",),
    "identity": ("Identity",),
    "privacy.detect": ("Detectors",),
    "privacy.gate": ("DecisionRule",),
    "privacy.guard": ("GuardLimits",),
    "privacy.ledger": ("Ledger",),
    "privacy.policy": ("Policy",),
    "privacy.shaping": ("Shaping",),
    "prompt": ("Message", "Mode", "Part", "Prompt"),
    "report": ("Report",),
    "sampling": ("SamplingParams",),
    "sync": ("SyncClient",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On demand (PEP 562): who needs only the wire or the runtime, as a verifier does, does not load a client.
    if name not in _HOMES:
        raise AttributeError(f"module 'edgedraft' has no attribute {name!r}")
    return getattr(import_module(f"edgedraft.{_HOMES[name]}"), name)
