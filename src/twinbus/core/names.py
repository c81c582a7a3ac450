"""Names and paths of entities (E1, E2).

Names are compared without regard to case and keep the case they were made with. A path
such as `orders/Subscriptions/audit/$DeadLetterQueue` is cut into the entity's own path
and the sub-queue it points at.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from twinbus.core import limits
from twinbus.core.errors import ARGUMENT_ERROR, BusError

DEAD_LETTER = "$DeadLetterQueue"
TRANSFER_DEAD_LETTER = "$Transfer/$DeadLetterQueue"
MANAGEMENT = "$management"

# Which stream of an entity a path points at; also the low bits of a stream's number.
MAIN_STREAM = 0
DEAD_LETTER_STREAM = 1
TRANSFER_STREAM = 2

_NAME = re.compile(r"[A-Za-z0-9$_](?:[A-Za-z0-9._\-/~$]*[A-Za-z0-9._\-$~])?")
_SUBSCRIPTIONS = re.compile(r"/subscriptions?/", re.IGNORECASE)
_BELOW_TOPIC = re.compile(r"/subscriptions?(?:/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """What a link address or an HTTP path points at."""

    #: Queue, topic, or `<topic>/Subscriptions/<name>`, as written.
    entity: str
    #: MAIN_STREAM, DEAD_LETTER_STREAM or TRANSFER_STREAM.
    stream: int = MAIN_STREAM
    #: Whether the address ends in `/$management`.
    management: bool = False

    @property
    def path(self) -> str:
        return self.entity + ("", f"/{DEAD_LETTER}", f"/{TRANSFER_DEAD_LETTER}")[self.stream]


def fold(name: str) -> str:
    """The form under which a name is looked up."""
    return name.casefold()


def authority(address: str) -> str:
    """The host and port of an address; nothing if it has none."""
    return address.partition("://")[2].partition("/")[0]


def strip_authority(address: str) -> str:
    """Cut `amqps://host:port/` or a leading slash off an address, and undo percent signs."""
    scheme = address.find("://")
    if scheme >= 0:
        slash = address.find("/", scheme + 3)
        address = address[slash + 1 :] if slash >= 0 else ""
    return unquote(address).strip("/")


def parse_address(address: str) -> Address:
    """Cut an address into entity, stream and management node."""
    path = strip_authority(address)
    management = False
    stream = MAIN_STREAM
    lowered = path.casefold()
    if lowered == MANAGEMENT:
        return Address("", management=True)
    if lowered.endswith("/" + MANAGEMENT):
        management = True
        path = path[: -len(MANAGEMENT) - 1]
        lowered = path.casefold()
    if lowered.endswith("/$transfer/$deadletterqueue"):
        stream = TRANSFER_STREAM
        path = path[: -len(TRANSFER_DEAD_LETTER) - 1]
    elif lowered.endswith("/$deadletterqueue"):
        stream = DEAD_LETTER_STREAM
        path = path[: -len(DEAD_LETTER) - 1]
    return Address(canonical(path), stream, management)


def canonical(path: str) -> str:
    """Write a subscription's path in its one spelling; other paths stay as they are."""
    return _SUBSCRIPTIONS.sub("/Subscriptions/", path, count=1)


def subscription_path(topic: str, subscription: str) -> str:
    return f"{topic}/Subscriptions/{subscription}"


def owner(path: str) -> str:
    """The queue or topic that a path belongs to, or would belong to if there were such a one."""
    return _BELOW_TOPIC.split(parse_address(path).entity, maxsplit=1)[0]


def split_subscription(path: str) -> tuple[str, str] | None:
    """Give (topic, subscription) if the path is a subscription's."""
    topic, separator, name = canonical(path).partition("/Subscriptions/")
    return (topic, name) if separator and name else None


def check_entity_name(name: str) -> None:
    _check(name, "queue or topic", limits.ENTITY_NAME_MAX, slash=True)


def check_subscription_name(name: str) -> None:
    _check(name, "subscription", limits.SUBSCRIPTION_NAME_MAX, slash=False)


def check_rule_name(name: str) -> None:
    _check(name, "rule", limits.RULE_NAME_MAX, slash=False)


def _check(name: str, what: str, length_max: int, *, slash: bool) -> None:
    if not name:
        raise BusError(ARGUMENT_ERROR, f"A {what} needs a name.")
    if len(name) > length_max:
        raise BusError(
            ARGUMENT_ERROR, f"The {what} name has {len(name)} characters; {length_max} are allowed."
        )
    if not _NAME.fullmatch(name) or "//" in name or (not slash and "/" in name):
        raise BusError(
            ARGUMENT_ERROR,
            f"'{name}' is not a valid {what} name: use letters, digits, '.', '-', '_'"
            + (" and '/', and begin and end with none of '.-/'." if slash else "."),
        )
    lowered = fold(name)
    if slash and (
        "$deadletterqueue" in lowered
        or lowered.startswith("$")
        or lowered.endswith("/" + MANAGEMENT)
        or _BELOW_TOPIC.search(name)
    ):
        raise BusError(ARGUMENT_ERROR, f"'{name}' is reserved: the broker makes such paths itself.")
