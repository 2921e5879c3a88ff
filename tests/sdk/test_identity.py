"""A device's identity: read whole, or refused with a reason that tells what to do."""

from datetime import timedelta

import pytest

from edgedraft.errors import IdentityError
from edgedraft.identity import Identity
from edgedraft_cloud import authority as authority_module
from edgedraft_cloud.authority import DevelopmentAuthority


@pytest.fixture
def folder(tmp_path):
    return DevelopmentAuthority(tmp_path).device("acme", "phone-1")


def test_it_says_who_this_device_is_and_keeps_the_key_out_of_sight(folder):
    identity = Identity.load(str(folder))
    assert (identity.tenant, identity.device) == ("acme", "phone-1")
    assert identity.ca == (folder / "ca.pem").read_bytes()
    assert "PRIVATE KEY" not in repr(identity)
    assert identity.key.startswith(b"-----BEGIN PRIVATE KEY")


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(IdentityError, match=rf"{name} is not there; enrol"):
        Identity.load(folder)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_a_damaged_file_is_told(folder, name):
    (folder / name).write_bytes(b"\xff\x00 no PEM")
    with pytest.raises(IdentityError, match="are no key and certificates in PEM"):
        Identity.load(folder)


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_a_file_that_cannot_be_read_is_named(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir(mode=0o700)
    with pytest.raises(IdentityError, match=rf"{name} cannot be read .*; check its permissions"):
        Identity.load(folder)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_is_open_to_others_is_refused(folder, mode):
    (folder / "key.pem").chmod(mode)
    with pytest.raises(IdentityError, match=rf"open to others \(mode {mode:o}\); run chmod 600"):
        Identity.load(folder)


def test_a_key_of_another_certificate_is_refused(folder, tmp_path):
    other = DevelopmentAuthority(tmp_path).device("acme", "phone-2")
    (other / "key.pem").replace(folder / "key.pem")
    with pytest.raises(IdentityError, match="do not belong together"):
        Identity.load(folder)


def test_an_expired_certificate_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(authority_module, "_LIFE", timedelta(minutes=-1))
    folder = DevelopmentAuthority(tmp_path).device("acme", "phone-1")
    with pytest.raises(IdentityError, match=r"expired on .*; enrol"):
        Identity.load(folder)


def test_a_certificate_of_the_future_is_refused(tmp_path, monkeypatch):
    authority = DevelopmentAuthority(tmp_path)
    monkeypatch.setattr(authority_module, "_SKEW", timedelta(hours=-1))
    with pytest.raises(IdentityError, match="set this device's clock"):
        Identity.load(authority.device("acme", "phone-1"))


def test_a_certificate_that_names_no_device_is_refused(tmp_path):
    with pytest.raises(IdentityError, match="names no device"):
        Identity.load(DevelopmentAuthority(tmp_path).server())
