"""AutoDeleteOnIdle: an entity that nobody uses removes itself (E3).

Use is a send, also one forwarded to it, a receiver, a management operation, an update or a new
rule: each leaves its time in `accessed_ms`. What lasts is looked at when the timer comes. A
message that comes to a subscription is no use of it, else none would ever be idle.
"""

from collections.abc import Callable

from twinbus.core.units import UNLIMITED_MS
from twinbus.engine.entities import Entity, Queue
from twinbus.engine.kernel import Kernel, Wakeable
from twinbus.engine.topics import Subscription, Topic


class IdleTimer(Wakeable):
    def __init__(self, kernel: Kernel, entity: Entity, delete: Callable[[str], None]) -> None:
        super().__init__()
        self._kernel = kernel
        self._entity = entity
        self._delete = delete

    def idle_ms(self) -> int:
        entity = self._entity
        if isinstance(entity, Queue | Topic | Subscription):
            return entity.description.auto_delete_on_idle_ms
        return UNLIMITED_MS

    def watch(self, now_ms: int) -> None:
        idle_ms = self.idle_ms()
        if idle_ms < UNLIMITED_MS:
            self._kernel.call_at(max(self._entity.accessed_ms + idle_ms, now_ms + 1), self)

    def stop(self) -> None:
        self.timer_ms = 0

    def on_timer(self, now_ms: int) -> None:
        entity = self._entity
        entity.accessed_ms = _used_ms(entity, now_ms)
        idle_ms = self.idle_ms()
        if idle_ms < UNLIMITED_MS and now_ms - entity.accessed_ms >= idle_ms:
            self._delete(entity.path)
        else:
            self.watch(now_ms)


def _used_ms(entity: Entity, now_ms: int) -> int:
    """When an entity was last used; a topic also by what is done with its subscriptions."""
    # Forwarding is like a receiver that never leaves.
    if entity.forward_to is not None or entity.main.due:
        return now_ms
    # So is a consumer for as long as something is set aside for it (L3).
    if any(stream.receivers or stream.is_reserved() for stream in entity.streams.values()):
        return now_ms
    used_ms = entity.accessed_ms
    if isinstance(entity, Topic):
        for subscription in entity.subscriptions.values():
            used_ms = max(used_ms, _used_ms(subscription, now_ms))
    return used_ms
