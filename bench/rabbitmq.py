"""Runs Debian's RabbitMQ as a child, in a directory of its own, and leaves nothing behind.

Enters: the kind of queue. Leaves: an endpoint with one durable queue. It must not touch a
RabbitMQ that the machine runs as a service: own node name, ports, cookie and epmd.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.clients import Endpoint

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
INSTALL_HINT = "apt-get install --no-install-recommends rabbitmq-server"
START_SECONDS_MAX = 90.0
READY = "Server startup complete"


def is_installed() -> bool:
    return SERVER.exists() and shutil.which("epmd") is not None


@contextmanager
def running(queue_type: str) -> Iterator[Endpoint]:
    """A node with the durable queue `bench` of that type (classic or quorum)."""
    with tempfile.TemporaryDirectory(prefix="bench-rabbitmq-") as home:
        amqp_port, epmd_port, dist_port = _free_ports(3)
        environment = _write_config(Path(home), queue_type, amqp_port, epmd_port, dist_port)
        # Our own epmd as a child: the one that Erlang would start outlives its node.
        epmd = subprocess.Popen(["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"])
        log = Path(home) / "server.log"
        try:
            with log.open("wb") as out:
                server = subprocess.Popen(
                    [str(SERVER)],
                    env=environment,
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            try:
                _await_ready(server, log)
                # `/queue/x` would declare a queue that is not durable.
                address = "/amq/queue/bench"
                yield Endpoint(server.pid, amqp_port, address, "guest", "guest")
            finally:
                _stop(server)
        finally:
            epmd.kill()
            epmd.wait()


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def _write_config(
    home: Path, queue_type: str, amqp_port: int, epmd_port: int, dist_port: int
) -> dict[str, str]:
    queue = {
        "name": "bench",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": queue_type},
    }
    rights = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    definitions = {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [rights],
        "queues": [queue],
    }
    (home / "definitions.json").write_text(json.dumps(definitions))
    (home / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\n"
        f"load_definitions = {home}/definitions.json\n"
        "log.console = true\nlog.console.level = info\nlog.file = false\n"
    )
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    return os.environ | {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"bench-{os.getpid()}@localhost",
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "none.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_SERVER_START_ARGS": f"-start_epmd false {loopback}",
        "ERL_EPMD_PORT": str(epmd_port),
    }


def _await_ready(server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while READY not in log.read_text(errors="replace"):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"RabbitMQ did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)


def _stop(server: subprocess.Popen[bytes]) -> None:
    # The session that we made holds the shell, the Erlang machine and its helpers.
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
