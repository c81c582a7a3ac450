"""`twinbus serve`: starts the broker, says that it is ready, and stops it in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twinbus import is_compiled
from twinbus.cli import capture
from twinbus.cli.failures import USAGE, CommandError, one_line_errors
from twinbus.core import limits
from twinbus.core.errors import BusError
from twinbus.core.ids import is_key, new_key
from twinbus.journal import JournalError, RealDisk
from twinbus.server.authorization import ROOT_POLICY
from twinbus.server.config import Config, ConfigError, load
from twinbus.server.service import Service

if TYPE_CHECKING:
    from twinbus.capture.supervisor import Supervisor

KEY_VARIABLE = "TWINBUS_SAS_KEY"
LOG_VARIABLE = "TWINBUS_LOG"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Beside the data: where `twinbus pipeline` puts its reports when it is not told otherwise.
REPORTS = "twinbus-reports"
#: Beside the data: where applications on this machine may keep the events of their pairs.
EVENTS = "twinbus-events"
# Where clients look that were told no port.
_AMQPS_PORT = 5671
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Options:
    data_dir: Path
    host: str
    #: A port's number, 0 for any free one, None for off.
    amqp_port: int | None
    amqps_port: int | None
    admin_port: int | None
    config: Path | None
    capture: Path | None
    json_output: bool
    development: bool


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message and whatever else was given."""

    _PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in self._PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_json_lines() -> None:
    level = os.environ.get(LOG_VARIABLE) or "INFO"
    if level.upper() not in logging.getLevelNamesMapping():
        raise CommandError(
            f"{LOG_VARIABLE}: '{level}' is no log level; use one of {', '.join(_LEVELS)}", USAGE
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT; exit with 0 once everything accepted is on disk."""
    if options.development and options.host not in _LOOPBACK:
        raise typer.BadParameter("--development goes with a loopback --host only")
    with one_line_errors():
        log_json_lines()
        try:
            _run(options)
        except (ConfigError, JournalError, BusError) as error:
            raise CommandError(str(error)) from error


def _run(options: Options) -> None:
    config = load(options.config) if options.config is not None else Config()
    _need_directory(options.data_dir)
    key, is_new = _key(options.data_dir)
    _allow_open_files(config)
    # The journal's thread waits for the interpreter's lock; a busy loop must not keep it.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, config, key, is_new))


def _need_directory(data_dir: Path) -> None:
    """Make the data directory, or say what is wrong with it before anything is begun in it."""
    advice = "choose another --data-dir"
    try:
        RealDisk().make_directory(data_dir)
    except FileExistsError as error:
        raise CommandError(
            f"the data directory {data_dir} cannot be made: {error.filename} is no directory;"
            f" remove that file, or {advice}"
        ) from error
    except OSError as error:
        raise CommandError(
            f"the data directory {data_dir} cannot be made: {error.strerror}; {advice}"
        ) from error
    if not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
        raise CommandError(
            f"the data directory {data_dir} cannot be written to: give it to this user"
            f" (chown {os.getuid()} {data_dir}), or {advice}"
        )


def _allow_open_files(config: Config) -> None:
    """Raise the limit that a process may raise by itself to what all connections would take."""
    wanted = config.max_unauthenticated + config.max_connections + limits.DESCRIPTORS_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # A system may have a limit of its own below the hard one.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _key(data_dir: Path) -> tuple[str, bool]:
    """The namespaces' root key, and whether it was made just now."""
    given = os.environ.get(KEY_VARIABLE)
    if given:
        return given, False
    path = data_dir / "root.key"
    if path.exists():
        kept = path.read_text(encoding="utf-8", errors="replace").strip()
        if not is_key(kept):
            raise CommandError(
                f"{path} holds no key: restore it from a backup, or remove it and a new one is made"
            )
        return kept, False
    key = new_key()
    # Under its name only once it is whole: a start that is cut short here can be repeated.
    part = data_dir / f"root.key.{os.getpid()}"
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
    _name_new(part, path)
    # Clients are told the key now: its name, too, must outlive a power cut.
    RealDisk().sync_directory(data_dir)
    return key, True


def _name_new(part: Path, path: Path) -> None:
    """Give a file its name, unless something has that name by now."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links.
        os.rename(part, path)
    finally:
        part.unlink(missing_ok=True)


def _key_reference(data_dir: Path) -> str:
    """What stands for the key in a connection string, for a shell to put in."""
    if os.environ.get(KEY_VARIABLE):
        return f"${KEY_VARIABLE}"
    return f"$(cat {shlex.quote(str((data_dir / 'root.key').resolve()))})"


async def _serve(options: Options, config: Config, key: str, is_new: bool) -> None:
    started = time.perf_counter()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    capturing = _capture(options, config)
    service = Service(
        options.data_dir,
        config,
        key,
        checks=not options.development,
        observing=capturing is not None,
        captured=None if capturing is None else lambda: capturing.captured_lsn,
    )
    await service.make_entities()
    if capturing is not None:
        capturing.start()
    ports: dict[str, int] = {}
    tls = None
    if options.amqps_port is not None or options.admin_port is not None:
        tls = _certificate(options, config, service)
    if options.amqp_port is not None:
        with _named_port(options.host, options.amqp_port, "--amqp-port"):
            ports["amqp"] = await service.listen(options.host, options.amqp_port)
    if options.amqps_port is not None:
        with _named_port(options.host, options.amqps_port, "--amqps-port"):
            ports["amqps"] = await service.listen(options.host, options.amqps_port, tls)
    http = None
    if options.admin_port is not None:
        from twinbus.admin.application import broker_application
        from twinbus.admin.listener import HttpListener

        beside = options.data_dir.resolve().parent
        application = broker_application(service, beside / REPORTS, beside / EVENTS, capturing)
        http = HttpListener(application, tls, service.lobby)
        with _named_port(options.host, options.admin_port, "--admin-port"):
            await http.start(options.host, options.admin_port)
        ports["admin"] = http.port
    # What is there now stays; a full collection need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    _say_ready(options, service, key, is_new, ports, time.perf_counter() - started)
    await stopping.wait()
    # AMQP first, so that clients over WebSocket hear a close too.
    await service.amqp.close()
    if http is not None:
        await http.close()
    await service.close()
    if capturing is not None:
        await capturing.stop()


@contextlib.contextmanager
def _named_port(host: str, port: int, option: str) -> Iterator[None]:
    """Say which port cannot be listened on, and why."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.EADDRINUSE:
            text = f"port {port} is taken: is another broker running? Stop it, or choose another"
            raise CommandError(f"{text} {option}") from error
        if number == errno.EACCES:
            text = f"this user may not listen on port {port}: choose one above 1023 for {option}"
            raise CommandError(text) from error
        raise CommandError(
            f"'{host}' cannot be listened on: {error}; give --host an address of this machine, or"
            " 0.0.0.0 for all"
        ) from error


def _capture(options: Options, config: Config) -> Supervisor | None:
    """What keeps the journal as Parquet, if that is wanted."""
    wanted = config.capture
    directory = options.capture or (None if wanted is None else wanted.directory)
    if directory is None:
        return None
    if not capture.is_installed():
        raise ConfigError(capture.NOT_INSTALLED)
    from twinbus.capture.supervisor import Supervisor, command

    given: list[str] = []
    if wanted is not None:
        for name in ("roll_seconds", "keep_days", "keep_gigabytes"):
            value = getattr(wanted, name)
            if value is not None:
                given += ["--" + name.replace("_", "-"), str(value)]
    return Supervisor(command(options.data_dir, directory, given))


def _certificate(options: Options, config: Config, service: Service) -> Any:
    from twinbus.server.tls import CertificateFiles, own_certificate, server_context

    if config.certificate is not None and config.key is not None:
        files = CertificateFiles(certificate=config.certificate, key=config.key, ca=None)
    else:
        files = own_certificate(options.data_dir / "tls", service.hosts(), datetime.now(UTC))
    try:
        return server_context(files)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _say_ready(
    options: Options, service: Service, key: str, is_new: bool, ports: dict[str, int], took_s: float
) -> None:
    names = [namespace.name for namespace, _ in service.all()]
    # The JSON is for a program that has to know the key; what is printed ends in logs.
    shown = key if is_new or options.json_output else _key_reference(options.data_dir)
    described = {
        name: {
            "connection_string": _connection_string(options, name, names, shown, ports),
            "admin_url": _admin_url(options, name, names, ports),
        }
        for name in names
    }
    if options.json_output:
        ready = {"ready": True, "namespaces": described, "ports": ports, "pid": os.getpid()}
        print(json.dumps(ready), flush=True)
        return
    form = "compiled" if is_compiled() else "interpreted (no compiled hot path is installed)"
    print(f"Twinbus is ready in {took_s:.2f} s; the hot path is {form}.")
    print(f"Data: {options.data_dir.resolve()}")
    for name, parts in described.items():
        print(f"\nNamespace {name}")
        print(f"  {parts['connection_string']}")
        if parts["admin_url"]:
            print(f"  administration and console: {parts['admin_url']}")
    if is_new:
        print(f"\nA key was made and is kept in {options.data_dir / 'root.key'}: it is shown once.")
    else:
        print("\nThe key is not shown again: in double quotes a shell puts it in.")
    print("\nStop with Ctrl-C.", flush=True)


def _host(options: Options, name: str, names: list[str]) -> str:
    """The host name under which a namespace is reached from this machine."""
    host = "localhost" if options.host in (*_LOOPBACK, "0.0.0.0", "::") else options.host
    return host if name == names[0] else f"{name}.{host}"


def _connection_string(
    options: Options, name: str, names: list[str], key: str, ports: dict[str, int]
) -> str:
    host = _host(options, name, names)
    credentials = f"SharedAccessKeyName={ROOT_POLICY};SharedAccessKey={key}"
    if "amqp" in ports:
        return f"Endpoint=sb://{host}:{ports['amqp']};{credentials};UseDevelopmentEmulator=true"
    if ports.get("amqps", _AMQPS_PORT) != _AMQPS_PORT:
        host = f"{host}:{ports['amqps']}"
    return f"Endpoint=sb://{host};{credentials}"


def _admin_url(options: Options, name: str, names: list[str], ports: dict[str, int]) -> str | None:
    if "admin" not in ports:
        return None
    return f"https://{_host(options, name, names)}:{ports['admin']}"
