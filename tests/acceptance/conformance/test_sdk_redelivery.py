"""A queue with a back-off policy, as the official SDK sees it; and an abandon that says when to come back."""

from __future__ import annotations

import time

from azure.servicebus import ServiceBusMessage
from kit_bus import Bus
from kit_sdk import Sdk, within_the_limit
from test_raw_deliveries import locked, outcome

from duobus.amqp import Modified, Transfers
from duobus.codec import Symbol
from kits.raw_client import RawClient


@within_the_limit
async def test_an_abandoned_message_comes_back_later_and_is_seen_meanwhile(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("backing-off")
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            abandoned = time.monotonic()
            await receiver.abandon_message(message)
            assert len(await receiver.peek_messages(sequence_number=1)) == 1
            assert await receiver.receive_messages(max_wait_time=0.3) == []
            (again,) = await receiver.receive_messages(max_wait_time=20)
            assert time.monotonic() - abandoned > 0.9
            assert again.delivery_count == 1
            await receiver.complete_message(again)


def test_an_abandon_says_for_how_many_ms_the_message_stays_away(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue("backing-off")
    link, delivery_id, _ = locked(raw, queue)
    link.grant(1)
    abandon = Modified(True, False, {Symbol("duobus:redelivery-delay"): 1500})
    abandoned = time.monotonic()
    link.session.disposition(True, delivery_id, delivery_id, abandon, False)
    assert isinstance(outcome(raw, delivery_id), Modified)
    assert raw.wait(Transfers, where=lambda event: event.link is link).payloads
    # Longer than the second of the queue's policy: the word counts.
    assert time.monotonic() - abandoned > 1.4
