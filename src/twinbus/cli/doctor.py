"""`twinbus doctor`: what is wrong with a broker here, or with the way to a namespace."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli.commands import Json, port
from twinbus.cli.failures import FAILURE
from twinbus.cli.printer import Printer
from twinbus.cli.remote import ADMIN_VARIABLE, CA_VARIABLE, CONNECTION_VARIABLE, Remote

Port = Annotated[str, typer.Option(help="0 or 'off': not to be checked.")]

_UNCHECKED = "0 for one that is not to be checked"


def doctor(
    data_dir: Annotated[Path, typer.Option(help="The broker's directory.")] = Path("twinbus-data"),
    config: Annotated[Path | None, typer.Option(help="The broker's configuration file.")] = None,
    capture_dir: Annotated[
        Path | None, typer.Option("--capture", help="Where it captures to.", metavar="DIR")
    ] = None,
    host: Annotated[str, typer.Option(help="The address it listens on.")] = "127.0.0.1",
    amqp_port: Port = "5672",
    amqps_port: Port = "5671",
    admin_port: Port = "5300",
    connection: Annotated[
        str | None,
        typer.Option(envvar=CONNECTION_VARIABLE, help="Also try to reach this namespace."),
    ] = None,
    admin_endpoint: Annotated[
        str | None, typer.Option(envvar=ADMIN_VARIABLE, help="Where its administration is.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(envvar=CA_VARIABLE, help="The authority to trust.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Find what is wrong with a broker on this machine, and say what to do.

    Exits with 1 if there is a fault. It changes nothing and may run beside the broker.
    """
    # What it needs takes a while to load, and no other command needs it.
    from twinbus.cli.examination import FAULT, Installation, examine, print_findings

    given = {"amqp": amqp_port, "amqps": amqps_port, "admin": admin_port}
    ports = {name: port(text, f"--{name}-port", _UNCHECKED) for name, text in given.items()}
    remote = None if connection is None else Remote(connection, admin_endpoint, ca)
    found = examine(
        Installation(data_dir, config, capture_dir),
        host,
        {name: number for name, number in ports.items() if number},
        remote,
    )
    if json_output:
        Printer(True).rows([asdict(finding) for finding in found], ())
    else:
        print_findings(found)
    if any(finding.level == FAULT for finding in found):
        raise typer.Exit(FAILURE)
