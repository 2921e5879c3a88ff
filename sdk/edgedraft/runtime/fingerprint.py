"""What tells one model and one tokenizer from another, on the device and in the cloud alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def model_fingerprint(weights_sha256: str, quantization: str) -> str:
    """Hex sha256 of a model.

    Args:
        weights_sha256: Of the 16-bit weights that it is made from.
        quantization: Their format in it, e.g. `q4f16_1`.
    """
    return hashlib.sha256(f"{weights_sha256}\n{quantization}".encode()).hexdigest()


def tokenizer_fingerprint(tokenizer: Mapping[str, Any]) -> str:
    """Hex sha256 of a tokenizer, the same for any layout of its `tokenizer.json`.

    Args:
        tokenizer: The file's contents.
    """
    canonical = json.dumps(tokenizer, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
