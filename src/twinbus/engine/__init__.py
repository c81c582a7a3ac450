"""Decides what happens to messages; never does it.

Commands and the time come in as method calls. What became true leaves as records for the
journal, and as calls to the consumers that deliveries are for. Nothing here reads a clock,
a socket, a file or a die.
"""
