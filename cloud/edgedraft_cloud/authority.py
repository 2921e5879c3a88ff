"""A certificate authority for development: one CA, a server certificate, and a certificate for each device.

Tenant and device stand in the certificate's SAN as `spiffe://edgedraft/tenant/<tenant>/device/<device>`, and nowhere
else: the server takes them from there alone. Keys are ECDSA P-256, which every gRPC build accepts.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgedraft.errors import IdentityError, InvalidInput
from edgedraft.wire import DEVICE_URI

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"

_CA_LIFE: Final = timedelta(days=365)
_LIFE: Final = timedelta(days=30)
_RENEW_BEFORE: Final = timedelta(days=1)
_SKEW: Final = timedelta(minutes=5)
_DNS_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


def device_uri(tenant: str, device: str) -> str:
    """The SAN URI of a device.

    Raises:
        InvalidInput: A name has characters beyond letters, digits, dot, dash and underscore, or is too long.
    """
    for field, name in (("tenant", tenant), ("device", device)):
        uri = f"spiffe://edgedraft/tenant/{name}/device/{name}"
        if not DEVICE_URI.fullmatch(uri):
            raise InvalidInput(field, f"is {name!r}", "use 1 to 63 letters, digits, dots, dashes or underscores")
    return f"spiffe://edgedraft/tenant/{tenant}/device/{device}"


class DevelopmentAuthority:
    """Issues certificates below one folder; what is there and still valid is used again.

    ```
    <folder>/ca.pem, ca-key.pem
    <folder>/server/{ca,cert,key}.pem
    <folder>/devices/<tenant>/<device>/{ca,cert,key}.pem
    ```

    Args:
        folder: Made if it is not there, readable by its owner only.

    Raises:
        IdentityError: The folder cannot be written, or what lies there is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _alone(folder):
                if not _valid(folder / CA_CERTIFICATE, folder / CA_KEY):
                    self._make_ca()
                self._key = _load_key(folder / CA_KEY)
                self._certificate = _load_certificate(folder / CA_CERTIFICATE)
            self._ca_pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, names: Sequence[str] = ()) -> Path:
        """A folder with the server's key and certificate.

        Args:
            names: DNS names and addresses besides localhost, 127.0.0.1 and ::1.

        Raises:
            InvalidInput: A name cannot stand in a certificate.
            IdentityError: The folder cannot be written, or what lies there is damaged.
        """
        wanted = [_general_name(name) for name in dict.fromkeys(("localhost", "127.0.0.1", "::1", *names))]
        return self._issue(self._folder / "server", "edgedraft verifier", wanted, ExtendedKeyUsageOID.SERVER_AUTH)

    def device(self, tenant: str, device: str) -> Path:
        """A folder with a device's key and certificate.

        Raises:
            InvalidInput: A name cannot stand in a certificate.
            IdentityError: The folder cannot be written, or what lies there is damaged.
        """
        uri = device_uri(tenant, device)
        folder = self._folder / "devices" / tenant / device
        return self._issue(folder, device, [x509.UniformResourceIdentifier(uri)], ExtendedKeyUsageOID.CLIENT_AUTH)

    # ------------------------------------------------------------ inside

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject("edgedraft development CA")
        builder = (
            _builder(name, name, key, datetime.now(UTC) + _CA_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        _write_pair(self._folder, CA_CERTIFICATE, CA_KEY, builder.sign(key, hashes.SHA256()), key)

    def _issue(self, folder: Path, subject: str, names: list[x509.GeneralName], usage: x509.ObjectIdentifier) -> Path:
        with _explained(folder), _alone(self._folder):
            if _valid(folder / CERTIFICATE, folder / KEY) and self._issued(folder, names):
                return folder
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            key = ec.generate_private_key(ec.SECP256R1())
            # None outlives its CA.
            until = min(datetime.now(UTC) + _LIFE, self._certificate.not_valid_after_utc)
            issuer_key = self._key.public_key()
            builder = (
                _builder(_subject(subject), self._certificate.subject, key, until)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_key_usage(sign_certificates=False), critical=True)
                .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
                .add_extension(x509.SubjectAlternativeName(names), critical=False)
                .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
            )
            _write_pair(folder, CERTIFICATE, KEY, builder.sign(self._key, hashes.SHA256()), key)
            _write(folder / CA_CERTIFICATE, self._ca_pem, 0o644)
        return folder

    def _issued(self, folder: Path, names: list[x509.GeneralName]) -> bool:
        """Whether the certificate there has these names and comes from this CA."""
        certificate = _load_certificate(folder / CERTIFICATE)
        has = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        ca = folder / CA_CERTIFICATE
        return list(has) == names and ca.exists() and ca.read_bytes() == self._ca_pem


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IdentityError(
            f"the certificates in {folder} cannot be used ({error.strerror}); make room, or choose another folder"
        ) from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise IdentityError(
            f"the certificates in {folder} cannot be used ({error}); remove it to start anew"
        ) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that issue from this folder, lest one's certificate come from a CA that is replaced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _SKEW)
        .not_valid_after(until)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _DNS_NAME.fullmatch(name):
            raise InvalidInput("name", f"is {name!r}", "use a DNS name or an IP address") from None
        return x509.DNSName(name)


def _valid(certificate: Path, key: Path) -> bool:
    """Whether both are there, belong together and live on for a while."""
    if not certificate.exists() or not key.exists():
        return False
    loaded = _load_certificate(certificate)
    return (
        loaded.public_key() == _load_key(key).public_key()
        and loaded.not_valid_before_utc <= datetime.now(UTC)
        and loaded.not_valid_after_utc - datetime.now(UTC) > _RENEW_BEFORE
    )


def _load_certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no ECDSA key")
    return key


def _write_pair(
    folder: Path, certificate: str, key: str, issued: x509.Certificate, private: ec.EllipticCurvePrivateKey
) -> None:
    # A crash in between leaves a pair that does not match, which is made anew.
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / key, pem, 0o600)
    _write(folder / certificate, issued.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole or not at all; nobody sees it with a wider mode, not even for a moment."""
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(part, mode)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
