"""Senders and receivers on the synchronous SDK. Each runs in a thread of its own until there is nothing to do.

Every worker survives a broker that is killed: a send whose outcome is unknown is sent again, a receiver whose
connection broke drops what it holds, which the broker hands out again.
"""

from __future__ import annotations

from contextlib import suppress

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageNotFoundError, MessageSizeExceededError

from duobus_demo.clients import (
    UNKNOWN_OUTCOME,
    Endpoint,
    close_quietly,
    locked_until_ms,
    message_id_of,
    message_of,
    number_of,
    record_received,
)
from duobus_demo.corpus import Outgoing, digest_of
from duobus_demo.dispositions import DEAD_LETTER_REASON, Action
from duobus_demo.run_state import POLL_S, RETRY_S, RunState

#: Bound on one send call; the SDK waits for ever otherwise.
SEND_TIMEOUT_S = 20.0

#: How long a receive call waits for a message, which is also how soon a receiver notices that it is to stop.
RECEIVE_WAIT_S = 0.5

#: Messages asked for in one receive call.
RECEIVE_COUNT = 20


def run_sender(run: RunState, endpoint: Endpoint) -> None:
    """Send what the feed hands out, each message until its outcome is known."""
    with endpoint.client() as client:
        sender = client.get_queue_sender(run.queue)
        try:
            while (outgoing := run.next_message()) is not None:
                body = outgoing.read()
                while not _is_sent(run, endpoint, sender, outgoing, body):
                    close_quietly(sender)
                    sender = client.get_queue_sender(run.queue)
                    if run.stopping.wait(RETRY_S):
                        return
        finally:
            close_quietly(sender)


def _is_sent(run: RunState, endpoint: Endpoint, sender: ServiceBusSender, outgoing: Outgoing, body: bytes) -> bool:
    run.account.sending(outgoing.message_id, body, outgoing.partition_key)
    try:
        sender.send_messages(message_of(outgoing, body, digest_of(body)), timeout=SEND_TIMEOUT_S)
    except MessageSizeExceededError:
        run.account.refused_as_too_large(outgoing.message_id)
        return True
    except UNKNOWN_OUTCOME as error:
        run.account.send_unknown(outgoing.message_id, type(error).__name__)
        return False
    run.account.acknowledged(outgoing.message_id, endpoint.name)
    return True


def run_receiver(run: RunState, endpoint: Endpoint, prefetch: int, sub_queue: ServiceBusSubQueue | None = None) -> None:
    """Receive and settle until the run ends; competes with all other receivers of the queue.

    Args:
        run: What the workers share.
        endpoint: How to connect.
        prefetch: Messages that the SDK asks for ahead of need.
        sub_queue: The dead-letter queue, where everything is completed; None is the queue itself.
    """
    with endpoint.client() as client:
        while not run.stopping.is_set():
            if not run.may_receive.is_set():
                run.stopping.wait(POLL_S)
                continue
            receiver = client.get_queue_receiver(run.queue, sub_queue=sub_queue, prefetch_count=prefetch)
            # Entered, which opens the link: within the limit of a receive call it may never open on a busy machine.
            with suppress(*UNKNOWN_OUTCOME), receiver:
                _receive_until_it_breaks(run, endpoint, receiver, sub_queue is not None)
            run.stopping.wait(RETRY_S)


def _receive_until_it_breaks(
    run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, is_dead_letters: bool
) -> None:
    while not run.stopping.is_set():
        if not run.may_receive.is_set():
            run.stopping.wait(POLL_S)
        elif not _has_received(run, endpoint, receiver, is_dead_letters):
            return


def _has_received(run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, is_dead_letters: bool) -> bool:
    """Receive once and settle; False when the connection has to be made anew."""
    try:
        messages = receiver.receive_messages(max_message_count=RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
    except UNKNOWN_OUTCOME:
        return False
    for message in messages:
        record_received(run.account, message)
        action = Action.COMPLETE if is_dead_letters else run.dispositions.choose(message_id_of(message))
        if not is_settled(run, endpoint, receiver, message, action):
            # The connection is gone, and with it the locks on the rest of these messages: they come again.
            return False
    return True


def is_settled(
    run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, action: Action
) -> bool:
    """Settle a message and enter it into the message account; False when the outcome is unknown."""
    try:
        if action is Action.COMPLETE:
            # The SDK tells the end of a lock only until the message is settled.
            until_ms = locked_until_ms(message)
            receiver.complete_message(message)
            run.account.completed(message_id_of(message), number_of(message), endpoint.name, locked_until_ms=until_ms)
        elif action is Action.ABANDON:
            receiver.abandon_message(message)
            run.account.count("abandoned")
        elif action is Action.DEFER:
            receiver.defer_message(message)
            run.deferred.add(number_of(message))
            run.account.count("deferred")
        else:
            receiver.dead_letter_message(message, reason=DEAD_LETTER_REASON, error_description="a share of all")
            run.account.count("dead_lettered")
    except UNKNOWN_OUTCOME:
        if action is Action.COMPLETE:
            run.account.completion_unknown(message_id_of(message))
        elif action is Action.DEFER:
            # It may be deferred all the same, and nobody but us knows the number.
            run.deferred.add(number_of(message))
        return False
    return True


def run_deferred_receiver(run: RunState, endpoint: Endpoint) -> None:
    """Fetch deferred messages by sequence number, one after the other, and complete them."""
    with endpoint.client() as client:
        receiver = client.get_queue_receiver(run.queue)
        try:
            while not run.stopping.is_set():
                number = run.deferred.take() if run.may_fetch_deferred.is_set() else None
                if number is None:
                    run.stopping.wait(POLL_S)
                elif not _has_fetched(run, endpoint, receiver, number):
                    run.deferred.add(number)
                    close_quietly(receiver)
                    receiver = client.get_queue_receiver(run.queue)
                    run.stopping.wait(RETRY_S)
        finally:
            close_quietly(receiver)


def _has_fetched(run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, number: int) -> bool:
    """Fetch and complete one deferred message; False when it has to be tried again on a new connection."""
    try:
        messages = receiver.receive_deferred_messages(number, timeout=SEND_TIMEOUT_S)
    except MessageNotFoundError:
        # Its deferral was never done, or its completion was although the answer got lost. The final look into the
        # queue finds it if it is deferred after all.
        return True
    except UNKNOWN_OUTCOME:
        return False
    for message in messages:
        record_received(run.account, message)
        if not is_settled(run, endpoint, receiver, message, Action.COMPLETE):
            return False
    return True
