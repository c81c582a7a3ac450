"""A small blocking AMQP client over `twinbus.amqp`, for work in bulk."""
