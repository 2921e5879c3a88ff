"""Fetch, convert, quantize and compile models: what `edgedraft models` does, as functions."""

from edgedraft_models.build import (
    ArtifactInfo,
    BuiltPair,
    ModelInfo,
    Provenance,
    build_hf,
    build_model,
    build_pair,
    check_artifact,
    fetch,
    info,
)
from edgedraft_models.progress import Progress
from edgedraft_models.registry import Build, ModelEntry, PairEntry, Registry, load_registry
from edgedraft_models.store import Store, default_home

__all__ = [
    "ArtifactInfo",
    "Build",
    "BuiltPair",
    "ModelEntry",
    "ModelInfo",
    "PairEntry",
    "Progress",
    "Provenance",
    "Registry",
    "Store",
    "build_hf",
    "build_model",
    "build_pair",
    "check_artifact",
    "default_home",
    "fetch",
    "info",
    "load_registry",
]
