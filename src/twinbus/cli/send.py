"""`twinbus send`: messages from arguments, files, JSON lines or standard input."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from twinbus.cli.commands import Entity, command, duration_ms
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.outbox import Outbox
from twinbus.cli.printer import Printer
from twinbus.cli.properties import property_value
from twinbus.cli.remote import BRISK, Remote
from twinbus.core.ids import new_tracking_id
from twinbus.core.units import ms_from_datetime, time_from_iso
from twinbus.forms import values
from twinbus.forms.message_form import Encoded, from_json

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
    with remote.client() as client, client.get_queue_sender(entity, **BRISK) as sender:
        outbox = Outbox(sender)
        with printer.progress(f"Sending to {entity}") as advance:
            for message in _messages(body or [], file or [], lines):
                whole: dict[str, Any] = {**common, **message}
                if properties:
                    own_properties = message.get("application_properties") or {}
                    whole["application_properties"] = {**properties, **own_properties}
                advance(outbox.put(_encoded(whole)))
            advance(outbox.flush())
    printer.result({"sent": outbox.sent}, f"{outbox.sent} sent to {entity}.")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON lines file; - is standard input."""
    opened: Any = nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8")
    with opened as file:
        yield from _objects(file, path)


def _objects(file: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(file, path), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{path}, line {number}: {error}") from error
        if not isinstance(found, dict):
            raise CommandError(f"{path}, line {number}: a message is an object")
        yield found


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no text in UTF-8: {error}") from error


def _messages(bodies: list[str], files: list[Path], lines: Path | None) -> Iterator[dict[str, Any]]:
    for text in bodies:
        yield _with_body(sys.stdin.buffer.read()) if text == "-" else {"body": text}
    for path in files:
        yield _with_body(path.read_bytes())
    if lines is not None:
        yield from read_lines(lines)


def _with_body(content: bytes) -> dict[str, Any]:
    return {"body": values.to_json(content)}


def _encoded(message: dict[str, Any]) -> Encoded:
    # As the SDKs do: a message without an id could never be told from its repetition.
    message.setdefault("message_id", new_tracking_id())
    try:
        return from_json(message)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"a message cannot be sent: {error}") from error


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
