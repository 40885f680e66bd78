"""What can go wrong, by its exception, and what to do about it.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/recover.py queue.1
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

ATTEMPTS = 5


def send(sender: ServiceBusSender, messages: list[ServiceBusMessage]) -> None:
    """Send messages as one batch, or one by one if that is too large; again if the broker is away or busy."""
    for _ in range(ATTEMPTS):
        try:
            sender.send_messages(messages)
        except MessageSizeExceededError:
            if len(messages) == 1:
                print(f"too large for the queue: {messages[0].message_id}")
                return
            for message in messages:
                send(sender, [message])
        except (OperationTimeoutError, ServiceBusConnectionError, ServiceBusServerBusyError):
            # It may have arrived: with duplicate detection or an idempotent receiver the repetition does no harm.
            continue
        return
    sys.exit("the broker cannot be reached")


def receive(receiver: ServiceBusReceiver, number: int) -> None:
    """Receive and complete messages; what was completed already, or lost its lock, is no disaster."""
    while number:
        for message in receiver.receive_messages(max_message_count=number, max_wait_time=5):
            number -= 1
            try:
                receiver.complete_message(message)
                print(f"completed {message.message_id}")
                receiver.complete_message(message)
            except MessageAlreadySettled:
                print("once is enough")
            except MessageLockLostError:
                # It comes again, perhaps to somebody else.
                number += 1


def main(queue: str) -> None:
    """Run into errors on purpose."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            send(sender, [ServiceBusMessage(bytes(size), message_id=str(size)) for size in (10, 20, 300_000)])
        with client.get_queue_receiver(queue) as receiver:
            receive(receiver, 2)
            try:
                receiver.receive_deferred_messages(4711)
            except MessageNotFoundError:
                print("no such deferred message")
        try:
            with client.get_queue_sender("nowhere"):
                pass
        except (MessagingEntityNotFoundError, ServiceBusAuthenticationError):
            # No token is taken for what does not exist, and the SDK does not tell that from a wrong key.
            print("no such queue, or a wrong key")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: recover.py QUEUE")
    main(sys.argv[1])
