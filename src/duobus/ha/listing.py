"""The messages of whatever ``send_messages`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage


def listed(message: Any) -> list[ServiceBusMessage | AmqpAnnotatedMessage]:
    """Return them as a list: of a message, a mapping, a batch, or an iterable of these."""
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        return [message]
    if isinstance(message, Mapping):
        return [ServiceBusMessage(**message)]
    if isinstance(message, ServiceBusMessageBatch):
        # The SDK has no public way to look into a batch; a test holds this one.
        return list(message._messages)
    return [listed(one)[0] for one in message]
