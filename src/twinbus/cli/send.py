"""`twinbus send`: messages from arguments, files, JSON lines or standard input."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.cli.commands import Entity, command, duration_ms
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.lines import can_be_read_twice, encoded, read_lines
from twinbus.cli.outbox import Outbox
from twinbus.cli.printer import Printer
from twinbus.cli.properties import property_value
from twinbus.cli.remote import BRISK, Remote
from twinbus.core.ids import new_tracking_id
from twinbus.core.units import ms_from_datetime, time_from_iso
from twinbus.forms import values
from twinbus.forms.message_form import Encoded

app = typer.Typer()

Bodies = Annotated[
    list[str] | None,
    typer.Argument(metavar="BODY…", help="One message each; - reads one from standard input."),
]
File = Annotated[
    list[Path] | None, typer.Option("--file", help="A file whose content is one message's body.")
]
Lines = Annotated[
    Path | None,
    typer.Option(help="JSON lines, one message each, as `export` writes them; - is stdin."),
]
Property = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME[:TYPE]=VALUE", help="A property of your own."),
]
Text = Annotated[str | None, typer.Option()]
Delay = Annotated[
    str | None, typer.Option(help="Deliver after so long (PT5M), or at a time (2026-01-31T08:00Z).")
]
Ttl = Annotated[str | None, typer.Option("--time-to-live", help="E.g. PT30S.")]
_LIFE_MS_MAX = 2**32


@command(app, "send")
def send(
    remote: Remote, printer: Printer, entity: Entity, body: Bodies = None, file: File = None,
    lines: Lines = None, message_id: Text = None, session_id: Text = None, subject: Text = None,
    correlation_id: Text = None, content_type: Text = None, to: Text = None, reply_to: Text = None,
    partition_key: Text = None, time_to_live: Ttl = None, schedule: Delay = None,
    own: Property = None,
) -> None:  # fmt: skip
    """Send messages: each BODY, each --file, or each line of --lines.

    The other options are for all of them; what a JSON line says itself comes first.
    """
    if not body and not file and lines is None:
        raise CommandError("nothing to send: give a BODY, --file or --lines", USAGE)
    common = {
        "message_id": message_id, "session_id": session_id, "subject": subject,
        "correlation_id": correlation_id, "content_type": content_type, "to": to,
        "reply_to": reply_to, "partition_key": partition_key, "time_to_live": _life(time_to_live),
        "scheduled_enqueue_time_utc": _moment(schedule),
    }  # fmt: skip
    common = {name: value for name, value in common.items() if value is not None}
    properties = {name: values.to_json(value) for name, value in map(property_value, own or [])}

    def whole(place: str, message: dict[str, Any]) -> Encoded:
        filled: dict[str, Any] = {**common, **message}
        if properties:
            own_properties = message.get("application_properties") or {}
            if not isinstance(own_properties, dict):
                raise CommandError(f"{place}: to these properties --property can add nothing")
            filled["application_properties"] = {**properties, **own_properties}
        # As the SDKs do: a message without an id could never be told from its repetition.
        filled.setdefault("message_id", new_tracking_id())
        return encoded(filled, place)

    if lines is not None and can_be_read_twice(lines):
        # What was sent would be sent again when the file is mended and sent again.
        for place, message in read_lines(lines):
            whole(place, message)

    def tell(count: int) -> None:
        printer.result({"sent": count}, f"{count} sent to {entity}.")

    with (
        remote.client() as client,
        client.get_queue_sender(entity, **BRISK) as sender,
        printer.counted(f"Sending to {entity}", tell) as advance,
    ):
        messages = _messages(body or [], file or [], lines)
        Outbox(sender).send_all((whole(place, message) for place, message in messages), advance)


def _messages(
    bodies: list[str], files: list[Path], lines: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was given, and where."""
    for number, text in enumerate(bodies, 1):
        message = _with_body(sys.stdin.buffer.read()) if text == "-" else {"body": text}
        yield f"BODY {number}", message
    for path in files:
        yield str(path), _with_body(path.read_bytes())
    if lines is not None:
        yield from read_lines(lines)


def _with_body(content: bytes) -> dict[str, Any]:
    return {"body": values.to_json(content)}


def _life(text: str | None) -> str | None:
    """How long messages live, checked; a message has 32 bits for it."""
    if text is not None and duration_ms("--time-to-live", text) >= _LIFE_MS_MAX:
        raise CommandError(
            f"--time-to-live: {text} is longer than a message can say, P49D at most; without it"
            " the entity's own holds",
            USAGE,
        )
    return text


def _moment(text: str | None) -> str | int | None:
    if text is None:
        return None
    try:
        if text.startswith("P"):
            delay = timedelta(milliseconds=duration_ms("--schedule", text))
            return values.time_to_json(ms_from_datetime(datetime.now(UTC) + delay))
        return values.time_to_json(ms_from_datetime(time_from_iso(text)))
    except OverflowError as error:
        raise CommandError(f"--schedule: {text} is beyond the year 9999", USAGE) from error
    except ValueError as error:
        raise CommandError(
            f"--schedule: '{text}' is neither a delay like PT5M nor a time like 2026-01-31T08:00Z",
            USAGE,
        ) from error
