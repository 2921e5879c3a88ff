"""This device's key and certificate, and the CA by which it knows its verifier."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from edgedraft.errors import IdentityError
from edgedraft.wire import DEVICE_URI

_ENROL: Final = "enrol this device again"


@dataclass(frozen=True, slots=True)
class Identity:
    """What mutual TLS needs.

    Attributes:
        key: Private key, PEM.
        certificate: Certificate chain, PEM.
        ca: Certificate of the CA that the verifier's certificate must come from, PEM.
        tenant: Customer that this device belongs to, as the CA has written it into the certificate.
        device: Name of this device, likewise.
    """

    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    ca: bytes = field(repr=False)
    tenant: str
    device: str

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
            key, certificate, ca = ((folder / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
        except FileNotFoundError as error:
            raise IdentityError(f"{error.filename} is not there; {_ENROL}") from error
        except OSError as error:
            raise IdentityError(f"{error.filename} cannot be read ({error.strerror}); check its permissions") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise IdentityError(f"{key_path} is open to others (mode {stat.S_IMODE(mode):o}); run chmod 600 on it")
        parsed = _parse(folder, key, certificate, ca)
        _check_times(folder, parsed)
        return cls(key, certificate, ca, *_names(folder, parsed))


def _parse(folder: Path, key: bytes, certificate: bytes, ca: bytes) -> x509.Certificate:
    try:
        private = serialization.load_pem_private_key(key, password=None)
        parsed = x509.load_pem_x509_certificate(certificate)
        x509.load_pem_x509_certificates(ca)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"the files in {folder} are no key and certificates in PEM ({error}); {_ENROL}") from error
    if private.public_key() != parsed.public_key():
        raise IdentityError(f"key.pem and cert.pem in {folder} do not belong together; {_ENROL}")
    return parsed


def _check_times(folder: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now < certificate.not_valid_before_utc:
        raise IdentityError(
            f"the certificate in {folder} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; "
            "set this device's clock"
        )
    if now > certificate.not_valid_after_utc:
        raise IdentityError(
            f"the certificate in {folder} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {_ENROL}"
        )


def _names(folder: Path, certificate: x509.Certificate) -> tuple[str, str]:
    """Tenant and device of the certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        names = x509.SubjectAlternativeName([])
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        if match := DEVICE_URI.fullmatch(uri):
            return match["tenant"], match["device"]
    raise IdentityError(f"the certificate in {folder} names no device; {_ENROL}")
