"""Finding and making the backlog queues, also where nobody answers (P1)."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError

from twinbus.pairing import NoBacklogQueueError, PairedServiceBusClient
from twinbus.pairing import sync as threads
from twinbus.pairing.backlog import find_or_make_queues


class Administration:
    """Fails for some queues and knows all others."""

    def __init__(self, fails: dict[int, Exception]) -> None:
        self.fails = fails
        self.asked: list[int] = []

    async def get_queue(self, name: str) -> None:
        index = int(name.rpartition("/")[2])
        self.asked.append(index)
        if index in self.fails:
            raise self.fails[index]


@pytest.mark.parametrize("error", [ServiceRequestError("lost"), ServiceResponseError("silent")])
async def test_p1_a_secondary_where_nobody_answers_is_asked_once(error: Exception) -> None:
    administration: Any = Administration(dict.fromkeys(range(10), error))
    with pytest.raises(NoBacklogQueueError, match=str(error)):
        await find_or_make_queues(administration, "near", 10)
    assert administration.asked == [0]


@pytest.mark.parametrize(
    "fails",
    [
        {0: HttpResponseError("quota")},
        {1: HttpResponseError("quota")},
        {1: ServiceRequestError("")},
    ],
    ids=str,
)
async def test_p1_some_queues_are_enough(fails: dict[int, Exception]) -> None:
    administration: Any = Administration(fails)
    queues = await find_or_make_queues(administration, "near", 3)
    assert [queue.index for queue in queues] == [index for index in range(3) if index not in fails]


@pytest.fixture
def silent() -> Iterator[str]:
    """The connection string of a peer that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Nobody accepts: to the other side a connection that waits for that is an open one.
        port = listener.getsockname()[1]
        yield f"Endpoint=sb://localhost:{port};SharedAccessKeyName=n;SharedAccessKey=k"


SHORT = timedelta(seconds=0.3)


async def test_p1_pairing_with_a_silent_secondary_ends(silent: str) -> None:
    client = PairedServiceBusClient.from_connection_strings(silent, silent, operation_timeout=SHORT)
    with pytest.raises(NoBacklogQueueError):
        await asyncio.wait_for(client.pair_namespace(), 20)
    await client.close()


def test_p1_and_does_so_in_a_thread(silent: str) -> None:
    client = threads.PairedServiceBusClient.from_connection_strings(
        silent, silent, operation_timeout=SHORT
    )
    ends: list[Exception] = []

    def pair() -> None:
        try:
            client.pair_namespace()
        except NoBacklogQueueError as error:
            ends.append(error)

    thread = threading.Thread(target=pair, daemon=True)
    thread.start()
    thread.join(20)
    assert len(ends) == 1
    client.close()
