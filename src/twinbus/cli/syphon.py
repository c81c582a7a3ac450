"""`twinbus syphon`: hands its options to the pairing library, which does the work."""

from typing import Annotated

import typer

from twinbus.cli.commands import BacklogQueues, PairCa, Primary, Secondary
from twinbus.cli.failures import one_line_errors
from twinbus.cli.remote import Remote, need_sdk


def syphon(
    primary: Primary,
    secondary: Secondary,
    backlog_queues: BacklogQueues = 10,
    poll: Annotated[
        float, typer.Option(min=0.001, max=1e9, help="Seconds of one long poll.")
    ] = 900.0,
    retry: Annotated[
        float, typer.Option(min=0.001, max=1e9, help="Seconds to leave alone what failed.")
    ] = 60.0,
    ca: PairCa = None,
) -> None:
    """Move what the backlog queues hold to where it belongs in the primary."""
    with one_line_errors():
        need_sdk()
        from twinbus.pairing import command

        # A syphon waits for namespaces that are away: what can never work is told before.
        for connection in (primary, secondary):
            Remote(connection, ca=ca).client().close()
        command.syphon(primary, secondary, backlog_queues, poll, retry, ca)
