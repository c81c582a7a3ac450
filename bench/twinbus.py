"""Runs this project's broker for a measurement, compiled or interpreted.

Enters: the form and the queues. Leaves: an endpoint that the benchmark's client can use.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.clients import Endpoint
from tests.support.broker import KEY, KEY_NAME, PROJECT, Broker, form_found

FORMS = ("compiled", "interpreted")
QUEUE = "bench"
# Locks must outlast the slowest run; the size must hold the deepest queue.
PROPERTIES: dict[str, object] = {"LockDuration": "PT5M", "MaxSizeInMegabytes": 81920}


def forms_present() -> list[str]:
    return [form for form in FORMS if form_found(form) == form]


def installed_is_stale() -> bool:
    """Tell whether the installed package was made from another source than src/."""
    installed = Path(sysconfig.get_path("purelib")) / "twinbus"
    source = PROJECT / "src" / "twinbus"
    return installed.exists() and any(
        not (copy := installed / path.relative_to(source)).exists()
        or copy.read_bytes() != path.read_bytes()
        for path in source.rglob("*.py")
    )


def broker(form: str, directory: Path) -> Broker:
    return Broker(directory, {QUEUE: PROPERTIES}, form)


def endpoint(live: Broker) -> Endpoint:
    return Endpoint(live.pid, live.amqp_port, QUEUE, KEY_NAME, KEY)


@contextmanager
def running(form: str) -> Iterator[Endpoint]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-twinbus-") as directory,
        broker(form, Path(directory)) as live,
    ):
        yield endpoint(live)
