"""Detectors of Microsoft Presidio beside our own, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final, Protocol

from edgedraft.errors import InvalidInput
from edgedraft.privacy.detect.registry import Detector, Spans

ENTITIES: Final[Mapping[str, str]] = {
    "CREDIT_CARD": "CARD",
    "CRYPTO": "CRYPTO_WALLET",
    "EMAIL_ADDRESS": "EMAIL",
    "IBAN_CODE": "BANK_ACCOUNT",
    "IP_ADDRESS": "IP",
    "LOCATION": "ADDRESS",
    "PERSON": "PERSON",
    "PHONE_NUMBER": "PHONE",
    "US_PASSPORT": "NATIONAL_ID",
    "US_SSN": "NATIONAL_ID",
    "UK_NHS": "NATIONAL_ID",
}
"""Presidio's names of what it finds, and ours."""


class Analyzer(Protocol):
    """What is used of `presidio_analyzer.AnalyzerEngine`."""

    def analyze(self, text: str, language: str, entities: list[str]) -> Any:
        """Results with `start`, `end`, `entity_type` and `score`."""
        ...


def presidio_detectors(
    language: str = "en",
    *,
    entities: Mapping[str, str] = ENTITIES,
    least_score: float = 0.5,
    analyzer: Analyzer | None = None,
) -> dict[str, Detector]:
    """A detector for each of our kinds that Presidio knows, for `Detectors.with_detector`.

    Args:
        language: Of the texts; the analyzer needs a model for it.
        entities: Presidio's names, and the kinds to give them.
        least_score: Results with a lower score do not count, 0 to 1.
        analyzer: None makes Presidio's own.

    Raises:
        InvalidInput: Presidio is not installed, or a setting is wrong.
    """
    if not 0 <= least_score <= 1:
        raise InvalidInput("least_score", f"is {least_score}", "use 0 to 1")
    engine = analyzer or _make_analyzer()

    # All kinds ask for the same text one after the other; it is analysed once.
    @lru_cache(maxsize=1)
    def analyze(text: str) -> list[tuple[str, int, int]]:
        results = engine.analyze(text=text, language=language, entities=list(entities))
        return [(entities[r.entity_type], r.start, r.end) for r in results if r.score >= least_score]

    def find(kind: str, text: str) -> Spans:
        return [(start, end) for found, start, end in analyze(text) if found == kind]

    return {kind: partial(find, kind) for kind in dict.fromkeys(entities.values())}


def _make_analyzer() -> Analyzer:
    try:
        from presidio_analyzer import AnalyzerEngine
    except ImportError as error:
        raise InvalidInput(
            "analyzer", "needs presidio-analyzer, which is not installed", "run: pip install 'edgedraft[presidio]'"
        ) from error
    analyzer: Analyzer = AnalyzerEngine()
    return analyzer
