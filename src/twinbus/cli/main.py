"""The `twinbus` command."""

from pathlib import Path
from typing import Annotated

import typer

from twinbus import __version__
from twinbus.cli import (
    capture,
    dead_letter,
    doctor,
    pair,
    pipeline,
    purge,
    queue,
    receive,
    reservations,
    rule,
    send,
    subscription,
    syphon,
    topic,
    transfer,
)
from twinbus.cli.commands import port
from twinbus.cli.failures import CODES

_ANY_FREE = "0 for any free one"

app = typer.Typer(
    no_args_is_help=True,
    help="A message broker that speaks Azure Service Bus's protocols.",
    epilog=CODES,
    pretty_exceptions_show_locals=False,
    # In Rich's boxes the names of long options are cut off.
    rich_markup_mode=None,
)
app.add_typer(queue.app, name="queue")
app.add_typer(topic.app, name="topic")
app.add_typer(subscription.app, name="subscription")
app.add_typer(rule.app, name="rule")
app.add_typer(dead_letter.app, name="dead-letter")
app.add_typer(reservations.app, name="reservations")
app.add_typer(capture.app, name="capture")
app.add_typer(pair.app, name="pair")
app.add_typer(pipeline.app, name="pipeline")
for single in (send.app, receive.app, purge.app, transfer.app):
    app.registered_commands += single.registered_commands
app.command()(syphon.syphon)
app.command()(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message broker that speaks Azure Service Bus's protocols."""


@app.command()
def serve(
    data_dir: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path(
        "twinbus-data"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    amqp_port: Annotated[
        str, typer.Option(help="Plain AMQP; 0: any free port, or 'off'.")
    ] = "5672",
    amqps_port: Annotated[str, typer.Option(help="AMQP over TLS; 0, or 'off'.")] = "5671",
    admin_port: Annotated[
        str, typer.Option(help="Administration and WebSocket, HTTP and HTTPS; 0, or 'off'.")
    ] = "5300",
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, or the official emulator's Config.json.")
    ] = None,
    capture_dir: Annotated[
        Path | None,
        typer.Option("--capture", help="Keep the journal as Parquet here.", metavar="DIR"),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")
    ] = False,
    development: Annotated[
        bool,
        typer.Option("--development", help="Check no tokens. Only on a loopback address."),
    ] = False,
) -> None:
    """Run the broker. The key comes from TWINBUS_SAS_KEY, or is made at the first start."""
    from twinbus.cli.serve import Options, run

    run(
        Options(
            data_dir=data_dir,
            host=host,
            amqp_port=port(amqp_port, "--amqp-port", _ANY_FREE),
            amqps_port=port(amqps_port, "--amqps-port", _ANY_FREE),
            admin_port=port(admin_port, "--admin-port", _ANY_FREE),
            config=config,
            capture=capture_dir,
            json_output=json_output,
            development=development,
        )
    )


def main() -> None:
    app(prog_name="twinbus")
