"""Every bound in one place, with the reason it has the value it has."""

# Names (E1).
ENTITY_NAME_MAX = 260
SUBSCRIPTION_NAME_MAX = 50
RULE_NAME_MAX = 50

# Messages (E4).
MESSAGE_BYTES_MAX = 256 * 1024
LARGE_MESSAGE_BYTES_MAX = 100 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024
SESSION_ID_CHARS_MAX = 128
MESSAGE_ID_CHARS_MAX = 128
SESSION_STATE_BYTES_MAX = 256 * 1024

# As many as Azure is said to take in a batch. All of it is done in one go, so that it is done
# whole (S6): a batch of a hundred thousand messages of a few bytes would hold everybody up.
BATCH_MESSAGES_MAX = 4_500

# Forwarding (E9): the fourth hop is the last one allowed.
FORWARD_HOPS_MAX = 4

# Transactions (E10). As many messages as Azure lets one send; what they weigh waits in memory for
# the commit, of all open transactions of a connection together as much as the largest message.
TRANSACTION_MESSAGES_MAX = 100
TRANSACTION_BYTES_MAX = LARGE_MESSAGE_BYTES_MAX
TRANSACTIONS_MAX = 1_000

# Topics. The different copies of a message go into one batch of the journal, which holds 2 GiB.
SUBSCRIPTIONS_MAX = 2_000
RULES_MAX = 2_000
COPIES_BYTES_MAX = 1024 * 1024 * 1024
# Smaller ones are not counted: that takes actions in thousands of rules to come near the bound.
COPIES_UNCHECKED_BYTES = 64 * 1024
# What a rule says: no message has more properties to compare with. All rules of a subscription
# are written together whenever one of them changes; Azure's longest expressions fit.
RULE_CHARS_MAX = 64 * 1024
RULES_CHARS_MAX = 8 * 1024 * 1024

# AMQP, as Azure Service Bus announces them.
FRAME_BYTES_MAX = 64 * 1024
SENDER_CREDIT = 1_000
# What the links of a connection hold of messages whose end has not come: two of the largest, so
# that one can be under way while another begins.
PARTIAL_BYTES_MAX = 2 * LARGE_MESSAGE_BYTES_MAX

# As many clients as Azure allows a namespace.
CONNECTIONS_MAX = 5_000
# Strangers: connections of any port that have shown no key yet. What one of them can make the
# broker hold is bounded by the values below, and there are no more than so many: after a restart
# all clients come back at once, as strangers.
STRANGERS_MAX = CONNECTIONS_MAX
# From the first byte to an accepted key. Clients need some hundred milliseconds.
STRANGER_WAIT_MS = 30_000
# A client needs three kilobytes, a session and two links to show its token.
STRANGER_BYTES_MAX = 64 * 1024
STRANGER_SESSIONS_MAX = 16
STRANGER_LINKS_MAX = 16
# File descriptors that connections leave to the journal, the capture and the console.
DESCRIPTORS_RESERVED = 64
# A token is some hundred bytes long.
TOKEN_BYTES_MAX = 16 * 1024

# How long a receiver that asks for the next available session is kept waiting.
NEXT_SESSION_WAIT_MS = 65_000
# A lost session lock is lost at once; the receiver hears of it this much later, so that
# a receive call which ends at the same moment still ends quietly (as Azure does).
SESSION_LOST_NOTICE_MS = 1_000

# $management requests. One holds a message as large as the entity takes, with what stands around
# it, or what ends the largest round of bulk work: 50,000 messages, each with a reason, as seven
# values each. Values are counted because some take one byte on the wire and seventy in memory.
REQUEST_BYTES_AROUND = 64 * 1024
REQUEST_BYTES_MIN = 32 * 1024 * 1024
REQUEST_VALUES_MAX = 500_000

# $management answers hold at most this many messages and bytes; clients ask again.
PEEK_COUNT_MAX = 250
PEEK_BYTES_MAX = 1024 * 1024
# Deferred messages that are fetched by their numbers come all or none, in an answer that is built
# in memory: as much as one message may have.
DEFERRED_BYTES_MAX = LARGE_MESSAGE_BYTES_MAX
# Purging in bulk goes in steps of so many, so that nobody waits for it.
PURGE_COUNT_MAX = 10_000

# Reservations: names are kept for good, so that those who come late stay fenced. A query has one
# or two epochs outstanding; one with many more has lost its way.
CONSUMER_CHARS_MAX = 256
RESERVERS_MAX = 1_000
EPOCHS_MAX = 100
# A `twinbus:read` answer is built in memory, and the link waits for it.
READ_BYTES_MAX = 4 * 1024 * 1024
# What a node owes a connection in answers before its further requests wait: while one of the
# largest is on its way the next is made.
OWED_BYTES_MAX = 2 * READ_BYTES_MAX
