"""`twinbus receive` and `twinbus peek`: what is in an entity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.commands import Entity, command
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.node import Node, shown_if_readable
from twinbus.cli.printer import Printer
from twinbus.cli.remote import Remote
from twinbus.forms.message_form import one_line

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver

app = typer.Typer()


class Settling(StrEnum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


class State(StrEnum):
    ACTIVE = "active"
    LOCKED = "locked"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"


Count = Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")]
All = Annotated[bool, typer.Option("--all", help="Until there are no more.")]
Wait = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a message.")]
Settle = Annotated[
    Settling, typer.Option(help="What becomes of a message once it has been printed.")
]
Session = Annotated[str | None, typer.Option("--session", help="Of this session.")]
From = Annotated[int, typer.Option(min=1, max=2**63 - 1, help="From this one on.")]
NextSession = Annotated[bool, typer.Option("--next-session", help="Of any free session.")]


@command(app, "receive")
def receive(
    remote: Remote, printer: Printer, entity: Entity, count: Count = 1, everything: All = False,
    wait: Wait = 5.0, settle: Settle = Settling.COMPLETE, session: Session = None,
    next_session: NextSession = False,
) -> None:  # fmt: skip
    """Receive messages, print them, then settle them.

    One that cannot be read is never completed: it stays, is named, and the exit code is 1.
    """
    if session is not None and next_session:
        raise CommandError("--session goes without --next-session", USAGE)
    with remote.client() as client:
        from azure.servicebus import NEXT_AVAILABLE_SESSION

        chosen: Any = NEXT_AVAILABLE_SESSION if next_session else session
        receiver = client.get_queue_receiver(entity, session_id=chosen, max_wait_time=wait)
        count_received = 0
        unreadable = []
        held = {}

        def stays(shown: dict[str, Any]) -> bool:
            # Once completed, nobody could ever see what it was.
            return "unreadable" in shown and settle is Settling.COMPLETE

        with receiver:
            wanted = None if everything else count
            for message, shown in received(receiver, wanted, wait, passed_over=stays):
                number = shown["sequence_number"]
                if number in held:
                    # Its lock is over and it came again: everything has been seen.
                    break
                if "unreadable" in shown:
                    unreadable.append(str(number))
                # Programs read what `import` takes, and nothing else.
                if "unreadable" not in shown or not printer.json_output:
                    printer.line(shown, one_line)
                count_received += not stays(shown)
                # What is given back at once would come again in the same run.
                if settle is Settling.ABANDON or stays(shown):
                    held[number] = message
                else:
                    _settle(receiver, message, settle)
            for message in held.values():
                give_back(receiver, message)
    if not printer.json_output:
        printer.aside(f"{count_received} received from {entity}.")
    if unreadable and settle is Settling.COMPLETE:
        numbers = ", ".join(unreadable)
        raise CommandError(f"left in {entity}, for they cannot be read: {numbers}")
    if unreadable:
        printer.aside(f"These cannot be read: {', '.join(unreadable)}.")


@command(app, "peek")
def peek(
    remote: Remote, printer: Printer, entity: Entity, count: Count = 10, everything: All = False,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    session: Session = None,
    from_sequence_number: From = 1,
) -> None:  # fmt: skip
    """Look at messages without receiving them."""
    with remote.client() as client:
        node = Node(client, entity)
        if state is State.LOCKED and not node.is_twinbus():
            raise CommandError("only Twinbus can tell which messages are locked", USAGE)
        left = None if everything else count
        for shown in _peeked(node, state, session, from_sequence_number):
            printer.line(shown, one_line)
            if left is not None and (left := left - 1) == 0:
                break


def _peeked(
    node: Node, state: State | None, session: str | None, from_sequence_number: int
) -> Iterator[dict[str, Any]]:
    for page in node.browse(from_sequence_number, state=state and state.value, session_id=session):
        for shown in page:
            # Azure takes no notice of the wanted state; there it is found out here, if it can be.
            if (
                state in (None, State.LOCKED)
                or "unreadable" in shown
                or shown.get("state", "active") == state
            ):
                yield shown


def received(
    receiver: ServiceBusReceiver,
    count: int | None,
    wait_s: float,
    at_once: int = 50,
    passed_over: Callable[[dict[str, Any]], bool] = lambda shown: False,
) -> Iterator[tuple[ServiceBusReceivedMessage, dict[str, Any]]]:
    """Messages with their JSON form, until there were enough or none came in time.

    At most `at_once` are locked and wait for their turn. What is `passed_over` does not count.
    """
    from twinbus.pairing.sdk import PayloadTap

    tap = PayloadTap()
    while count is None or count > 0:
        if not tap.sits_on(receiver):
            tap.put_on(receiver)
        wanted = at_once if count is None else min(count, at_once)
        messages = receiver.receive_messages(wanted, max_wait_time=wait_s)
        if not messages:
            return
        for message in messages:
            payload = tap.take(message, receiver)
            if payload is None:
                # It came over a link that the SDK opened by itself: let it come again.
                give_back(receiver, message)
                continue
            shown = shown_if_readable(payload)
            yield message, shown
            if count is not None and not passed_over(shown):
                count -= 1


def give_back(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    """Let a message be received again; if its lock is over, it is back in its queue already."""
    from azure.servicebus.exceptions import MessageLockLostError

    with suppress(MessageLockLostError):
        receiver.abandon_message(message)


def _settle(
    receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, how: Settling
) -> None:
    if how is Settling.COMPLETE:
        receiver.complete_message(message)
    elif how is Settling.DEFER:
        receiver.defer_message(message)
    else:
        receiver.dead_letter_message(message, reason="DeadLetteredByOperator")
