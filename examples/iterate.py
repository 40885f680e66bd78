"""Receive for as long as messages come, with a loop over the receiver.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/iterate.py queue.1
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage


def main(queue: str) -> None:
    """Send three messages, then receive until none has come for two seconds."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(text) for text in ("north", "east", "south")])
        # Without max_wait_time the loop never ends.
        with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
            for message in receiver:
                print(f"received {message!s}")
                receiver.complete_message(message)
        print("nothing more")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: iterate.py QUEUE")
    main(sys.argv[1])
