"""A certificate authority for development: one CA, a server certificate, and a certificate for each device.

Tenant and device stand in the certificate's SAN as `spiffe://edgedraft/tenant/<tenant>/device/<device>`, and nowhere
else: the server takes them from there alone. Keys are ECDSA P-256, which every gRPC build accepts.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgedraft.errors import IdentityError, InvalidInput

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"

_CA_LIFE: Final = timedelta(days=365)
_LIFE: Final = timedelta(days=30)
_RENEW_BEFORE: Final = timedelta(days=1)
_SKEW: Final = timedelta(minutes=5)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def device_uri(tenant: str, device: str) -> str:
    """The SAN URI of a device.

    Raises:
        InvalidInput: A name has characters beyond letters, digits, dot, dash and underscore, or is too long.
    """
    for field, name in (("tenant", tenant), ("device", device)):
        if not _NAME.fullmatch(name):
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
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _valid(folder / CA_CERTIFICATE, folder / CA_KEY):
                self._make_ca()
            self._key = _load_key(folder / CA_KEY)
            self._certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        except (OSError, ValueError) as error:
            raise IdentityError(
                f"the authority in {folder} cannot be used ({error}); remove it to start anew"
            ) from error

    def server(self, names: Sequence[str] = ()) -> Path:
        """A folder with the server's key and certificate.

        Args:
            names: DNS names and addresses besides localhost, 127.0.0.1 and ::1.
        """
        wanted = [_general_name(name) for name in dict.fromkeys(("localhost", "127.0.0.1", "::1", *names))]
        return self._issue(self._folder / "server", "edgedraft verifier", wanted, ExtendedKeyUsageOID.SERVER_AUTH)

    def device(self, tenant: str, device: str) -> Path:
        """A folder with a device's key and certificate.

        Raises:
            InvalidInput: A name cannot stand in a certificate.
        """
        uri = device_uri(tenant, device)
        folder = self._folder / "devices" / tenant / device
        return self._issue(folder, device, [x509.UniformResourceIdentifier(uri)], ExtendedKeyUsageOID.CLIENT_AUTH)

    # ------------------------------------------------------------ inside

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject("edgedraft development CA")
        builder = (
            _builder(name, name, key, _CA_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        _write_pair(self._folder, CA_CERTIFICATE, CA_KEY, builder.sign(key, hashes.SHA256()), key)

    def _issue(self, folder: Path, subject: str, names: list[x509.GeneralName], usage: x509.ObjectIdentifier) -> Path:
        ca = self._certificate.public_bytes(serialization.Encoding.PEM)
        if _valid(folder / CERTIFICATE, folder / KEY) and _same_names(folder, names) and _read(folder / "ca.pem") == ca:
            return folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_subject(subject), self._certificate.subject, key, _LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        _write_pair(folder, CERTIFICATE, KEY, builder.sign(self._key, hashes.SHA256()), key)
        _write(folder / "ca.pem", ca, 0o644)
        return folder


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
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
        return x509.DNSName(name)


def _valid(certificate: Path, key: Path) -> bool:
    """Whether both are there, belong together and live on for a while."""
    if not certificate.exists() or not key.exists():
        return False
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    return (
        loaded.public_key() == _load_key(key).public_key()
        and loaded.not_valid_before_utc <= datetime.now(UTC)
        and loaded.not_valid_after_utc - datetime.now(UTC) > _RENEW_BEFORE
    )


def _same_names(folder: Path, names: list[x509.GeneralName]) -> bool:
    certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == names


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no ECDSA key")
    return key


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _write_pair(
    folder: Path, certificate: str, key: str, issued: x509.Certificate, private: ec.EllipticCurvePrivateKey
) -> None:
    # The key first: a certificate without its key would look valid to nobody, the other way round neither.
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / key, pem, 0o600)
    _write(folder / certificate, issued.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    part.replace(path)
