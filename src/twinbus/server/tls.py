"""The broker's certificate, and the TLS settings of every port.

Without a certificate of the user's, the broker makes its own on first start: a small
authority, whose certificate clients are told to trust, and under it a server certificate
that can be renewed, or get more names, without clients having to trust anything anew.
"""

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Inside the TLS directory. The first three hold a private key and its certificate in one
# file, so that a crash can never leave a key with another key's certificate.
AUTHORITY_FILE = "authority.pem"
SERVER_FILE = "server.pem"
#: The authority before this one. If it was replaced because a clock was wrong, clients still
#: trust it, and it is taken back when the clock is right.
PREVIOUS_FILE = "authority-previous.pem"
#: The authority's certificate alone: what clients trust.
CA_FILE = "ca.pem"

AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=730)
RENEW_BEFORE = timedelta(days=30)
# Clocks differ, also by a time zone that was set wrong: a certificate made now must hold on a
# machine that is behind, and on this one when its clock has been set right.
_BACKDATED = timedelta(days=1)

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_ALWAYS = ("localhost", "*.localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """What a TLS port needs, and what its clients need."""

    #: The certificate, with those above it if any.
    certificate: Path
    key: Path
    #: The file that clients trust; None when the certificate is the user's.
    ca: Path | None


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> bytes:
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + self.certificate.public_bytes(Encoding.PEM)


def own_certificate(directory: Path, hosts: Iterable[str], now: datetime) -> CertificateFiles:
    """Give the broker's own certificate for these hosts, made or renewed if need be."""
    names = dict.fromkeys([*_ALWAYS, socket.gethostname().lower(), *map(str.lower, hosts)])
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _authority(directory, now)
    _write(directory / CA_FILE, authority.certificate.public_bytes(Encoding.PEM), 0o644)
    server = _load(directory / SERVER_FILE)
    if (
        server is None
        or not _is_usable(server, now)
        or not _issued_by(server, authority)
        or not _names_of(server) >= set(map(_general_name, names))
    ):
        server = _make_server(authority, names, now)
        _write(directory / SERVER_FILE, server.pem(), 0o600)
    own = directory / SERVER_FILE
    return CertificateFiles(certificate=own, key=own, ca=directory / CA_FILE)


def _authority(directory: Path, now: datetime) -> _Pair:
    """Give an authority that holds now: the present one, the one before it, or a new one."""
    present = _load(directory / AUTHORITY_FILE)
    if present is not None and _is_usable(present, now):
        return present
    authority = _load(directory / PREVIOUS_FILE)
    if authority is None or not _is_usable(authority, now):
        authority = _make_authority(now)
        if present is not None:
            _write(directory / PREVIOUS_FILE, present.pem(), 0o600)
    _write(directory / AUTHORITY_FILE, authority.pem(), 0o600)
    return authority


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    """Make the settings of a TLS port; ValueError says which file is at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Without a password OpenSSL would stop and ask for one on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:
        raise ValueError(
            f"The TLS certificate {files.certificate} with key {files.key} cannot be used: {error}"
        ) from error
    return context


def _make_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Twinbus"),
            # Two authorities with one name would confuse clients that trust both.
            x509.NameAttribute(NameOID.COMMON_NAME, f"Twinbus authority {now:%Y-%m-%d %H:%M:%S}"),
        ]
    )
    certificate = (
        _builder(name, name, key.public_key(), now, now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Pair(certificate, key)


def _make_server(authority: _Pair, names: Iterable[str], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    end = min(now + SERVER_LIFE, issuer.not_valid_after_utc)
    certificate = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Twinbus")]),
            issuer.subject,
            key.public_key(),
            now,
            end,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return _Pair(certificate, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(pair: _Pair) -> set[x509.GeneralName]:
    extension = pair.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(extension.value)


def _is_usable(pair: _Pair, now: datetime) -> bool:
    """Tell whether it holds now and for a while; one from a clock far ahead holds in years only."""
    begin, end = pair.certificate.not_valid_before_utc, pair.certificate.not_valid_after_utc
    return begin <= now and end - now >= RENEW_BEFORE


def _issued_by(pair: _Pair, authority: _Pair) -> bool:
    try:
        pair.certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(path: Path) -> _Pair | None:
    """Read a pair; a file that is absent, damaged or not ours counts as none."""
    try:
        text = path.read_bytes()
        key = load_pem_private_key(text, password=None)
        certificate = x509.load_pem_x509_certificate(text)
    except (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    if key.public_key() != certificate.public_key():
        return None
    return _Pair(certificate, key)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file whole, never readable by more than `mode` says."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
