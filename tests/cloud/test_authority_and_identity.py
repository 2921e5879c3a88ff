"""Certificates for development, and what a device finds wrong with its own."""

import ipaddress
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

import edgedraft_cloud.authority as authority_module
from edgedraft.errors import IdentityError, InvalidInput
from edgedraft.identity import Identity
from edgedraft_cloud.authority import DevelopmentAuthority, device_uri

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
URI = "spiffe://edgedraft/tenant/acme/device/phone-1"


def certificate(folder) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---------------------------------------------------------------- the authority


def test_folders_hold_what_they_should_and_keys_are_the_owners_alone(tmp_path):
    root = tmp_path / "deep" / "ca"
    authority = DevelopmentAuthority(root)
    server, device = authority.server(), authority.device("acme", "phone-1")
    assert (server, device) == (root / "server", root / "devices" / "acme" / "phone-1")
    assert {path.name for path in root.iterdir()} == {"ca.pem", "ca-key.pem", "server", "devices"}
    for folder in (server, device):
        assert {path.name for path in folder.iterdir()} == {"ca.pem", "cert.pem", "key.pem"}
        assert mode(folder / "key.pem") == 0o600
        assert (folder / "ca.pem").read_bytes() == (root / "ca.pem").read_bytes()
    assert mode(root / "ca-key.pem") == 0o600
    assert mode(root) == 0o700


