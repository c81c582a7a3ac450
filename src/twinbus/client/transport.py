"""The socket under a connection, TCP or TLS: bytes out, bytes in, and waiting with a limit.

Never blocks on writing alone, so that two ends which both have much to say cannot wait for
each other. Knows nothing of AMQP. Raises ConnectionLost for whatever the network does.
"""

from __future__ import annotations

import selectors
import socket
import ssl
from pathlib import Path
from typing import Final

from twinbus.client.endpoint import Endpoint
from twinbus.client.errors import ConnectionLost, Refused

_READ_BYTES: Final = 256 * 1024
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Transport:
    def __init__(self, endpoint: Endpoint, ca_file: str | None, timeout_s: float) -> None:
        """Connect; with TLS the certificate must be trusted and be the host's."""
        self.place = f"{endpoint.host}:{endpoint.port}"
        try:
            plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        except OSError as error:
            raise ConnectionLost(f"cannot reach {self.place}: {error}") from error
        self._socket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls:
                self._socket = _secured(plain, endpoint.host, ca_file, self.place)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        #: How much the peer took or sent, by the socket's account.
        self.moved_bytes = 0
        self._unsent = memoryview(b"")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def exchange(self, output: list[bytes], wait_s: float) -> bytes:
        """Write what the socket takes of `output` (what is taken leaves it), give what came in.

        When nothing came, wait that long for something, or for room to write.
        """
        try:
            self._write(output)
            data = self._read()
            if data or wait_s <= 0:
                return data
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent or output else 0)
            self._selector.modify(self._socket, events)
            self._selector.select(wait_s)
            self._write(output)
            return self._read()
        except OSError as error:
            raise ConnectionLost(f"the connection to {self.place} broke: {error}") from error

    def _write(self, output: list[bytes]) -> None:
        try:
            while self._unsent or output:
                if not self._unsent:
                    self._unsent = memoryview(b"".join(output))
                    output.clear()
                sent = self._socket.send(self._unsent)
                self.moved_bytes += sent
                self._unsent = self._unsent[sent:]
        except _NOT_NOW:
            return

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except _NOT_NOW:
            return b""
        if not data:
            raise ConnectionLost(f"{self.place} closed the connection")
        self.moved_bytes += len(data)
        return data

    def close(self) -> None:
        self._selector.close()
        self._socket.close()


def _secured(plain: socket.socket, host: str, ca_file: str | None, place: str) -> ssl.SSLSocket:
    if ca_file is not None and not Path(ca_file).is_file():
        raise ValueError(f"there is no certificate file {ca_file}")
    try:
        return ssl.create_default_context(cafile=ca_file).wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            "tls:certificate-not-trusted",
            f"{place} has a certificate that is not trusted: {error.verify_message}. Name its"
            " authority: for Twinbus that is tls/ca.pem in its data directory.",
        ) from error
    except OSError as error:
        raise ConnectionLost(f"no TLS with {place}: {error}") from error
