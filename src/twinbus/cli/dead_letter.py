"""`twinbus dead-letter`: see what died, put it back, or throw it away.

On this broker dead letters go back in one step each, so that a message is never in both
queues or in neither, whenever the command is stopped. Azure has no such operation: there they
are sent anew and then completed, and one that was stopped in between may be there twice. They
get new ids there: what detects duplicates drops a message whose id it knows, and once the dead
letter is completed it would be nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.commands import Entity, Yes, command
from twinbus.cli.node import Node
from twinbus.cli.outbox import Outbox
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.purge import throw_away
from twinbus.cli.receive import received
from twinbus.cli.remote import BRISK, Remote
from twinbus.core import limits, names
from twinbus.forms.message_form import Encoded, dead_letter_reason, from_json, one_line

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage

app = typer.Typer(no_args_is_help=True, help="See what died, put it back, or throw it away.")

Reason = Annotated[str | None, typer.Option(help="Only those with this reason.")]
_WAIT_S = 5.0
# Their locks run while the first of them are being sent, on a network that may be slow.
_AT_ONCE = 5
_RESUBMITTED = "-resubmitted-"
_DEATH = ("DeadLetterReason", "DeadLetterErrorDescription")


@command(app, "list")
def list_all(remote: Remote, printer: Printer, entity: Entity, reason: Reason = None) -> None:
    """List dead letters with their reasons."""
    with remote.client() as client:
        for page in Node(client, _dead_letter_path(entity)).browse():
            for shown in page:
                if reason is None or dead_letter_reason(shown) == reason:
                    printer.line(shown, one_line)


@command(app, "resubmit")
def resubmit(
    remote: Remote, printer: Printer, entity: Entity, reason: Reason = None,
    sequence_number: Annotated[
        list[int] | None, typer.Option(help="Only this one; again for more.")
    ] = None,
    yes: Yes = False,
) -> None:  # fmt: skip
    """Put dead letters back where they died. It may be stopped and run again at any time."""
    path = _dead_letter_path(entity)
    wanted = Wanted(reason, frozenset(sequence_number or ()))
    with remote.client() as client:
        node = Node(client, path)
        atomic = node.is_twinbus()
        target = _target(path)
        if not atomic:
            confirm(
                f"This is no Twinbus broker: dead letters are sent to {target} again, under new"
                " ids, and then completed; if stopped in between, one may be there twice. Go on?",
                yes,
            )

        def tell(count: int) -> None:
            found = {"resubmitted": count, "atomic": atomic}
            printer.result(found, f"{count} resubmitted from {path}.")

        with printer.counted(f"Resubmitting from {path}", tell) as advance:
            moves = _move(node, wanted) if atomic else send_again(client, path, target, wanted)
            for count in moves:
                advance(count)


@command(app, "purge")
def purge(remote: Remote, printer: Printer, entity: Entity, yes: Yes = False) -> None:
    """Throw all dead letters of an entity away."""
    path = _dead_letter_path(entity)
    confirm(f"Throw away all messages in {path}?", yes)
    with remote.client() as client:
        node = Node(client, path)
        throw_away(printer, path, node.purge("active") if node.is_twinbus() else node.delete())


class Wanted:
    """Which dead letters are meant; without a choice all of them."""

    def __init__(self, reason: str | None, numbers: frozenset[int]) -> None:
        self._reason = reason
        self._numbers = numbers

    def __call__(self, shown: dict[str, Any]) -> bool:
        return (self._reason is None or dead_letter_reason(shown) == self._reason) and (
            not self._numbers or shown["sequence_number"] in self._numbers
        )


def _move(node: Node, wanted: Wanted) -> Iterator[int]:
    """Let the broker move dead letters back; gives how many, page by page.

    What dies meanwhile, maybe for the second time, is left: there could be no end of it.
    """
    last = node.last_number()
    for page in node.browse(bodies=False):
        meant = [shown for shown in page if shown["sequence_number"] <= last]
        if not meant:
            return
        chosen = [shown["sequence_number"] for shown in meant if wanted(shown)]
        left = len(chosen)
        # Large ones go some at a time.
        while left and (count := node.resubmit(chosen)):
            yield count
            left -= count


def send_again(
    client: ServiceBusClient, path: str, target: str, wanted: Wanted, wait_s: float = _WAIT_S
) -> Iterator[int]:
    """Send dead letters to `target`, completing each once it is there; gives 1 for each.

    Those not wanted stay locked, so that others are reached behind them. Any lock may end before
    its message is settled; then the message comes again. One that was sent is not sent twice, nor
    is one that was sent and has died again meanwhile.
    """
    sent: set[int] = set()
    new_ids: set[str] = set()
    passed_over: dict[int, ServiceBusReceivedMessage] = {}
    seen_again: set[int] = set()
    with (
        client.get_queue_receiver(path) as receiver,
        client.get_queue_sender(target, **BRISK) as sender,
    ):
        outbox = Outbox(sender)
        for message, shown in received(receiver, None, wait_s, _AT_ONCE):
            number = shown["sequence_number"]
            if number not in sent and number not in passed_over:
                seen_again.clear()
            elif number in seen_again:
                # It came twice with nothing new in between: everything has been seen.
                break
            else:
                seen_again.add(number)
            has_died_again = number not in sent and str(shown.get("message_id")) in new_ids
            # One that cannot be read cannot be sent: it stays.
            if "unreadable" in shown or has_died_again or not wanted(shown):
                passed_over[number] = message
                continue
            if number not in sent:
                outbox.put(_revived(shown, path))
                new_ids.add(shown["message_id"])
                outbox.flush()
                sent.add(number)
                yield 1
            _settle(receiver.complete_message, message)
        for message in passed_over.values():
            _settle(receiver.abandon_message, message)


def _settle(
    settle: Callable[[ServiceBusReceivedMessage], None], message: ServiceBusReceivedMessage
) -> None:
    """Settle a message unless its lock is over: then it is back in its queue already."""
    from azure.servicebus.exceptions import MessageLockLostError

    with suppress(MessageLockLostError):
        settle(message)


def _revived(shown: dict[str, Any], path: str) -> Encoded:
    """A dead letter as it was before it died, but for its id."""
    shown["message_id"] = _new_id(shown, path)
    if isinstance(shown.get("application_properties"), dict):
        for name in _DEATH:
            shown["application_properties"].pop(name, None)
    return from_json(shown)


def _new_id(shown: dict[str, Any], path: str) -> str:
    """An id that nobody knows of old, and the same one whenever this dead letter is sent.

    The time is for a queue that was deleted and made again, which counts from 1 again.
    """
    old = shown.get("message_id") or ""
    if isinstance(old, dict):
        (old,) = old.values()
    known_by = f"{path.casefold()} {shown['sequence_number']} {shown.get('enqueued_time_utc')}"
    mark = f"{_RESUBMITTED}{hashlib.sha256(known_by.encode()).hexdigest()[:16]}"
    # One that has died again does not get longer and longer.
    kept = str(old).partition(_RESUBMITTED)[0]
    return kept[: limits.MESSAGE_ID_CHARS_MAX - len(mark)] + mark


def _dead_letter_path(entity: str) -> str:
    address = names.parse_address(entity)
    if address.stream != names.MAIN_STREAM:
        return address.path
    return names.Address(address.entity, names.DEAD_LETTER_STREAM).path


def _target(path: str) -> str:
    """Where a dead letter is sent again: to its queue, or its subscription's topic."""
    entity = names.parse_address(path).entity
    pair = names.split_subscription(entity)
    return pair[0] if pair else entity
