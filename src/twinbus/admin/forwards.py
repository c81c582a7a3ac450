"""Which forwards a change sets anew. Who makes an entity forward sends to its target, so each
takes Manage there as well, by whichever door the change comes.
"""

from collections.abc import Iterator, Mapping

from twinbus.core.descriptions import QueueDescription, SubscriptionDescription
from twinbus.core.names import fold, strip_authority

FORWARDS = ("forward_to", "forward_dead_lettered_messages_to")


def new_forwards(
    wanted: Mapping[str, object], known: QueueDescription | SubscriptionDescription | None
) -> Iterator[tuple[str, str]]:
    """Give the setting and the target of each forward that is wanted and not known yet."""
    for setting in FORWARDS:
        target = wanted.get(setting)
        path = strip_authority(target) if isinstance(target, str) else ""
        if path and fold(path) != fold(getattr(known, setting, None) or ""):
            yield setting, path