def test_certificates_say_who_and_what_for_and_come_from_the_ca(tmp_path):
    authority = DevelopmentAuthority(tmp_path)
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    server = certificate(authority.server(["verifier.example", "10.0.0.7", "verifier.example"]))
    device = certificate(authority.device("acme", "phone-1"))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "verifier.example"]
    assert set(names.get_values_for_type(x509.IPAddress)) == {
        ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.0.0.7")
    }
    names = device.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [URI] == [device_uri("acme", "phone-1")]
    for issued, usage in ((server, ExtendedKeyUsageOID.SERVER_AUTH), (device, ExtendedKeyUsageOID.CLIENT_AUTH)):
        issued.verify_directly_issued_by(ca)
        assert list(issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [usage]
        assert not issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert issued.not_valid_after_utc <= ca.not_valid_after_utc
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_what_is_there_is_used_again(tmp_path):
    def everything():
        authority = DevelopmentAuthority(tmp_path)
        authority.server()
        authority.device("acme", "phone-1")
        return {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}

    assert everything() == everything()


def test_further_names_give_a_new_server_certificate(tmp_path):
    authority = DevelopmentAuthority(tmp_path)
    before = certificate(authority.server())
    assert certificate(authority.server(["verifier.example"])).serial_number != before.serial_number


def test_a_certificate_that_nearly_expires_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(authority_module, "_LIFE", timedelta(hours=2))
    first = certificate(DevelopmentAuthority(tmp_path).device("acme", "phone-1"))
    monkeypatch.undo()
    folder = DevelopmentAuthority(tmp_path).device("acme", "phone-1")
    second = certificate(folder)
    assert second.serial_number != first.serial_number
    assert second.not_valid_after_utc > first.not_valid_after_utc
    assert Identity.load(folder).device == "phone-1"


def test_a_ca_that_nearly_expires_is_renewed_with_all_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr(authority_module, "_CA_LIFE", timedelta(hours=2))
    authority = DevelopmentAuthority(tmp_path)
    first = certificate(authority.server())
    assert first.not_valid_after_utc <= NOW + timedelta(hours=3), "none outlives its CA"
    monkeypatch.undo()
    authority = DevelopmentAuthority(tmp_path)
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    folder = authority.server()
    certificate(folder).verify_directly_issued_by(ca)
    assert (folder / "ca.pem").read_bytes() == (tmp_path / "ca.pem").read_bytes()


@pytest.mark.parametrize("lost", ["ca.pem", "cert.pem", "key.pem"])
def test_a_lost_file_is_made_again(tmp_path, lost):
    authority = DevelopmentAuthority(tmp_path)
    folder = authority.device("acme", "phone-1")
    (folder / lost).unlink()
    assert Identity.load(authority.device("acme", "phone-1")).tenant == "acme"


def test_a_damaged_authority_says_what_to_do(tmp_path):
    DevelopmentAuthority(tmp_path)
    (tmp_path / "ca-key.pem").write_text("nothing")
    with pytest.raises(IdentityError, match="remove it to start anew"):
        DevelopmentAuthority(tmp_path)


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="cannot be used"):
        DevelopmentAuthority(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", "a b", "é", "x" * 64, "a\n"])
def test_names_that_cannot_stand_in_a_certificate_are_refused(tmp_path, name):
    authority = DevelopmentAuthority(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        authority.device(name, "phone-1")
    assert caught.value.field == "tenant"
    with pytest.raises(InvalidInput) as caught:
        authority.device("acme", name)
    assert caught.value.field == "device"


@pytest.mark.parametrize("name", ["", "a b", "é.example", "x" * 64, "-://"])
def test_server_names_that_cannot_stand_in_a_certificate_are_refused(tmp_path, name):
    with pytest.raises(InvalidInput):
        DevelopmentAuthority(tmp_path).server([name])


# ---------------------------------------------------------------- the identity


@pytest.fixture
def folder(tmp_path):
    return DevelopmentAuthority(tmp_path).device("acme", "phone-1")


def issue(folder, *, uris=(URI,), start=NOW - DAY, end=NOW + DAY) -> None:
    """A certificate with these faults, and its key, in place of the good one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(end)
    )
    if uris is not None:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    issued = builder.sign(key, hashes.SHA256())
    (folder / "cert.pem").write_bytes(issued.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def test_a_good_identity_names_tenant_and_device_and_shows_no_key(folder):
    identity = Identity.load(str(folder))
    assert (identity.tenant, identity.device) == ("acme", "phone-1")
    assert identity.ca == (folder / "ca.pem").read_bytes()
    assert "PRIVATE" not in repr(identity)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(IdentityError, match=rf"{name} is not there; enrol"):
        Identity.load(folder)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_a_file_that_cannot_be_read_is_named(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir(mode=0o700)
    with pytest.raises(IdentityError, match=rf"{name} cannot be read \(Is a directory\)"):
        Identity.load(folder)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
@pytest.mark.parametrize("content", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"])
def test_a_file_that_is_no_pem_is_explained(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(IdentityError, match="no key and certificates in PEM"):
        Identity.load(folder)


@pytest.mark.parametrize("wide", [0o644, 0o640, 0o602])
def test_a_key_that_is_open_to_others_is_refused(folder, wide):
    (folder / "key.pem").chmod(wide)
    with pytest.raises(IdentityError, match=rf"mode {wide:o}\); run chmod 600"):
        Identity.load(folder)


def test_a_key_of_another_certificate_is_refused(folder, tmp_path):
    other = DevelopmentAuthority(tmp_path).device("acme", "phone-2")
    (folder / "key.pem").write_bytes((other / "key.pem").read_bytes())
    with pytest.raises(IdentityError, match="do not belong together"):
        Identity.load(folder)


FAULTS = {
    "expired on": {"start": NOW - 2 * DAY, "end": NOW - DAY},
    "is valid from .* set this device's clock": {"start": NOW + DAY, "end": NOW + 2 * DAY},
    "names no device": {"uris": None},
    "names no device; enrol": {"uris": ()},
    "names no device; enrol this": {"uris": ("spiffe://edgedraft/tenant/acme",)},
    "names no device; enrol this device": {"uris": ("https://edgedraft/tenant/acme/device/phone-1",)},
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_certificate_that_cannot_serve_says_why(folder, words):
    issue(folder)
    assert Identity.load(folder).device == "phone-1", "without the fault it is fine"
    issue(folder, **FAULTS[words])
    with pytest.raises(IdentityError, match=words):
        Identity.load(folder)
