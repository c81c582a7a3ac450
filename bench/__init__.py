"""Peers side by side: this broker and RabbitMQ, the same client, the same machine."""
