"""At the end, with nothing under way: what a node holds against what it promised.

A node comes in, violations go to the auditor. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter

from tests.sim.auditor import Auditor
from tests.sim.facts import DEAD_LETTER, Copy, Send
from tests.sim.node import Live, Node


def check_node(auditor: Auditor, node: Node) -> None:
    """Compare what a node holds with what it promised, and with its own journal."""
    live = node.live()
    if live != node.replayed():
        auditor.violation("counts", f"the journal of {node.name} tells another story")
    for (stream, seq), (_, _, mid) in live.items():
        copy = auditor.copies.get((node.name, stream, seq))
        if copy is not None and copy.removed:
            auditor.violation("R4", f"{mid} was settled and is still in {stream}")
        if f"{node.name}/{mid}" not in auditor.sends:
            auditor.violation("none invented", f"{mid} in {stream} was never sent")
    _check_sends(auditor, node.name, live)


def check_pair(auditor: Auditor, primary: str, secondary: Node) -> None:
    """What a backlog queue accepted is still in it, or the primary has accepted it (P11)."""
    kept = {mid for _, _, mid in secondary.live().values()}
    for send in auditor.sends.values():
        if send.node == secondary.name and send.accepted and send.mid not in kept:
            moved = auditor.sends.get(f"{primary}/{send.mid}")
            if moved is None or not moved.accepted:
                auditor.violation("P11", f"{send.mid} left the backlog and is not in the primary")


def _check_sends(auditor: Auditor, node: str, live: Live) -> None:
    found = _Found(live)
    for (where, stream, seq), copy in auditor.copies.items():
        if where == node:
            found.add(copy, stream, seq)
            # Neither time nor a crash ends what is put aside.
            is_kept = copy.is_deferred or copy.reserved is not None
            if is_kept and not copy.removal_asked and (stream, seq) not in live:
                auditor.violation("E5", f"{copy.mid} was put aside in {stream} and is lost")
    for send in auditor.sends.values():
        if send.node == node and not send.is_ping:
            _check_send(auditor, send, found)
    _check_transactions(auditor, node, set(found.places), found.present)


def _check_send(auditor: Auditor, send: Send, found: _Found) -> None:
    mid = send.mid
    places = found.places.get(mid, set())
    if send.accepted and not send.expires and not send.cancel_asked:
        if mid not in found.present and mid not in found.consumed:
            auditor.violation("S1", f"{mid} was accepted by {send.entity} and is lost")
        for name in send.subscriptions:
            if (mid, name) not in found.kept:
                auditor.violation("E8", f"the copy of {mid} for {name} is lost")
    if send.cancelled and mid in found.present:
        auditor.violation("E5", f"{mid} was cancelled and is there")
    if send.may_repeat and not send.is_unique:
        return
    if send.refused and places and not send.may_repeat:
        auditor.violation("S2", f"{mid} was refused by {send.entity} and is there")
    for stream, count in Counter(stream for stream, _ in places).items():
        if count > 1:
            rule = "E7" if send.is_unique else "once"
            auditor.violation(rule, f"{mid} was {count} times in {stream}")
        if send.subscriptions and _parent(stream) not in send.subscriptions:
            auditor.violation("E8", f"{mid} is in {stream}, whose filter it does not match")


def _check_transactions(auditor: Auditor, node: str, seen: set[str], present: set[str]) -> None:
    """All of a transaction happened, or none of it (E10)."""
    for txn in auditor.transactions:
        if txn.node != node:
            continue
        done = [send.mid in seen for send in txn.sends]
        source = txn.completes
        if source is not None:
            done.append(source.mid not in present)
        what = f"{txn.mid}: {done}"
        if any(done[: len(txn.sends)]) and not all(done):
            auditor.violation("E10", f"a transaction happened in part, {what}")
        if txn.accepted and not txn.rolls_back and not all(done):
            auditor.violation("E10", f"a committed transaction is not there, {what}")
        if (txn.rolls_back or txn.refused) and any(done[: len(txn.sends)]):
            auditor.violation("E10", f"a transaction that was rolled back is there, {what}")


class _Found:
    """Where messages are or have been, by message id."""

    def __init__(self, live: Live) -> None:
        self.places: dict[str, set[tuple[str, int]]] = {}
        self.present: set[str] = set()
        #: Completed, or deleted on receipt, as far as anybody can know.
        self.consumed: set[str] = set()
        #: Message and entity: it is there, or was consumed there.
        self.kept: set[tuple[str, str]] = set()
        for (stream, seq), (_, _, mid) in live.items():
            self.places.setdefault(mid, set()).add((stream, seq))
            self.present.add(mid)
            self.kept.add((mid, _parent(stream)))

    def add(self, copy: Copy, stream: str, seq: int) -> None:
        self.places.setdefault(copy.mid, set()).add((stream, seq))
        # A dead letter is not consumed: it must be in the dead-letter queue.
        if copy.is_deleted_on_receipt or any(d.asked != DEAD_LETTER for d in copy.removal_asked):
            self.consumed.add(copy.mid)
            self.kept.add((copy.mid, _parent(stream)))


def _parent(stream: str) -> str:
    """The entity that a stream or sub-queue belongs to."""
    return stream.partition("/$")[0]
