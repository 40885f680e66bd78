"""Look at what waits in a queue, without taking anything.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/peek.py queue.1
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

PAGE = 2


def main(queue: str) -> None:
    """Send five messages and page through them."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(f"page {number}") for number in range(1, 6)])
        with client.get_queue_receiver(queue) as receiver:
            number = 0
            # From a sequence number on, this one included; an empty page is the end.
            while page := receiver.peek_messages(max_message_count=PAGE, sequence_number=number):
                print("peeked " + ", ".join(str(message) for message in page))
                number = (page[-1].sequence_number or 0) + 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: peek.py QUEUE")
    main(sys.argv[1])
