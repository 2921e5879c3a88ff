"""Finds what is personal or secret in a text, on the device: a small registry of detectors, one a kind of thing."""

from edgedraft.privacy.detect.registry import Detector, Detectors, Finding

__all__ = ["Detector", "Detectors", "Finding"]
