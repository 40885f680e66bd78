"""Correct dead letters and send them again.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/resubmit.py queue.1
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

ORDERS = ("3 apples", "apples", "5 pears")


def is_valid(order: str) -> bool:
    """Whether an order begins with how many."""
    return order[0].isdigit()


def main(queue: str) -> None:
    """Send orders, dead-letter those that say no number, and send them again with one."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(order, subject="order") for order in ORDERS])
        take_orders(client, queue)
        with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=2) as dead,
        ):
            for letter in dead:
                print(f"corrected {letter!s} ({letter.dead_letter_reason})")
                # First the new message, then the end of the old one: a crash in between repeats, and loses nothing.
                sender.send_messages(ServiceBusMessage(f"1 {letter!s}", subject=letter.subject))
                dead.complete_message(letter)
        take_orders(client, queue)


def take_orders(client: ServiceBusClient, queue: str) -> None:
    """Complete valid orders and dead-letter the others."""
    with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
        for message in receiver:
            if is_valid(str(message)):
                print(f"took {message!s}")
                receiver.complete_message(message)
            else:
                receiver.dead_letter_message(message, reason="no number")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: resubmit.py QUEUE")
    main(sys.argv[1])
