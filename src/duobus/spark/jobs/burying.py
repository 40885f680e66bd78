"""Claimed messages to the dead-letter queue of their entity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from azure.servicebus import exceptions as sdk

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceiver

#: Messages of one request.
_AT_ONCE: Final = 100
#: The upper bits of a sequence number are its fragment: a request is for one fragment only (spark-pipeline.md 3.5).
_COUNT_BITS: Final = 48


def bury(client: ServiceBusClient, queue: str, reasons: Mapping[int, tuple[str, str]]) -> None:
    """Dead-letter deferred messages by their numbers; one that is not there any more was buried before.

    Args:
        client: Of the namespace.
        queue: Their queue.
        reasons: Sequence number to reason and description.
    """
    by_fragment: dict[int, list[int]] = {}
    for number in sorted(reasons):
        by_fragment.setdefault(number >> _COUNT_BITS, []).append(number)
    with client.get_queue_receiver(queue) as receiver:
        for numbers in by_fragment.values():
            for first in range(0, len(numbers), _AT_ONCE):
                _bury(receiver, numbers[first : first + _AT_ONCE], reasons)


def _bury(receiver: ServiceBusReceiver, numbers: list[int], reasons: Mapping[int, tuple[str, str]]) -> None:
    try:
        messages = receiver.receive_deferred_messages(numbers)
    except sdk.MessageNotFoundError:
        if len(numbers) > 1:
            # One missing number fails the whole call.
            middle = len(numbers) // 2
            _bury(receiver, numbers[:middle], reasons)
            _bury(receiver, numbers[middle:], reasons)
        return
    for message in messages:
        reason, description = reasons[message.sequence_number or 0]
        receiver.dead_letter_message(message, reason=reason, error_description=description)
