"""Rights, and what the SDK makes of every refusal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from kit_bus import KEY, LISTEN_ONLY, SEND_ONLY, Bus
from kit_sdk import Sdk, bodies, within_the_limit

from duobus.ha.outage import token_refusal

#: ServiceBusMessage checks the length by itself; the general message does not.
TOO_LONG = AmqpAnnotatedMessage(data_body=b"m", properties=AmqpMessageProperties(message_id="i" * 129))

TRACKING = re.compile(r"TrackingId:([0-9a-f-]{36})_G\d+, SystemTracker:\S+, Timestamp:\S+")


def tracked(bus: Bus, error: BaseException) -> dict[str, Any]:
    """The log line of the refusal that an exception tells of."""
    found = TRACKING.search(str(error))
    assert found is not None, f"no tracking id in: {error}"
    lines = [line for line in bus.log_lines() if line.get("tracking_id") == found[1]]
    assert len(lines) == 1, f"{found[1]} is {len(lines)} times in the log"
    return lines[0]


def refusals(bus: Bus, queue: str) -> list[dict[str, Any]]:
    """The log lines of refusals on a queue that no other test has touched."""
    return [line for line in bus.log_lines() if line.get("tracking_id") and line.get("path", "").endswith(queue)]


@pytest.mark.parametrize("name", ["missing", "topic.1/Subscriptions/none"])
@within_the_limit
async def test_a_missing_entity_is_a_token_that_was_not_taken_and_the_log_says_why(
    bus: Bus, sdk: Sdk, name: str
) -> None:
    # The SDK gives no reason for a token that is not taken, and tries again as often as it may.
    async with sdk.client(bus.connection_string, retry_total=0) as client:
        for side in (client.sender, client.receiver):
            before = len(missing_lines(bus))
            with pytest.raises(ServiceBusAuthenticationError) as caught:
                async with side(name):
                    pytest.fail("the link was attached")
            assert token_refusal(caught.value) is not None
            assert len(missing_lines(bus)) == before + 1


def missing_lines(bus: Bus) -> list[dict[str, Any]]:
    """The log lines of refusals for what does not exist."""
    return [line for line in bus.log_lines() if line.get("condition") == "amqp:not-found"]


@pytest.mark.parametrize(("rule", "may_send"), [(SEND_ONLY, True), (LISTEN_ONLY, False)])
@within_the_limit
async def test_a_rule_opens_only_the_side_that_it_has_the_right_for(
    bus: Bus, sdk: Sdk, rule: str, may_send: bool
) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string_of(rule), retry_total=3) as client:
        allowed, refused = (client.sender, client.receiver) if may_send else (client.receiver, client.sender)
        async with allowed(queue):
            pass
        with pytest.raises(ServiceBusAuthorizationError) as caught:
            async with refused(queue):
                pytest.fail("the link was attached")
        line = tracked(bus, caught.value)
        # Told once: the SDK may try again, and does not.
        assert refusals(bus, queue) == [line]
        assert (line["condition"], line["path"].rpartition("/")[2]) == ("amqp:unauthorized-access", queue)


@pytest.mark.parametrize(("rule", "key"), [(SEND_ONLY, "another key"), ("nobody", KEY)])
@within_the_limit
async def test_a_wrong_key_or_rule_is_an_authentication_error(bus: Bus, sdk: Sdk, rule: str, key: str) -> None:
    async with sdk.client(bus.connection_string_of(rule, key)) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            async with client.sender("queue.1"):
                pytest.fail("the link was attached")


@within_the_limit
async def test_too_long_an_identifier_is_refused_without_a_retry(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string, retry_total=3) as client, client.sender(queue) as sender:
        with pytest.raises(ServiceBusError, match="128") as caught:
            await sender.send_messages(TOO_LONG)
        line = tracked(bus, caught.value)
        assert refusals(bus, queue) == [line]
        assert (line["condition"], line["path"]) == ("com.microsoft:argument-error", queue)


@within_the_limit
async def test_sending_to_a_dead_letter_queue_is_refused_with_advice(bus: Bus, sdk: Sdk) -> None:
    async with sdk.client(bus.connection_string) as client:
        with pytest.raises(ServiceBusError, match="Send to the entity itself") as caught:
            async with client.sender("queue.1/$DeadLetterQueue"):
                pytest.fail("the link was attached")
        assert tracked(bus, caught.value)["condition"] == "amqp:not-allowed"


@within_the_limit
async def test_a_refused_message_leaves_its_neighbours_alone(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"before"))
            with pytest.raises(ServiceBusError):
                await sender.send_messages(TOO_LONG)
            await sender.send_messages(ServiceBusMessage(b"after"))
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, 2) == [b"before", b"after"]
