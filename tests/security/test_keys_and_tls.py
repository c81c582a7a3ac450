"""Goal: keys are kept, shown and compared as they should be, and TLS is what is promised.

Method: the broker as users start it, `ssl` clients that may do less than the broker wants, and a
comparison that is watched: whoever checks a secret must go through the one that tells no time.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tests.security.conftest import FORM, Start
from tests.support.broker import PROJECT, Broker, form_environment
from twinbus.core import sas

NOW_S = 1_000_000
KEY_TEXT = re.compile(r"SharedAccessKey=([^;\n]*)")


def first_lines(directory: Path, *options: str, environment: dict[str, str] | None = None) -> str:
    """Start the broker as users do and stop it once it is ready; gives what it printed."""
    command = [sys.executable, "-m", "twinbus", "serve", "--data-dir", str(directory / "data")]
    command += ["--amqp-port", "0", "--amqps-port", "off", "--admin-port", "off", *options]
    given = form_environment(FORM) | (environment or {})
    if environment is None:
        given.pop("TWINBUS_SAS_KEY", None)
    out = directory / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            command, env=given, cwd=PROJECT, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        while b"Stop with" not in out.read_bytes() and process.poll() is None:
            time.sleep(0.02)
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    return out.read_text()


def test_a_key_is_made_once_kept_with_mode_600_and_shown_once(tmp_path: Path) -> None:
    # However generous the starter's umask is.
    before = os.umask(0)
    try:
        first, again = first_lines(tmp_path), first_lines(tmp_path)
    finally:
        os.umask(before)
    file = tmp_path / "data" / "root.key"
    key = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(key) == 44, "32 random bytes in base64"
    assert KEY_TEXT.findall(first) == [key]
    assert key not in again
    # A shell makes the whole string of it.
    (reference,) = KEY_TEXT.findall(again)
    told = subprocess.run(["sh", "-c", f'echo "{reference}"'], capture_output=True, text=True)
    assert told.stdout.strip() == key


def test_a_key_that_was_given_is_not_shown(tmp_path: Path) -> None:
    printed = first_lines(tmp_path, environment={"TWINBUS_SAS_KEY": "c2VjcmV0"})
    assert "c2VjcmV0" not in printed
    assert KEY_TEXT.findall(printed) == ["$TWINBUS_SAS_KEY"]
    assert not (tmp_path / "data" / "root.key").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "example.com"])
def test_nothing_goes_unchecked_beyond_loopback(tmp_path: Path, host: str) -> None:
    printed = first_lines(tmp_path, "--development", "--host", host)
    assert "--development goes with a loopback --host only" in printed
    assert "ready" not in printed


def test_every_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures and keys go through the one comparison that tells no time, and it is watched."""
    compared: list[tuple[bytes, bytes]] = []
    honest = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return honest(a, b)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    token = sas.parse_token(sas.make_token("sb://h/q", "k", "right", NOW_S))
    assert token.signed_by("right")
    assert not token.signed_by("wrong")
    assert sas.equal("right", "right")
    assert not sas.equal("wrong", "right")
    assert len(compared) == 4


def compares_plainly(text: str) -> list[str]:
    """Secrets beside `==` or `!=`, by the names that they have here."""
    secret = r"\w*(?:_key|\bkey|signature|password|csrf|token)\b(?!_)"
    plain = re.compile(rf"(?:{secret}\s*[!=]=)|(?:[!=]=\s*(?:\w+\.)*{secret})")
    return [line for line in text.splitlines() if plain.search(line)]


def test_no_secret_is_compared_plainly() -> None:
    assert compares_plainly("if policy.primary_key == given:")
    assert compares_plainly("return given != visitor.csrf")
    files = ["core/sas.py", "server/authorization.py", "server/cbs.py", "server/door.py",
             "admin/api.py", "admin/metrics.py", "admin/console/calls.py",
             "admin/console/signin.py"]  # fmt: skip
    for name in files:
        assert compares_plainly((PROJECT / "src" / "twinbus" / name).read_text()) == [], name


@pytest.fixture(scope="module")
def live(start: Start) -> Broker:
    return start()


def shake_hands(port: int, version: ssl.TLSVersion, ciphers: str) -> str:
    """Try with this and nothing better; gives the version that was agreed upon."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # The client's own scruples are not what is asked for.
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw) as spoken,
    ):
        return str(spoken.version())


@pytest.mark.parametrize("port", ["amqps", "admin"])
def test_tls_1_2_and_1_3_are_spoken(live: Broker, port: str) -> None:
    number = live.ready["ports"][port]
    assert shake_hands(number, ssl.TLSVersion.TLSv1_3, "ALL") == "TLSv1.3"
    for good in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"):
        assert shake_hands(number, ssl.TLSVersion.TLSv1_2, good) == "TLSv1.2"


@pytest.mark.parametrize("port", ["amqps", "admin"])
@pytest.mark.parametrize(
    ("version", "ciphers"),
    [
        (ssl.TLSVersion.TLSv1, "ALL"),
        (ssl.TLSVersion.TLSv1_1, "ALL"),
        (ssl.TLSVersion.TLSv1_2, "AES128-GCM-SHA256"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-NULL-SHA"),
        (ssl.TLSVersion.TLSv1_2, "AECDH-AES128-SHA"),
    ],
    ids=["TLS 1.0", "TLS 1.1", "no forward secrecy", "CBC", "no encryption", "no certificate"],
)
def test_old_versions_and_weak_ciphers_are_refused(
    live: Broker, port: str, version: ssl.TLSVersion, ciphers: str
) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)alert|eof"):
        # Not the client's own refusal: the broker was asked, and said no or hung up.
        shake_hands(live.ready["ports"][port], version, ciphers)
