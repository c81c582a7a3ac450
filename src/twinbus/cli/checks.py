"""What `twinbus doctor` looks at on this machine, one function for each thing.

The options of a broker go in, findings come out: what is wrong and what to do about it.
Nothing is changed, made or locked for longer than a look takes.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from twinbus import is_compiled
from twinbus.core.ids import is_key
from twinbus.engine import records
from twinbus.journal import JournalError, JournalNewer, RealDisk
from twinbus.journal.batch import entries
from twinbus.journal.scan import Chain, segment_numbers, walk
from twinbus.server.config import Config, ConfigError, load
from twinbus.server.tls import RENEW_BEFORE, SERVER_FILE, CertificateFiles, server_context

OK, WARNING, FAULT = "ok", "warning", "fault"

KEY_VARIABLE = "TWINBUS_SAS_KEY"
_SDK = "azure-servicebus"
_SDK_VERSION_MIN = (7, 15)
_FREE_FAULT_BYTES = 256 << 20
_FREE_WARNING_BYTES = 2 << 30
_OPEN_FILES_FAULT = 1024
_OPEN_FILES_WARNING = 4096
# Clocks of several machines are never quite the same.
CLOCK_TOLERANCE_S = 60


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    #: ok, warning or fault.
    level: str
    what: str
    #: What to do about it.
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """A broker as it would be started."""

    data_dir: Path
    config_file: Path | None
    #: What `serve --capture` was told; it comes before the configuration.
    capture: Path | None = None

    @property
    def journal(self) -> Path:
        return self.data_dir / "journal"

    def config(self) -> Config:
        """Its configuration; the default one where the file cannot be used."""
        try:
            return Config() if self.config_file is None else load(self.config_file)
        except ConfigError:
            return Config()

    def capture_root(self) -> Path | None:
        wanted = self.config().capture
        return self.capture or (None if wanted is None else wanted.directory)


def check_versions() -> list[Finding]:
    found = [Finding("python", OK, sys.version.split()[0])]
    if not is_compiled():
        found.append(
            Finding(
                "hot path",
                WARNING,
                "it runs interpreted, several times slower than compiled",
                "Install Twinbus with a C compiler present (Debian: build-essential).",
            )
        )
    wanted = ".".join(map(str, _SDK_VERSION_MIN))
    advice = "Install it: pip install --upgrade 'twinbus[pairing]'."
    try:
        version = importlib.metadata.version(_SDK)
    except importlib.metadata.PackageNotFoundError:
        return [*found, Finding("sdk", WARNING, f"{_SDK} is not installed", advice)]
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _SDK_VERSION_MIN:
        what = f"{_SDK} {version} is too old: {wanted} is needed"
        return [*found, Finding("sdk", FAULT, what, advice)]
    return [*found, Finding("sdk", OK, f"{_SDK} {version}")]


def check_java() -> list[Finding]:
    """Where Spark is installed it needs a runtime."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return []
    from twinbus.spark.java import NoJavaError, java_home

    try:
        return [Finding("spark", OK, f"pyspark {version}, Java in {java_home()}")]
    except NoJavaError as error:
        advice = "Install Java 17 or later, or: pip install 'twinbus[spark]'."
        return [Finding("spark", FAULT, str(error), advice)]


def check_limits() -> list[Finding]:
    # The broker raises the soft limit by itself.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return [Finding("open files", OK, "as many as there are")]
    if hard >= _OPEN_FILES_WARNING:
        return [Finding("open files", OK, f"{hard} allowed")]
    level = FAULT if hard < _OPEN_FILES_FAULT else WARNING
    advice = (
        "Raise the hard limit: LimitNOFILE=65536 in the systemd unit, --ulimit nofile=65536 for a"
        " container, or nofile in limits.conf."
    )
    return [Finding("open files", level, f"only {hard} allowed: each client takes one", advice)]


def check_config(installation: Installation) -> list[Finding]:
    if installation.config_file is None:
        return []
    try:
        load(installation.config_file)
    except ConfigError as error:
        advice = "Correct it; docs/configuration.md has all settings."
        return [Finding("configuration", FAULT, str(error), advice)]
    return [Finding("configuration", OK, str(installation.config_file))]


def may_look(installation: Installation) -> bool:
    """Whether this user may see what is in the data directory; a new one has nothing to hide."""
    try:
        os.stat(installation.data_dir)
    except PermissionError:
        return False
    except OSError:
        return True
    # What is no directory is told of later.
    return not installation.data_dir.is_dir() or os.access(installation.data_dir, os.R_OK | os.X_OK)


def no_look(installation: Installation) -> list[Finding]:
    what = f"this user may not look into {installation.data_dir}"
    advice = "Run doctor as the broker's user, or as root."
    return [Finding("data directory", FAULT, what, advice)]


def check_disk(installation: Installation) -> list[Finding]:
    directory = installation.data_dir
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        advice = "Remove that file, or choose another --data-dir."
        return [Finding("data directory", FAULT, f"{existing} is not a directory", advice)]
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = f"Give it to the broker's user: chown {os.getuid()} {existing}"
        return [Finding("data directory", FAULT, f"{existing} cannot be written to", advice)]
    free = shutil.disk_usage(existing).free
    told = f"{free >> 20:,} MB free in {existing}"
    if free < _FREE_WARNING_BYTES:
        level = FAULT if free < _FREE_FAULT_BYTES else WARNING
        advice = "Free some space: with a full disk the broker accepts no messages."
        return [Finding("disk", level, f"only {told}", advice)]
    return [Finding("disk", OK, told)]


