"""Twinbus: a message broker that speaks Azure Service Bus's protocols.

Importing this package is cheap and needs neither pyspark nor a C compiler.
"""

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Tell whether the hot path runs compiled, or interpreted from the same source."""
    from twinbus.amqp import codec

    return not (codec.__file__ or "").endswith(".py")
