"""This device's key and certificate, and the CA by which it knows its verifier."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from edgedraft.errors import IdentityError

_ENROL: Final = "enrol this device again"


@dataclass(frozen=True, slots=True)
class Identity:
    """What mutual TLS needs.

    Attributes:
        key: Private key, PEM.
        certificate: Certificate chain, PEM.
        ca: Certificate of the CA that the verifier's certificate must come from, PEM.
        name: SAN URI of the certificate: tenant and device as the CA has written them.
    """

    key: bytes = field(repr=False)
    certificate: bytes
    ca: bytes
    name: str

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load `key.pem`, `cert.pem` and `ca.pem`.

        Raises:
            IdentityError: A file is missing, cannot be read, is open to others, does not match, or is out of date.
        """
        folder = Path(folder)
        key_path = folder / "key.pem"
        try:
            mode = key_path.stat().st_mode
            key, certificate, ca = (_read(folder / name) for name in ("key.pem", "cert.pem", "ca.pem"))
        except FileNotFoundError as error:
            raise IdentityError(f"{error.filename} is not there; {_ENROL}") from error
        except OSError as error:
            raise IdentityError(f"{error.filename} cannot be read ({error.strerror}); check its permissions") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise IdentityError(f"{key_path} can be read by others (mode {stat.S_IMODE(mode):o}); run chmod 600 on it")
        return cls(key, certificate, ca, _check(folder, key, certificate))


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _check(folder: Path, key: bytes, certificate: bytes) -> str:
    """Check that key and certificate belong together and are valid now; the certificate's name."""
    try:
        private = serialization.load_pem_private_key(key, password=None)
        parsed = x509.load_pem_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise IdentityError(f"the files in {folder} are no key and device certificate ({error}); {_ENROL}") from error
    if private.public_key() != parsed.public_key():
        raise IdentityError(f"key.pem and cert.pem in {folder} do not belong together; {_ENROL}")
    now = datetime.now(UTC)
    if now < parsed.not_valid_before_utc:
        raise IdentityError(
            f"the certificate in {folder} is valid from {parsed.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; "
            "set this device's clock"
        )
    if now > parsed.not_valid_after_utc:
        raise IdentityError(
            f"the certificate in {folder} expired on {parsed.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {_ENROL}"
        )
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise IdentityError(f"the certificate in {folder} names no device; {_ENROL}")
    return uris[0]
