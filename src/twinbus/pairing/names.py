"""Names that both sides of a pair must agree on (P2)."""

import ipaddress


def namespace_name(host: str) -> str:
    """The first label of a namespace's host, which may come with a scheme, a port or a path.

    An address has no labels: cut short it would be another namespace's name as well, and that
    one's syphon would take the messages.
    """
    without_scheme = host.partition("://")[2] or host
    place = without_scheme.partition("/")[0]
    inside, bracket, _ = place.removeprefix("[").partition("]")
    name = inside if bracket or place.count(":") > 1 else place.partition(":")[0]
    try:
        return ipaddress.ip_address(name).exploded.replace(":", "-")
    except ValueError:
        return name.partition(".")[0]


def backlog_queue_name(primary_host: str, index: int) -> str:
    return f"{namespace_name(primary_host)}/x-servicebus-transfer/{index}"
