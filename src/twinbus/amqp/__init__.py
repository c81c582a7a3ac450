"""AMQP 1.0 without I/O: bytes go in, calls to a handler and bytes come out.

Knows the protocol and nothing of queues, sockets or clocks.
"""
