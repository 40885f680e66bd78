"""Clients that send, receive, dead-letter and are refused, until their standard input ends.

A program of its own: when the broker is killed, the SDK leaves sockets behind, which are no business of the process of
a test.
"""

from __future__ import annotations

import os
import sys
import threading

from azure.servicebus import ServiceBusClient, ServiceBusMessage

OVER = threading.Event()


def be_refused(client: ServiceBusClient) -> None:
    """Send to a queue that does not exist."""
    try:
        with client.get_queue_sender("missing") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    except Exception:  # noqa: BLE001 - that is what was wanted
        return


def work(client: ServiceBusClient) -> None:
    """Use every queue of the test, again and again."""
    with client.get_queue_sender("contoso/x-servicebus-transfer/0") as sender:
        sender.send_messages(ServiceBusMessage("diverted"))
    with (
        client.get_queue_sender("orders") as sender,
        client.get_queue_sender("failing") as other,
        client.get_queue_receiver("orders") as receiver,
        client.get_queue_receiver("failing") as failing,
    ):
        while not OVER.wait(0.02):
            sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(20)])
            other.send_messages(ServiceBusMessage("dead"))
            for message in receiver.receive_messages(10, max_wait_time=1):
                receiver.complete_message(message)
            for message in failing.receive_messages(1, max_wait_time=1):
                failing.dead_letter_message(message, reason="test")
            be_refused(client)
            with client.get_queue_receiver("idle") as idle:
                idle.receive_messages(1, max_wait_time=0.1)


def run() -> None:
    """Begin again whenever the broker is away."""
    while not OVER.is_set():
        try:
            with ServiceBusClient.from_connection_string(os.environ["LOAD_ON"], retry_total=0) as client:
                work(client)
        except Exception:  # noqa: BLE001 - the broker is killed meanwhile
            OVER.wait(0.2)


if __name__ == "__main__":
    thread = threading.Thread(target=run)
    thread.start()
    sys.stdin.read()
    OVER.set()
    thread.join()
