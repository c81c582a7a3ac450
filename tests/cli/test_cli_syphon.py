"""`twinbus syphon` runs the library's syphon, and ends in good order (P11)."""

import signal
import time

from tests.cli.command_line import CommandLine
from tests.support.broker import Broker

BACKLOG = "localhost/x-servicebus-transfer/0"


def test_syphon_moves_the_backlog(run: CommandLine, broker: Broker, queue: str) -> None:
    run("queue", "create", BACKLOG)
    run("send", BACKLOG, "home", "--property", f"x-ms-path={queue}")
    text = broker.connection_string
    syphon = run.start(
        "syphon", "--primary", text, "--secondary", text, "--backlog-queues", "1", "--poll", "1"
    )
    deadline = time.monotonic() + 60
    while not (found := run("peek", queue, "--json").lines) and time.monotonic() < deadline:
        assert syphon.poll() is None, syphon.communicate()
    syphon.send_signal(signal.SIGTERM)
    out, err = syphon.communicate(timeout=30)
    assert [message["body"] for message in found] == ["home"]
    assert (syphon.returncode, err) == (0, "")
    assert queue in out
