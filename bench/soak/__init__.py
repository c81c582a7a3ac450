"""Load and soak: many connections and queues, faults every minute, a ledger of every message."""
