"""Messages and AMQP values as people and programs write them: JSON in and out.

The command line and the console share these forms; nothing here does I/O.
"""
