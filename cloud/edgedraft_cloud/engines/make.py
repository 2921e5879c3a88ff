"""Makes the engine that the settings name; an engine's packages are imported only where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edgedraft.errors import InvalidInput
from edgedraft_cloud.config import ServerConfig
from edgedraft_cloud.engines.base import Engine

KV_TOKENS: Final = 16_384
STEP_TOKENS: Final = 512
"""Rows that vLLM makes buffers for, unless more are asked for."""


def make_engine(settings: ServerConfig) -> Engine:
    """An engine, not started.

    Raises:
        ModelError: The target's files cannot be used.
        InvalidInput: A setting does not fit it.
    """
    match settings.engine:
        case "vllm":
            from edgedraft_cloud.engines.vllm import VllmEngine

            return VllmEngine(
                settings.model,
                context=settings.context,
                max_sessions=settings.max_sessions,
                max_block=settings.max_block,
                step_tokens=max(STEP_TOKENS, settings.step_tokens or 0, settings.max_block + 1),
                kv_tokens=settings.kv_tokens,
                threads=settings.threads,
            )
        case "trace":
            from edgedraft_cloud.engines.trace import make_trace_engine

            return make_trace_engine(settings)
        case _:
            if settings.context is not None:
                raise InvalidInput(
                    "context", "is not for the embedded engine, which takes the model's", "leave it out, or use vllm"
                )
            from edgedraft_cloud.engines.embedded import EmbeddedEngine

            return EmbeddedEngine(
                Path(settings.model).expanduser(),
                threads=settings.threads,
                max_sessions=settings.max_sessions,
                kv_tokens=settings.kv_tokens or KV_TOKENS,
                max_block=settings.max_block,
            )


def check_model(settings: ServerConfig) -> None:
    """Check what can be checked without loading the target.

    Raises:
        ModelError: The target's files cannot be used.
        InvalidInput: A setting does not fit the engine.
    """
    if settings.engine == "embedded":
        from edgedraft.runtime.manifest import Manifest

        folder = Path(settings.model).expanduser()
        Manifest.load(folder).verify(folder)
    make_engine(settings)
    if settings.engine == "vllm":
        from edgedraft_cloud.engines.vllm import hooks

        hooks.check()
