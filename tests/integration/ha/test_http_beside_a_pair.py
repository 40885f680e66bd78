"""What is sent over HTTP while one of four stores is away, beside a pair that diverts (PN3, PE17, IN2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from kit_drills import BACKLOG_LOCK, BACKLOGS, INTERVAL, PING, POLL, until_taken

from duobus.ha.aio import backlog_queues, pair_namespace
from duobus.ha.events import Diverted, PrimaryHealthy, Syphoned
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.testing.namespace import Namespace
from kits.four_stores import FourStores, four_stores
from kits.pair import Events, bounded

#: The SDK leaves sockets unclosed whose opening is given up.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: The client of this test peeks at what is not due yet.
LATER = "Wed, 02 Jul 2036 01:32:27 GMT"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourStores]:
    with four_stores(tmp_path_factory.mktemp("http-beside-a-pair")) as found:
        yield found


class Post(NamedTuple):
    """What is sent in one request.

    Attributes:
        entity: Where to.
        texts: Several of them are a batch.
        properties: Of each message.
    """

    entity: str
    texts: list[str]
    properties: dict[str, str]

    async def send(self, stores: FourStores) -> tuple[int, str]:
        """Send; return the status and the text of the answer."""
        return await asyncio.to_thread(partial(stores.post, self.entity, self.texts, **self.properties))


def posts(entity: str, key: str | None, name: str) -> list[Post]:
    """A message, a batch, and for a queue a scheduled message, each with the key if there is one."""
    keyed = {} if key is None else {"PartitionKey": key}
    made = [
        Post(entity, [f"{name} of HTTP"], keyed),
        Post(entity, [f"{name} in a batch 1", f"{name} in a batch 2"], keyed),
    ]
    if entity.startswith("queue"):
        made.append(Post(entity, [f"{name} scheduled"], {**keyed, "ScheduledEnqueueTimeUtc": LATER}))
    return made


@pytest.mark.parametrize("how", ["fail", "stall"])
@bounded
async def test_over_http_what_lies_in_a_lost_store_is_refused_and_all_else_goes_on_beside_a_pair_that_diverts(
    stores: FourStores, duobus_namespace: Namespace, how: str
) -> None:
    queue, parts = stores.create(), stores.create(enable_partitioning=True)
    topic, news = stores.create(is_topic=True), stores.create(is_topic=True, enable_partitioning=True)
    lost, going = [*posts(queue, None, "plain"), *posts(topic, None, "plain")], []
    for entity in (parts, news):
        lost += posts(entity, stores.keys(entity, lost=True)[0], "lost")
        going += [*posts(entity, None, "keyless"), *posts(entity, stores.keys(entity, lost=False)[0], "elsewhere")]
    events = Events()
    async with await pair_namespace(client(stores.server.connection_string), options(duobus_namespace, events)) as pair:
        with stores.away(how):
            answers, *_ = await asyncio.gather(
                asyncio.gather(*(post.send(stores) for post in (*lost, *going))),
                *(divert(pair, stores, entity) for entity in (queue, topic, parts, news)),
            )
            for post, (status, text) in zip((*lost, *going), answers, strict=True):
                assert status == (503 if post in lost else 201), post
                assert (f"StoreUnavailable:{post.entity}" in text) is (post in lost)
            assert len(events.of(Diverted)) == 4
        await events.wait(PrimaryHealthy, 4)
        await events.wait(Syphoned, 4)
        for post in lost:
            status, text = await post.send(stores)
            assert status == 201, text
    for entity in (queue, topic, parts, news):
        sent = [text for post in (*lost, *going) if post.entity == entity for text in post.texts]
        assert sorted(stores.texts(entity)) == sorted([*sent, "of the pair"])


async def divert(pair: Any, stores: FourStores, entity: str) -> None:
    """Send a message with a key of the store that is away until the message is diverted."""
    sender = pair.get_topic_sender(entity) if entity.startswith("topic") else pair.get_queue_sender(entity)
    one = ServiceBusMessage("of the pair", partition_key=stores.keys(entity, lost=True)[-1])
    refused, took_s = await until_taken(lambda: sender.send_messages(one))
    assert refused
    assert took_s >= INTERVAL.total_seconds()


def client(connection_string: str) -> ServiceBusClient:
    return prompt_client(ServiceBusClient.from_connection_string(connection_string, retry_total=0))


def options(secondary: Namespace, events: Events) -> SendAvailabilityPairedNamespaceOptions:
    for path in backlog_queues.paths("contoso", BACKLOGS):
        secondary.create_queue(path, lock_duration=BACKLOG_LOCK)
    return SendAvailabilityPairedNamespaceOptions(
        client(secondary.connection_string),
        backlog_queue_count=BACKLOGS,
        failover_interval=INTERVAL,
        ping_primary_interval=PING,
        poll=POLL,
        enable_syphon=True,
        primary_name="contoso",
        on_event=events,
    )
