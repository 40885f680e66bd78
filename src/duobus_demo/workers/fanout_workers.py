"""Publishers and subscribers of the part ``fanout`` on the synchronous SDK. Each survives the kills."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)

from duobus_demo.clients import UNKNOWN_OUTCOME, Endpoint, body_of, close_quietly, message_id_of, number_of
from duobus_demo.corpus import Outgoing, digest_of
from duobus_demo.expectations.fanout import FanoutExpectations, ReceivedCopy
from duobus_demo.expectations.fanout_plan import END, RULE_NAME, SUBSCRIPTIONS, TOPIC, Copy, ExpectedCopy
from duobus_demo.run_state import POLL_S, RETRY_S, RunState
from duobus_demo.workers.sync_workers import RECEIVE_COUNT, RECEIVE_WAIT_S, SEND_TIMEOUT_S

_PEEK_COUNT = 100
#: Threads of a look: the SDK takes a good part of a second to open a receiver.
_LOOKERS = 8


def run_publisher(run: RunState, endpoint: Endpoint, looks: Mapping[str, ExpectedCopy]) -> None:
    """Publish what the feed hands out, each message until its outcome is known."""
    with endpoint.client() as client:
        sender = client.get_topic_sender(TOPIC)
        try:
            while (outgoing := run.next_message()) is not None:
                while not _is_published(run, endpoint, sender, outgoing, looks[outgoing.message_id]):
                    close_quietly(sender)
                    sender = client.get_topic_sender(TOPIC)
                    if run.stopping.wait(RETRY_S):
                        return
        finally:
            close_quietly(sender)


def _is_published(
    run: RunState, endpoint: Endpoint, sender: ServiceBusSender, outgoing: Outgoing, look: ExpectedCopy
) -> bool:
    body = outgoing.read()
    message = ServiceBusMessage(
        body,
        message_id=outgoing.message_id,
        subject=look.subject,
        partition_key=look.partition_key,
        application_properties=dict(look.properties.items()),
    )
    run.account.sending(outgoing.message_id, body, outgoing.partition_key)
    try:
        sender.send_messages(message, timeout=SEND_TIMEOUT_S)
    except UNKNOWN_OUTCOME:
        run.account.send_unknown(outgoing.message_id)
        return False
    run.account.acknowledged(outgoing.message_id, endpoint.name)
    return True


def run_subscriber(run: RunState, endpoint: Endpoint, expectations: FanoutExpectations, receive_path: str) -> None:
    """Receive from one receive path and complete until the run ends."""
    with endpoint.client() as client:
        while not run.stopping.is_set():
            receiver = _receiver(client, receive_path)
            with suppress(*UNKNOWN_OUTCOME), receiver:
                while not run.stopping.is_set():
                    if run.may_receive.is_set():
                        _take(expectations, endpoint, receiver, receive_path)
                    else:
                        run.stopping.wait(POLL_S)
            run.stopping.wait(RETRY_S)


def _take(
    expectations: FanoutExpectations, endpoint: Endpoint, receiver: ServiceBusReceiver, receive_path: str
) -> None:
    """Receive once and complete; raises what the SDK does when the connection breaks."""
    messages = receiver.receive_messages(max_message_count=RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
    expectations.hold(len(messages))
    left = len(messages)
    try:
        for message in messages:
            delivery = delivery_of(message)
            expectations.received(receive_path, delivery)
            try:
                receiver.complete_message(message)
            except UNKNOWN_OUTCOME:
                expectations.completion_unknown(receive_path, delivery)
                raise
            expectations.completed(receive_path, delivery, endpoint.name)
            left -= 1
    finally:
        # What is left was locked for a connection that is gone, and comes again.
        expectations.hold(-left)


def delivery_of(message: ServiceBusReceivedMessage) -> ReceivedCopy:
    """Return what the expectations has to know of a received message."""
    properties = {_text(name): _text(value) for name, value in (message.application_properties or {}).items()}
    rule = properties.get(RULE_NAME, "")
    return ReceivedCopy(
        Copy(message_id_of(message), str(rule)),
        ExpectedCopy(digest_of(body_of(message)), message.subject, message.partition_key, properties),
        number_of(message),
        message.enqueued_sequence_number or 0,
    )


def _text(value: Any) -> Any:
    # The SDK hands application properties out with keys and values of bytes.
    return value.decode() if isinstance(value, bytes) else value


def _receiver(
    client: ServiceBusClient, receive_path: str, sub_queue: ServiceBusSubQueue | None = None
) -> ServiceBusReceiver:
    if receive_path == END:
        return client.get_queue_receiver(END, sub_queue=sub_queue)
    return client.get_subscription_receiver(TOPIC, receive_path, sub_queue=sub_queue)


def look_for_rest(endpoint: Endpoint) -> int:
    """Return how many messages are left anywhere, dead letters included; counts 1 where it cannot look."""
    places: list[tuple[str, ServiceBusSubQueue | None]] = [(END, None), (END, ServiceBusSubQueue.DEAD_LETTER)]
    for subscription in SUBSCRIPTIONS:
        # No receiver can be attached to what forwards (Azure: autoforwarding). What has not gone on from there is
        # missing at the end of the hop.
        sub_queue = ServiceBusSubQueue.TRANSFER_DEAD_LETTER if subscription.forward_to else None
        places += [(subscription.name, sub_queue), (subscription.name, ServiceBusSubQueue.DEAD_LETTER)]

    def look(place: tuple[str, ServiceBusSubQueue | None]) -> int:
        try:
            with endpoint.client() as client, _receiver(client, *place) as receiver:
                return len(receiver.peek_messages(max_message_count=_PEEK_COUNT, timeout=10))
        except UNKNOWN_OUTCOME:
            return 1

    with ThreadPoolExecutor(_LOOKERS) as pool:
        return sum(pool.map(look, places))
