"""The broker's own certificate: made once, renewed in time, trusted by its authority."""

import asyncio
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from twinbus.server.tls import CertificateFiles, own_certificate, server_context

NOW = datetime.now(UTC)


def certificate_in(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def days_left(path: Path, now: datetime = NOW) -> int:
    return (certificate_in(path).not_valid_after_utc - now).days


async def shake_hands(
    context: ssl.SSLContext, trusting: ssl.SSLContext, host: str
) -> tuple[str, str]:
    """Connect over loopback as a client that knows the broker by this name."""
    server = await asyncio.start_server(
        lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting, server_hostname=host
        )
        spoken = writer.get_extra_info("ssl_object")
        found = (spoken.version(), spoken.cipher()[0])
        await reader.read()
        writer.close()
        await writer.wait_closed()
    return found


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "::1", "orders.localhost", "bus.example", "10.1.2.3"]
)
async def test_a_client_that_trusts_the_authority_connects(tmp_path: Path, host: str) -> None:
    hosts = ["orders.localhost", "Bus.Example", "10.1.2.3"]
    files = own_certificate(tmp_path / "tls", hosts, NOW)
    assert files.ca is not None
    trusting = ssl.create_default_context(cafile=files.ca)
    # What newer Pythons ask for by default.
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    version, cipher = await shake_hands(server_context(files), trusting, host)
    assert version == "TLSv1.3"
    assert "GCM" in cipher or "CHACHA20" in cipher


async def test_other_names_and_other_authorities_are_not_trusted(tmp_path: Path) -> None:
    files = own_certificate(tmp_path / "a", [], NOW)
    other = own_certificate(tmp_path / "b", [], NOW)
    assert other.ca is not None
    assert files.ca is not None
    for ca, host in ((files.ca, "elsewhere.example"), (other.ca, "localhost")):
        with pytest.raises(ssl.SSLCertVerificationError):
            await shake_hands(server_context(files), ssl.create_default_context(cafile=ca), host)


