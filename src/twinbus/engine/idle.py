"""AutoDeleteOnIdle: an entity that nobody uses removes itself (E3)."""

from collections.abc import Callable

from twinbus.core.units import UNLIMITED_MS
from twinbus.engine.entities import Entity, Queue, Subscription, Topic
from twinbus.engine.kernel import Kernel, Wakeable


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
        if any(stream.receivers for stream in entity.streams.values()):
            entity.accessed_ms = now_ms
        idle_ms = self.idle_ms()
        if idle_ms < UNLIMITED_MS and now_ms - entity.accessed_ms >= idle_ms:
            self._delete(entity.path)
        else:
            self.watch(now_ms)
