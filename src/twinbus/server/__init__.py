"""Owns the loop: listeners, the bridge between AMQP and the engine, commits, timers."""
