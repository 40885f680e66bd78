"""What tasks and replays are told by a broker one of whose stores is away."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from duobus.spark.entities import look, peek
from duobus.spark.offsets import COUNT_BITS, by_fragment
from duobus.testing.drills import Drill
from duobus.testing.namespace import Namespace

KEYS = [f"key-{number}" for number in range(24)]


@pytest.mark.slow
def test_deferred_messages_of_a_store_that_is_away_are_not_taken_for_gone(
    duobus_namespace: Namespace, duobus_drill: Drill
) -> None:
    queue = duobus_namespace.create_queue("claims", enable_partitioning=True)
    homes = duobus_drill.fragments(duobus_namespace.name, queue)
    with ServiceBusClient.from_connection_string(duobus_namespace.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue) as sender:
            for key in KEYS:
                sender.send_messages(ServiceBusMessage(key, partition_key=key))
        with client.get_queue_receiver(queue) as receiver:
            left = len(KEYS)
            while left:
                for message in receiver.receive_messages(left, max_wait_time=5):
                    receiver.defer_message(message)
                    left -= 1
            deferred = peek(receiver, 1)
            numbers = by_fragment(message.sequence_number for message in deferred)
            keys = {message.sequence_number >> COUNT_BITS: message.partition_key for message in deferred}
            # Another fragment with messages lies behind it, in another store.
            fragments = sorted(numbers)
            here, other = next(
                (one, later) for one in fragments for later in fragments if later > one and homes[later] != homes[one]
            )
            duobus_drill.fail(homes[here])
            with client.get_queue_sender(queue) as sender, pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("meets it", partition_key=keys[here]))
            assert [message.sequence_number for message in look(receiver, numbers[other])] == numbers[other]
            assert peek(receiver, numbers[here][0], 1)[0].sequence_number > numbers[here][-1]
            with pytest.raises(ServiceBusServerBusyError):
                list(look(receiver, numbers[here]))
            duobus_drill.heal()
            assert [message.sequence_number for message in look(receiver, numbers[here])] == numbers[here]
