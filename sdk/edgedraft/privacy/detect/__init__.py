"""Finds what is personal or secret in a text, on the device: detectors by kind, to which an app adds its own."""

from edgedraft.privacy.detect.registry import Detector, Detectors, Finding, Spans, uncovered

__all__ = ["Detector", "Detectors", "Finding", "Spans", "uncovered"]