def check_key(installation: Installation) -> list[Finding]:
    if os.environ.get(KEY_VARIABLE):
        return [Finding("key", OK, f"from {KEY_VARIABLE}")]
    path = installation.data_dir / "root.key"
    if not path.exists():
        return [Finding("key", OK, "it will be made at the first start")]
    found = []
    if not is_key(path.read_text(encoding="utf-8", errors="replace").strip()):
        advice = "Restore it from a backup, or remove it: then a new key is made."
        found.append(Finding("key", FAULT, f"{path} holds no key", advice))
    found += _readable_by_others("key", path)
    return found or [Finding("key", OK, str(path))]


def _readable_by_others(check: str, path: Path) -> list[Finding]:
    mode = path.stat().st_mode & 0o777
    if not mode & 0o077:
        return []
    what = f"{path} may be read by others (mode {mode:o})"
    return [Finding(check, FAULT, what, f"chmod 600 {path}, and replace the key.")]


def check_certificate(installation: Installation, now: datetime) -> list[Finding]:
    config = installation.config()
    own = installation.data_dir / "tls" / SERVER_FILE
    if config.certificate is not None and config.key is not None:
        files = CertificateFiles(config.certificate, config.key, None)
        renewal = "Get a new one and restart the broker."
    elif own.exists():
        files = CertificateFiles(own, own, None)
        renewal = "Restart the broker: it renews its certificate at start."
    else:
        return [Finding("certificate", OK, "it will be made at the first start")]
    try:
        server_context(files)
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except (ValueError, OSError) as error:
        advice = "Give a certificate and the key that belongs to it, both in PEM form."
        return [Finding("certificate", FAULT, str(error), advice)]
    found = _readable_by_others("certificate", files.key) + _in_time(certificate, now, renewal)
    hosts = [host for namespace in config.namespaces for host in namespace.hosts]
    missing = [host for host in hosts if not _names(certificate, host)]
    if missing:
        what = f"{files.certificate} does not hold for {', '.join(missing)}"
        found.append(Finding("certificate", FAULT, what, renewal))
    end = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    return found or [Finding("certificate", OK, f"{files.certificate} is valid until {end}")]


def _in_time(certificate: x509.Certificate, now: datetime, renewal: str) -> list[Finding]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        what = f"it is valid only from {begin:%Y-%m-%d %H:%M} on"
        return [Finding("certificate", FAULT, what, "Set this machine's clock right.")]
    if now > end:
        return [Finding("certificate", FAULT, f"it expired on {end:%Y-%m-%d}", renewal)]
    if end - now < min(RENEW_BEFORE, timedelta(days=14)):
        return [Finding("certificate", WARNING, f"it expires on {end:%Y-%m-%d}", renewal)]
    return []


def _names(certificate: x509.Certificate, host: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        known = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
        return host.lower() in known or f"*.{host.lower().partition('.')[2]}" in known


def lock_holder(installation: Installation) -> str | None:
    """The process that holds the journal, as it wrote itself down; None if nobody does."""
    try:
        handle = os.open(installation.journal / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(handle)
    return None


def check_lock(installation: Installation, holder: str | None, answers: bool) -> list[Finding]:
    """A journal in use is in order only if a broker answers on the ports."""
    if holder is None:
        return [Finding("journal lock", OK, "free")]
    if answers:
        return [Finding("journal lock", OK, f"held by the broker that runs (process {holder})")]
    what = f"process {holder} holds {installation.journal}, and no broker answers on these ports"
    advice = f"Look at it (ps -p {holder}); stop it, or give doctor that broker's ports."
    return [Finding("journal lock", FAULT, what, advice)]


def check_journal(installation: Installation, in_use: bool) -> list[Finding]:
    """Read every record; also compare the clock with the last batch's time."""
    directory = installation.journal
    if not directory.is_dir():
        return [Finding("journal", OK, "it will be made at the first start")]
    disk = RealDisk()
    time_ms = batches = 0
    try:
        segments = segment_numbers(disk.names(directory))
        for data, batch in walk(disk, directory, segments, Chain(), is_live=in_use):
            time_ms, batches = batch.time_ms, batches + 1
            for _, location, _, record in entries(data, batch):
                if record[0] not in records.KINDS:
                    raise JournalNewer(str(records.UnknownKindError(record[0], location)))
    except JournalNewer as error:
        advice = "Use the version that wrote it."
        return [Finding("journal", FAULT, str(error), advice)]
    except (JournalError, OSError) as error:
        advice = "Do not start the broker; restore the directory from a backup."
        return [Finding("journal", FAULT, str(error), advice)]
    found = [Finding("journal", OK, f"{batches:,} batches in {len(segments)} segments are whole")]
    behind_s = time_ms / 1000 - time.time()
    if behind_s > CLOCK_TOLERANCE_S:
        what = f"this machine's clock is {timedelta(seconds=int(behind_s))} behind the journal"
        found.append(Finding("clock", FAULT, what, "Set it right (timedatectl set-ntp true)."))
    return found
