"""The HTTP port: the Atom administration API, health, and AMQP over WebSocket."""
