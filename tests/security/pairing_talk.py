"""The pairing library and the client, used rightly and wrongly; gives the texts of what came."""

from __future__ import annotations

import traceback
from datetime import timedelta

from azure.servicebus import ServiceBusMessage

from tests.security.conftest import QUEUE
from tests.security.official import administration, authority
from tests.support.broker import KEY, KEY_NAME, Broker
from twinbus.client import Client
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions, pair_namespace


async def use_a_pair_badly(broker: Broker, wrong_key: str, body: str) -> list[str]:
    texts: list[str] = []
    good = broker.connection_string
    with administration(broker) as admin:
        admin.get_queue(QUEUE)
    for secondary_key in (KEY, wrong_key):
        endpoint = f"sb://localhost:{broker.ready['ports']['admin']}"
        options = SendAvailabilityPairedNamespaceOptions(
            secondary=good.replace(KEY, secondary_key),
            administration=f"Endpoint={endpoint};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={secondary_key}",
            backlog_queue_count=1,
            failover_interval=timedelta(0),
        )
        texts += [repr(options), str(options)]
        try:
            client = await pair_namespace(
                good.replace(KEY, wrong_key), options, connection_verify=authority(broker)
            )
            texts += [repr(client), repr(client.status())]
            async with client, client.get_queue_sender(QUEUE) as sender:
                texts.append(repr(sender))
                await sender.send_messages(ServiceBusMessage(body))
        except Exception:
            texts.append(traceback.format_exc())
    for text in (good, good.replace(KEY, wrong_key), f"SharedAccessKey={KEY}"):
        try:
            own = Client.connect(text)
        except Exception:
            texts.append(traceback.format_exc())
            continue
        try:
            texts.append(repr(own))
            texts.append(repr(own.sender(QUEUE)))
        except Exception:
            texts.append(traceback.format_exc())
        finally:
            own.close()
    return texts