async def test_tls_1_2_is_the_oldest_that_is_spoken(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW)
    trusting = ssl.create_default_context(cafile=files.ca)
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    version, cipher = await shake_hands(server_context(files), trusting, "localhost")
    assert version == "TLSv1.2"
    assert cipher.startswith("ECDHE-ECDSA-")
    assert server_context(files).minimum_version is ssl.TLSVersion.TLSv1_2


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    own_certificate(tmp_path / "tls", [], NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes.pop("ca.pem") & 0o133 == 0
    assert modes == {"authority.pem": 0o600, "server.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert b"PRIVATE KEY" not in (tmp_path / "tls" / "ca.pem").read_bytes()


def test_the_certificate_is_made_once_and_holds_the_usual_names(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, ["orders.localhost"], NOW)
    before = files.certificate.read_bytes()
    assert own_certificate(tmp_path, ["ORDERS.localhost"], NOW) == files
    assert own_certificate(tmp_path, [], NOW + timedelta(days=600)) == files
    assert files.certificate.read_bytes() == before
    names = certificate_in(files.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    wanted = {"localhost", "*.localhost", "orders.localhost", socket.gethostname().lower()}
    assert set(names.value.get_values_for_type(x509.DNSName)) == wanted
    assert {str(a) for a in names.value.get_values_for_type(x509.IPAddress)} == {
        "127.0.0.1",
        "::1",
    }
    assert days_left(files.certificate) == 729 or days_left(files.certificate) == 730


def test_it_is_renewed_in_its_last_month_under_the_same_authority(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW)
    assert files.ca is not None
    authority = files.ca.read_bytes()
    later = NOW + timedelta(days=701)
    own_certificate(tmp_path, [], later)
    assert days_left(files.certificate, later) >= 729
    assert files.ca.read_bytes() == authority


def test_a_new_host_renews_the_certificate_under_the_same_authority(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW)
    assert files.ca is not None
    authority, before = files.ca.read_bytes(), files.certificate.read_bytes()
    own_certificate(tmp_path, ["new.localhost"], NOW)
    assert files.certificate.read_bytes() != before
    assert files.ca.read_bytes() == authority


def test_an_old_authority_is_replaced_with_all_below_it(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW)
    assert files.ca is not None
    almost = NOW + timedelta(days=3640)
    own_certificate(tmp_path, [], almost)
    assert days_left(files.ca, almost) >= 3649
    certificate_in(files.certificate).verify_directly_issued_by(certificate_in(files.ca))


@pytest.mark.parametrize("years", [3, 14, -14], ids=["ahead", "far ahead", "far behind"])
async def test_a_start_with_a_wrong_clock_costs_no_clients_trust(
    tmp_path: Path, years: int
) -> None:
    """Three years are within the authority's life, fourteen are not."""
    files = own_certificate(tmp_path, [], NOW)
    assert files.ca is not None
    authority = files.ca.read_bytes()
    trusting = ssl.create_default_context(cadata=authority.decode())
    for _ in range(2):
        wrong = NOW + timedelta(days=365 * years)
        own_certificate(tmp_path, [], wrong)
        for path in (files.ca, files.certificate):
            assert certificate_in(path).not_valid_before_utc <= wrong
            assert days_left(path, wrong) > 30
        own_certificate(tmp_path, [], NOW)
        assert files.ca.read_bytes() == authority
        await shake_hands(server_context(files), trusting, "localhost")
        before = files.certificate.read_bytes()
        own_certificate(tmp_path, [], NOW)
        assert files.certificate.read_bytes() == before


def test_a_first_start_with_the_clock_ahead_is_mended(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW + timedelta(days=5000))
    own_certificate(tmp_path, [], NOW)
    assert files.ca is not None
    for path in (files.ca, files.certificate):
        assert certificate_in(path).not_valid_before_utc <= NOW
    certificate_in(files.certificate).verify_directly_issued_by(certificate_in(files.ca))


def test_an_authority_is_kept_when_the_clock_was_ahead_by_hours_only(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW + timedelta(hours=14))
    assert files.ca is not None
    authority, server = files.ca.read_bytes(), files.certificate.read_bytes()
    own_certificate(tmp_path, [], NOW)
    assert (files.ca.read_bytes(), files.certificate.read_bytes()) == (authority, server)
    assert certificate_in(files.ca).not_valid_before_utc <= NOW


def test_near_the_authoritys_end_certificates_end_with_it(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, [], NOW)
    assert files.ca is not None
    late = NOW + timedelta(days=3500)
    own_certificate(tmp_path, [], late)
    assert days_left(files.certificate, late) == days_left(files.ca, late)


@pytest.mark.parametrize("name", ["authority.pem", "server.pem"])
@pytest.mark.parametrize("damage", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, name: str, damage: bytes) -> None:
    files = own_certificate(tmp_path, [], NOW)
    (tmp_path / name).write_bytes(damage)
    own_certificate(tmp_path, [], NOW)
    server_context(files)
    assert files.ca is not None
    certificate_in(files.certificate).verify_directly_issued_by(certificate_in(files.ca))


def test_a_crash_between_authority_and_certificate_is_mended(tmp_path: Path) -> None:
    files = own_certificate(tmp_path / "a", [], NOW)
    other = own_certificate(tmp_path / "b", [], NOW)
    files.certificate.write_bytes(other.certificate.read_bytes())
    (tmp_path / "a" / "server.new").write_bytes(b"half a fi")
    own_certificate(tmp_path / "a", [], NOW)
    assert files.ca is not None
    certificate_in(files.certificate).verify_directly_issued_by(certificate_in(files.ca))


async def test_a_users_own_certificate_is_used(tmp_path: Path) -> None:
    made = own_certificate(tmp_path, ["own.example"], NOW)
    files = CertificateFiles(certificate=made.certificate, key=made.key, ca=None)
    trusting = ssl.create_default_context(cafile=made.ca)
    version, _ = await shake_hands(server_context(files), trusting, "own.example")
    assert version == "TLSv1.3"


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    made = own_certificate(tmp_path, [], NOW)
    key = load_pem_private_key(made.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(ValueError, match=r"locked\.pem"):
        server_context(CertificateFiles(certificate=made.certificate, key=locked, ca=None))


def test_a_users_bad_certificate_is_refused_by_name(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    for path in (bad, tmp_path / "absent.pem"):
        with pytest.raises(ValueError, match=path.name):
            server_context(CertificateFiles(certificate=path, key=path, ca=None))
