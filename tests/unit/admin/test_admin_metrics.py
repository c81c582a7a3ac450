"""`/metrics` of a broker with many entities: whole, and in nobody's way."""

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from twinbus.admin.metrics import MetricsPage
from twinbus.core.descriptions import QueueDescription
from twinbus.server.config import Config
from twinbus.server.service import Service

QUEUES = 1_000


async def test_c1_others_have_their_turns_while_the_page_is_written(tmp_path: Path) -> None:
    service = Service(tmp_path, Config(), "a key")
    ((namespace, _),) = service.all()
    now_ms = service.broker.begin_turn()
    for number in range(QUEUES):
        namespace.create_queue(QueueDescription(f"queue-{number}"), now_ms)
    namespace.queues["queue-7"].meter.sends = 5
    await service.broker.durable()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    text = (await MetricsPage(service, None).text()).decode()
    other.cancel()
    await service.close()
    assert turns > 50
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    sent = {sample.labels["entity"]: sample.value for sample in found["twinbus_messages_in"]}
    assert len(sent) == QUEUES
    assert sent["queue-7"] == 5
    assert len(found["twinbus_messages"]) == 4 * QUEUES
