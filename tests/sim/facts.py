"""What is known of a run: sends, deliveries, and the messages in streams.

Plain data, filled in by actors and peers as things happen and judged by the auditor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from tests.sim.network import Wire

ACCEPTED, REJECTED, RELEASED, MODIFIED, TRANSACTIONAL = 0x24, 0x25, 0x26, 0x27, 0x34
COMPLETE, DEAD_LETTER, ABANDON, DEFER, IN_TRANSACTION = (
    "complete", "dead-letter", "abandon", "defer", "in transaction",
)  # fmt: skip
#: Settlements after which a message is no longer where it was.
REMOVES = (COMPLETE, DEAD_LETTER)
#: The one refusal that leaves open whether it was done.
IN_DOUBT = "amqp:internal-error"


@dataclass(eq=False)
class Send:
    """One message on its way into a broker; `mid` is its message id, used for nothing else."""

    mid: str
    node: str
    entity: str
    session: str | None = None
    number: int = 0
    #: To a topic: the subscriptions that must get a copy each, and no other.
    subscriptions: tuple[str, ...] = ()
    #: The transaction it is part of.
    txn: Txn | None = None
    #: Several attempts may carry it to the same broker, each with an answer of its own.
    may_repeat: bool = False
    #: The entity detects duplicates: however often it is sent, it comes out once (E7).
    is_unique: bool = False
    is_ping: bool = False
    #: It has a time to live, so that it may be gone without anybody's doing.
    expires: bool = False
    #: Its time to live, and when it is due, by the broker's clock; 0: none.
    ttl_ms: int = 0
    due_ms: int = 0
    #: It was scheduled: somebody asked for its removal; the broker has said that it is done.
    cancel_asked: bool = False
    cancelled: bool = False
    accepted: bool = False
    refused: bool = False
    #: Places in the order of events, and the time of the first.
    asked_at: int = 0
    asked_ms: int = 0
    accepted_at: int = 0


@dataclass(eq=False)
class Txn(Send):
    """The end of a transaction: its sends, and what it completes."""

    sends: list[Send] = field(default_factory=list)
    completes: Delivery | None = None
    rolls_back: bool = False


@dataclass(eq=False)
class Wish:
    """Somebody wants something done with a message."""

    asked: str = ""


@dataclass(eq=False, kw_only=True)
class Delivery(Wish):
    wire: Wire
    link: str
    #: None: it was fetched by its sequence number.
    number: int | None
    node: str
    stream: str
    seq: int
    mid: str
    session: str | None
    count: int
    #: In true time, whatever the broker's clock says.
    until_ms: int
    enqueued_ms: int
    ttl_ms: int
    due_ms: int
    is_settled: bool
    payload: bytes
    tag: bytes
    asked_reached_ms: int = 0
    #: When the request for it was at the broker, if it was fetched by its number.
    fetched_ms: int = 0

    @property
    def link_id(self) -> tuple[str, str]:
        """The link, of all links of all connections."""
        return self.wire.name, self.link

    @property
    def token(self) -> UUID:
        return UUID(bytes_le=self.tag)

    def __str__(self) -> str:
        return f"{self.node} {self.stream} {self.seq} {self.mid}"


@dataclass(eq=False)
class Copy:
    """One message in one stream, as its sequence number names it."""

    mid: str
    #: Who holds its lock, as far as the broker has said.
    lock: Delivery | None = None
    #: Who asked for its removal, in a request that reached the broker and was not refused.
    removal_asked: set[Wish] = field(default_factory=set)
    #: The broker has said that it is removed.
    removed: bool = False
    is_deleted_on_receipt: bool = False
    #: The broker has said that it is deferred: only who knows its number gets it (E5).
    is_deferred: bool = False
    #: The consumer and the epoch that it is reserved for (L3).
    reserved: tuple[str, int] | None = None


def code_of(said: Described) -> int:
    assert isinstance(said.descriptor, int)
    return int(said.descriptor)


def fields_of(said: Described) -> list[Any]:
    assert isinstance(said.value, list)
    return said.value


def meaning(outcome: Described) -> str:
    code = code_of(outcome)
    if code == TRANSACTIONAL:
        return IN_TRANSACTION
    if code == MODIFIED:
        return DEFER if fields_of(outcome)[1] else ABANDON
    return {ACCEPTED: COMPLETE, REJECTED: DEAD_LETTER, RELEASED: ABANDON}[code]
