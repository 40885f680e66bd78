"""A task of the sink while a messaging store of its entity is away: rows are put off, never blamed (PE17, IN2)."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from duobus.broker import slot_of, string_key
from duobus.spark.sink.sender import OpenBatch, Post, SendFailed
from duobus.testing.drills import Drill
from duobus.testing.namespace import Namespace

SICK = 2


def batch(post: Post, key: str | None, text: str) -> OpenBatch:
    """Three rows; the same when the task is tried again."""
    made = post.make(("rows", key))
    for number in range(3):
        annotations = None if key is None else {"x-opt-partition-key": key}
        message = AmqpAnnotatedMessage(data_body=[text.encode()], annotations=annotations)
        message.properties = AmqpMessageProperties(message_id=f"{text}-{number}")
        assert made.add(message)
    return made


@pytest.mark.parametrize("how", ["fail", "stall"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_rows_whose_store_is_away_fail_the_task_and_are_sent_when_it_is_tried_again(
    duobus_namespace: Namespace, duobus_drill: Drill, how: str, kind: str
) -> None:
    if kind == "queue":
        home = duobus_namespace.create_queue("rows", enable_partitioning=True)
    else:
        duobus_namespace.create_topic("rows", subscriptions=["all"], enable_partitioning=True)
        home = "rows/subscriptions/all"
    stores = duobus_drill.fragments(duobus_namespace.name, "rows")
    places = {stores[slot_of(string_key(key), len(stores))]: key for key in map(str, range(64))}
    lost, there = places.pop(SICK), places.popitem()[1]
    with ServiceBusClient.from_connection_string(duobus_namespace.connection_string, retry_total=0) as client:
        senders = {"rows": client.get_queue_sender("rows")}
        forgotten: list[str] = []
        post = Post(senders.__getitem__, forgotten.append)
        with duobus_drill.away(SICK, how):
            for _ in range(2):
                with pytest.raises(SendFailed) as failed:
                    post.send(("rows", lost), batch(post, lost, "lost"))
                assert len(failed.value.left) == 3
                assert "StoreUnavailable:rows, Fragment:" in str(failed.value)
            post.send(("rows", there), batch(post, there, "there"))
            for number in range(8):
                post.send(("rows", None), batch(post, None, f"keyless {number}"))
        assert forgotten == ["rows"] * 2
        post.send(("rows", lost), batch(post, lost, "lost"))
    ids = sorted(str(found.message_id) for found in duobus_namespace.messages(home))
    texts = ["lost", "there", *(f"keyless {number}" for number in range(8))]
    assert ids == sorted(f"{text}-{number}" for text in texts for number in range(3))
    assert post.messages == 30
