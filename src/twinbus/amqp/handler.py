"""What the protocol engine calls when a peer did something.

The broker implements it. Calls come from inside `Connection.receive`, `tick`, `close` and
`abort`; an implementation may call back into connection, session and link at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.link import Link
    from twinbus.amqp.outcomes import Outcome
    from twinbus.amqp.session import AmqpSession


@mypyc_attr(allow_interpreted_subclasses=True)
class Handler:
    """Does nothing by itself; refuses passwords."""

    def on_sasl_plain(self, user: str, password: str) -> bool:
        """Tell whether a SASL PLAIN name and password are good."""
        return False

    def on_open(self, connection: Connection) -> None:
        """The peer's open was read and answered."""

    def on_attach(self, link: Link) -> None:
        """A peer wants a link: call `link.accept` or `link.refuse`, now or later."""

    def on_transfer(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        txn_id: bytes | None,
    ) -> None:
        """A complete message arrived."""

    def on_too_large(
        self, link: Link, delivery_id: int, settled: bool, size: int, txn_id: bytes | None
    ) -> None:
        """A message beyond `link.max_message_size` has passed by; nothing of it was kept."""

    def on_outcome(
        self, context: object, delivery_id: int, settled: bool, outcome: Outcome
    ) -> None:
        """The peer said what became of one delivery of ours.

        With `settled` the delivery is forgotten already; without it, it stays until
        `AmqpSession.settle_outgoing`. A peer that repeats itself is not told twice, and one
        that reports progress not at all.
        """

    def on_outcomes_end(self, session: AmqpSession) -> None:
        """All outcomes of one disposition frame were handed over."""

    def on_flow(self, link: Link) -> None:
        """Credit, drain or window changed on a link on which we send."""

    def on_detach(self, link: Link, closed: bool) -> None:
        """The link is gone by the peer's doing; `link.take_unsettled` has what was in flight."""

    def on_close(self, connection: Connection) -> None:
        """The connection ended, however it ended; called once."""
