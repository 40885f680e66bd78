"""What has happened in the shop before somebody looks: orders that wait, payments that failed, letters for later."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver

from duobus.clock import Clock
from duobus.testing.server import DemoFailed
from duobus_demo.clients import UNKNOWN_OUTCOME
from duobus_demo.shop.plan import (
    BASKETS,
    EVENTS,
    FAILURES,
    INVOICES,
    ORDERS,
    PAYMENTS,
    REMINDERS,
    Failure,
    Till,
    customers,
)

_WAITING_ORDERS: Final = 240
_EVENTS: Final = 120
_REMINDERS: Final = 24
_INVOICES: Final = 15
_DEFERRED: Final = 6
_AT_ONCE: Final = 100
#: Messages without a key go to one fragment a batch; so few are in one that they lie in all fragments.
_WITHOUT_KEY: Final = 8
_WAIT_S: Final = 10


def write_history(client: ServiceBusClient, till: Till, clock: Clock) -> None:
    """Fill the shop's entities.

    Raises:
        DemoFailed: The namespace did not take the messages.
    """
    try:
        send(client, ORDERS, (till.order() for _ in range(_WAITING_ORDERS)))
        with client.get_topic_sender(EVENTS) as sender:
            sender.send_messages([till.event() for _ in range(_EVENTS)])
        for failure in FAILURES:
            _fail_payments(client, till, failure)
        _write_reminders(client, till, clock)
        _fill_baskets(client, till)
        send(client, INVOICES, (till.payment() for _ in range(_INVOICES)))
        _defer(client, INVOICES, _DEFERRED)
    except UNKNOWN_OUTCOME as error:
        raise DemoFailed(f"The shop could not be filled: {error}") from error


def send(client: ServiceBusClient, queue: str, messages: Iterable[ServiceBusMessage]) -> None:
    """Send messages to a queue, some at a time; each has a key or none."""
    left = iter(messages)
    with client.get_queue_sender(queue) as sender:
        while some := list(islice(left, _AT_ONCE)):
            by_key: dict[str | None, list[ServiceBusMessage]] = {}
            for message in some:
                by_key.setdefault(message.partition_key, []).append(message)
            # The messages of one batch go to one fragment, so that they have one key.
            for key, alike in by_key.items():
                size = _WITHOUT_KEY if key is None else _AT_ONCE
                for start in range(0, len(alike), size):
                    sender.send_messages(alike[start : start + size])


def _fail_payments(client: ServiceBusClient, till: Till, failure: Failure) -> None:
    """Send payments, and give them up as the program does that cannot make them."""
    send(client, PAYMENTS, (till.payment(failure) for _ in range(failure.payments)))
    left = failure.payments
    with client.get_queue_receiver(PAYMENTS) as receiver:
        while left:
            found = _receive(receiver, left)
            for message in found:
                order = (message.application_properties or {}).get(b"order", "")
                receiver.dead_letter_message(
                    message,
                    reason=failure.reason,
                    error_description=failure.description.format(order=order),
                )
            left -= len(found)


def _write_reminders(client: ServiceBusClient, till: Till, clock: Clock) -> None:
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    with client.get_queue_sender(REMINDERS) as sender:
        for number in range(_REMINDERS):
            sender.schedule_messages(till.reminder(), now + timedelta(hours=1 + 3 * number))


def _fill_baskets(client: ServiceBusClient, till: Till) -> None:
    with client.get_queue_sender(BASKETS) as sender:
        for number, customer in enumerate(customers()):
            sender.send_messages([till.basket(customer) for _ in range(number + 1)])
    for customer in customers()[:3]:
        with client.get_queue_receiver(BASKETS, session_id=customer) as receiver:
            receiver.session.set_state(f'{{"customer": "{customer}", "step": "address"}}'.encode())


def _defer(client: ServiceBusClient, queue: str, count: int) -> None:
    with client.get_queue_receiver(queue) as receiver:
        for message in _receive(receiver, count):
            receiver.defer_message(message)


def _receive(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    found = receiver.receive_messages(min(count, _AT_ONCE), max_wait_time=_WAIT_S)
    if not found:
        raise DemoFailed("The shop could not be filled: messages that were sent did not come.")
    return found
