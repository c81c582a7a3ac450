"""What `twinbus doctor` tries over the network: the broker's ports, and a namespace.

Ports and connection strings go in, findings come out. A few bytes are sent and no message.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http.client import HTTPException

from twinbus.cli.checks import CLOCK_TOLERANCE_S, FAULT, OK, WARNING, Finding
from twinbus.cli.failures import TRUST_ADVICE, USAGE, CommandError
from twinbus.cli.remote import Remote

_WAIT_S = 3.0
_AMQP_HEADER = b"AMQP\x03\x01\x00\x00"
_SKEW_TOLERANCE_S = CLOCK_TOLERANCE_S


def check_ports(host: str, ports: dict[str, int], holder: str | None) -> tuple[list[Finding], bool]:
    """Tell of each port whether it is free, this broker's, or somebody else's.

    Also whether a broker answers on any of them. `holder` is the process that holds the
    journal: a broker that answers while nobody holds it is another one.
    """
    found = []
    answered = False
    for name, port in ports.items():
        finding, is_broker = _check_port(host, name, port, holder)
        found.append(finding)
        answered = answered or is_broker
    return found, answered


def _check_port(host: str, name: str, port: int, holder: str | None) -> tuple[Finding, bool]:
    check = f"port {port} ({name})"
    failure = _bind_failure(host, port)
    if failure is None:
        return Finding(check, OK, "free"), False
    if failure.errno == errno.EACCES:
        advice = "Choose one above 1023, or give the unit CAP_NET_BIND_SERVICE."
        return Finding(check, FAULT, "this user may not use it", advice), False
    if failure.errno != errno.EADDRINUSE:
        advice = "Give --host an address of this machine, or 0.0.0.0 for all."
        return Finding(check, FAULT, f"{host} cannot be listened on: {failure}", advice), False
    speaks = _SPEAKERS[name](host, port)
    if speaks and holder is not None:
        return Finding(check, OK, "the broker answers"), True
    who = "another broker" if speaks else "another program"
    advice = f"Stop it (ss -ltnp 'sport = :{port}' names it), or choose another --{name}-port."
    return Finding(check, FAULT, f"{who} is on it", advice), False


def _bind_failure(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _speaks_amqp(host: str, port: int) -> bool:
    try:
        with socket.create_connection((_reachable(host), port), _WAIT_S) as connection:
            connection.sendall(_AMQP_HEADER)
            return connection.recv(8).startswith(b"AMQP")
    except OSError:
        return False


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Who it is does not matter here, only what it speaks.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((_reachable(host), port), _WAIT_S) as connection,
            context.wrap_socket(connection) as secured,
        ):
            secured.sendall(_AMQP_HEADER)
            return secured.recv(8).startswith(b"AMQP")
    except OSError:
        return False


def _speaks_health(host: str, port: int) -> bool:
    name = _reachable(host)
    url = f"http://{f'[{name}]' if ':' in name else name}:{port}/health"
    # No proxy can tell what is on this machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            answer = direct.open(url, timeout=_WAIT_S)
        except urllib.error.HTTPError as failing:
            answer = failing  # a broker that takes no messages says why
        with answer:
            said = json.load(answer)
    except (OSError, ValueError, HTTPException):
        return False
    return isinstance(said, dict) and said.get("status") in ("healthy", "failing")


_SPEAKERS: dict[str, Callable[[str, int], bool]] = {
    "amqp": _speaks_amqp,
    "amqps": _speaks_tls,
    "admin": _speaks_health,
}


def check_connection(remote: Remote) -> list[Finding]:
    """Can the namespace be reached, is it trusted, does it take the key, what is its time?"""
    try:
        place, trusted = remote.admin_host_and_port, remote.trusted
    except CommandError as error:
        return [Finding("connection", FAULT, str(error), "Take it as the broker printed it.")]
    try:
        offset_s = _clock_offset_s(f"https://{place}/", trusted)
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            what = f"{place} has a certificate that is not trusted: {error.reason.verify_message}"
            return [Finding("connection", FAULT, what, TRUST_ADVICE)]
        advice = "Is the broker running? Check the host, --admin-endpoint and the firewall."
        return [Finding("connection", FAULT, f"{place}: {error.reason}", advice)]
    except (OSError, HTTPException) as error:
        return [Finding("connection", FAULT, f"{place}: {error}", "Is it really the admin port?")]
    found = [_check_token(remote, place)]
    if offset_s is not None and abs(offset_s) > _SKEW_TOLERANCE_S:
        side = "behind" if offset_s > 0 else "ahead of"
        what = (
            f"this machine's clock is {abs(offset_s):.0f} s {side} {place}: tokens may be refused"
        )
        found.append(Finding("clock", FAULT, what, "Set it right (timedatectl set-ntp true)."))
    return found


def _clock_offset_s(url: str, trusted: str | None) -> float | None:
    """How far the other clock is ahead, by the answer's date; any answer will do."""
    context = ssl.create_default_context(cafile=trusted)
    try:
        with urllib.request.urlopen(url, timeout=_WAIT_S, context=context) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        with error:
            date = error.headers.get("Date")
    return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()


def _check_token(remote: Remote, place: str) -> Finding:
    try:
        with remote.admin() as admin:
            admin.get_namespace_properties()
    except CommandError as error:
        if error.code == USAGE:
            return Finding("connection", FAULT, str(error), "Take it as the broker printed it.")
        return Finding("connection", WARNING, str(error), "Then doctor can try the key as well.")
    except Exception as error:
        advice = "Take name and key from the broker's root.key, or from the portal."
        first = " ".join(str(error).split())
        return Finding("connection", FAULT, f"{place} refuses the key: {first}", advice)
    return Finding("connection", OK, f"{place} takes the key")
