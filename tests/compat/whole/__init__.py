"""The whole Service Bus, driven by the official SDKs and by qpid-proton over real sockets."""
