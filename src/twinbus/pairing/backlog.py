"""The backlog queues in the secondary: their names, their settings, and making them (P1, P2).

The administration client and the primary's name go in, the queues that exist go out. It
must not touch a queue that is there already, nor delete one.
"""

from datetime import timedelta

from azure.core.exceptions import (
    ClientAuthenticationError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.core.descriptions import INT32_MAX
from twinbus.core.units import UNLIMITED_ISO
from twinbus.pairing.errors import NoBacklogQueueError
from twinbus.pairing.names import backlog_queue_name
from twinbus.pairing.policy import BacklogQueue


async def find_or_make_queues(
    administration: ServiceBusAdministrationClient, primary_host: str, count: int
) -> list[BacklogQueue]:
    """See to it that the backlog queues exist; give those that do.

    Some may be refused (a quota, a name in use): the pair works with the others. Wrong
    credentials would refuse them all and are raised as they are.
    """
    queues: list[BacklogQueue] = []
    errors: list[str] = []
    for index in range(count):
        name = backlog_queue_name(primary_host, index)
        try:
            await _find_or_make(administration, name)
        except ClientAuthenticationError:
            raise
        except Exception as error:
            errors.append(f"{name}: {error}")
            if not queues and isinstance(error, (ServiceRequestError, ServiceResponseError)):
                # Nobody is there: to ask for each of the others would take as long again.
                break
        else:
            queues.append(BacklogQueue(index, name))
    if not queues:
        raise NoBacklogQueueError(
            "The secondary namespace has no backlog queue and none could be made. "
            + " | ".join(errors)
        )
    return queues


async def _find_or_make(administration: ServiceBusAdministrationClient, name: str) -> None:
    try:
        await administration.get_queue(name)
    except ResourceNotFoundError:
        try:
            await administration.create_queue(
                name,
                max_size_in_megabytes=5120,
                max_delivery_count=INT32_MAX,
                default_message_time_to_live=UNLIMITED_ISO,
                auto_delete_on_idle=UNLIMITED_ISO,
                lock_duration=timedelta(minutes=1),
                dead_lettering_on_message_expiration=True,
                enable_batched_operations=True,
            )
        except ResourceExistsError:
            # Another client of this pair was faster; its queue is as good.
            return
