"""The whole examination that `twinbus doctor` makes, and how it is told to people."""

from datetime import UTC, datetime

from twinbus.cli import capture_checks, checks, reach
from twinbus.cli.checks import FAULT, OK, WARNING, Finding, Installation
from twinbus.cli.remote import Remote
from twinbus.forms.plain import printable

__all__ = ["FAULT", "Installation", "examine", "print_findings"]

_MARKS = {OK: ("ok     ", "green"), WARNING: ("warning", "yellow"), FAULT: ("FAULT  ", "red")}


def examine(
    installation: Installation, host: str, ports: dict[str, int], remote: Remote | None
) -> list[Finding]:
    """Look at everything; a broker may be running meanwhile."""
    may_look = checks.may_look(installation)
    holder = checks.lock_holder(installation) if may_look else "unknown"
    port_findings, answers = reach.check_ports(host, ports, holder)
    found = [
        *checks.check_versions(),
        *checks.check_java(),
        *checks.check_limits(),
        *checks.check_config(installation),
        *(_look(installation, holder, answers) if may_look else checks.no_look(installation)),
        *port_findings,
    ]
    return found if remote is None else [*found, *reach.check_connection(remote)]


def _look(installation: Installation, holder: str | None, answers: bool) -> list[Finding]:
    """What can be seen in the broker's directory."""
    in_use = holder is not None
    return [
        *checks.check_disk(installation),
        *checks.check_key(installation),
        *checks.check_certificate(installation, datetime.now(UTC)),
        *checks.check_lock(installation, holder, answers),
        *checks.check_journal(installation, in_use=in_use),
        *capture_checks.check_capture(installation, in_use=in_use),
    ]


def print_findings(found: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for finding in found:
        mark, style = _MARKS[finding.level]
        console.print(Text(mark, style=style), Text(printable(f"{finding.check}: {finding.what}")))
        if finding.advice:
            console.print(Text(printable(f"        → {finding.advice}")))
    faults = sum(finding.level == FAULT for finding in found)
    console.print("No faults." if not faults else f"{faults} fault{'s' if faults > 1 else ''}.")
