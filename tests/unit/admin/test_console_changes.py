"""What the console changes in bulk, on a broker in memory."""

from __future__ import annotations

from tests.unit.engine.engine_kit import payload
from tests.unit.server.server_kit import Machine
from twinbus.admin.console.changes import Changes, Step
from twinbus.core import names
from twinbus.core.descriptions import QueueDescription
from twinbus.engine.message import take_in


def test_a_step_of_large_messages_is_more_than_one_batch() -> None:
    """Each is written anew, and a batch holds only so much."""
    machine = Machine(segment_bytes=64 << 20)
    broker = machine.broker
    now_ms = broker.begin_turn()
    large = QueueDescription("q", max_message_size_in_kilobytes=100 << 10)
    queue = broker.engine.namespace("n", now_ms).create_queue(large, now_ms)
    for seq in range(1, 6):
        queue.publish(take_in(payload(bytes(20 << 20)), str), broker.begin_turn())
        machine.run()
        queue.dead_letter(queue.main, seq, "dead", "", 0, broker.begin_turn())
        machine.run()
    commits = broker.commits_total
    step = Step([1, 2, 3, 4, 5], 0, 5)
    dead = queue.stream(names.DEAD_LETTER_STREAM)
    changed = Changes(broker).resubmit(queue, dead, step, queue, "SET a = 1")
    machine.loop.run_until_complete(changed)
    assert (step.done, step.failures) == (5, [])
    assert queue.main.index.live == 5
    assert broker.commits_total - commits == 2
    machine.close()
