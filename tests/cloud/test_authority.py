"""The development authority: what it issues, what it keeps, and what it makes anew."""

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from edgedraft.errors import IdentityError, InvalidInput
from edgedraft_cloud import authority as module
from edgedraft_cloud.authority import DevelopmentAuthority, device_uri


def load(folder, name="cert.pem") -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / name).read_bytes())


def names(certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def usage(certificate):
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_server_certificate_has_loopback_and_further_names(tmp_path):
    authority = DevelopmentAuthority(tmp_path)
    certificate = load(authority.server(["verifier.example", "192.0.2.7"]))
    assert names(certificate).get_values_for_type(x509.DNSName) == ["localhost", "verifier.example"]
    assert [str(ip) for ip in names(certificate).get_values_for_type(x509.IPAddress)] == [
        "127.0.0.1",
        "::1",
        "192.0.2.7",
    ]
    assert usage(certificate) == [ExtendedKeyUsageOID.SERVER_AUTH]
    certificate.verify_directly_issued_by(load(tmp_path, "ca.pem"))


def test_a_device_certificate_names_tenant_and_device_and_can_serve_nobody(tmp_path):
    folder = DevelopmentAuthority(tmp_path).device("acme", "phone-1")
    certificate = load(folder)
    uri = "spiffe://edgedraft/tenant/acme/device/phone-1"
    assert names(certificate).get_values_for_type(x509.UniformResourceIdentifier) == [uri]
    assert usage(certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(load(folder, "ca.pem"))


def test_keys_are_for_the_owner_alone(tmp_path):
    authority = DevelopmentAuthority(tmp_path / "new")
    keys = [tmp_path / "new" / "ca-key.pem"]
    keys += [folder / "key.pem" for folder in (authority.server(), authority.device("a", "b"))]
    assert [stat.S_IMODE(key.stat().st_mode) for key in keys] == [0o600] * 3
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_what_is_valid_is_kept(tmp_path):
    def issue():
        authority = DevelopmentAuthority(tmp_path)
        folders = [authority.server(["x.example"]), authority.device("a", "b")]
        return [(folder / "cert.pem").read_bytes() for folder in folders]

    assert issue() == issue()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pem"]


def test_other_names_another_ca_and_a_lost_key_make_it_anew(tmp_path):
    authority = DevelopmentAuthority(tmp_path)
    first = load(authority.server())
    assert load(authority.server(["x.example"])) != first
    device = load(authority.device("a", "b"))
    (tmp_path / "ca-key.pem").unlink()
    renewed = DevelopmentAuthority(tmp_path)
    again = load(renewed.device("a", "b"))
    assert again != device
    again.verify_directly_issued_by(load(tmp_path, "ca.pem"))
    (renewed.device("a", "b") / "key.pem").unlink()
    assert load(renewed.device("a", "b")) != again


def test_many_at_once_on_a_new_folder_agree_on_one_ca(tmp_path):
    def issue(number):
        authority = DevelopmentAuthority(tmp_path)
        return load(authority.server()), load(authority.device("a", "b")), load(authority.device("a", f"d{number}"))

    with ThreadPoolExecutor(8) as pool:
        issued = list(pool.map(issue, range(8)))
    ca = load(tmp_path, "ca.pem")
    for certificate in (certificate for each in issued for certificate in each):
        certificate.verify_directly_issued_by(ca)
    assert len({server for server, _, _ in issued}) == len({device for _, device, _ in issued}) == 1


def test_a_key_of_another_certificate_makes_it_anew(tmp_path):
    authority = DevelopmentAuthority(tmp_path)
    one, other = authority.device("a", "one"), authority.device("a", "other")
    before = load(one)
    (other / "key.pem").replace(one / "key.pem")
    assert load(authority.device("a", "one")) != before


@pytest.mark.parametrize(("left", "kept"), [(timedelta(hours=23), False), (timedelta(days=2), True)])
def test_a_certificate_is_renewed_a_day_before_it_expires(tmp_path, monkeypatch, left, kept):
    authority = DevelopmentAuthority(tmp_path)
    monkeypatch.setattr(module, "_LIFE", left)
    before = load(authority.device("a", "b"))
    assert (load(authority.device("a", "b")) == before) is kept


def test_none_outlives_its_ca(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CA_LIFE", timedelta(days=3))
    authority = DevelopmentAuthority(tmp_path)
    assert load(authority.server()).not_valid_after_utc == load(tmp_path, "ca.pem").not_valid_after_utc
    assert load(authority.server()).not_valid_after_utc < datetime.now(UTC) + timedelta(days=4)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ü", "x" * 64, "-a"])
def test_names_that_cannot_stand_in_a_uri_are_refused(name):
    with pytest.raises(InvalidInput, match="tenant: is"):
        device_uri(name, "d")
    with pytest.raises(InvalidInput, match="device: is"):
        device_uri("t", name)


@pytest.mark.parametrize("name", ["", "a..b", "a b", "ü.example", "x" * 64, "-" * 300 + "!"])
def test_host_names_that_are_none_are_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="name: is"):
        DevelopmentAuthority(tmp_path).server([name])


def test_damaged_files_are_told_not_used(tmp_path):
    DevelopmentAuthority(tmp_path)
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(IdentityError, match="remove it to start anew"):
        DevelopmentAuthority(tmp_path)


def test_a_damaged_certificate_of_a_device_is_told(tmp_path):
    authority = DevelopmentAuthority(tmp_path)
    (authority.device("a", "b") / "key.pem").write_text("no key")
    with pytest.raises(IdentityError, match="remove it to start anew"):
        authority.device("a", "b")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="cannot be used"):
        DevelopmentAuthority(tmp_path / "file")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    authority = DevelopmentAuthority(tmp_path)
    monkeypatch.setattr(module.os, "replace", full)
    with pytest.raises(IdentityError, match="No space left"):
        authority.device("a", "b")
    assert list((tmp_path / "devices" / "a" / "b").iterdir()) == []
