"""Names that both sides of a pair must agree on (P2)."""


def namespace_name(host: str) -> str:
    """The first label of a namespace's host, which may come with a scheme, a port or a path."""
    without_scheme = host.partition("://")[2] or host
    return without_scheme.partition("/")[0].partition(":")[0].partition(".")[0]


def backlog_queue_name(primary_host: str, index: int) -> str:
    return f"{namespace_name(primary_host)}/x-servicebus-transfer/{index}"
