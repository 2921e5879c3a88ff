"""Edgedraft on the device: draft here, verify in the cloud, keep the private prompt."""

from edgedraft._version import __version__

__all__ = ["__version__"]
