"""Send a few messages to a queue and receive them again, with the official SDK and nothing of duobus.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/send_and_receive.py queue.1

The connection string is printed by ``duobus serve`` at its first start and is in its --ready-file.
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

COUNT = 5


def main(queue: str) -> None:
    """Send COUNT messages, one alone and the others as a batch, then receive and complete them."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("message 1", message_id="1"))
            sender.send_messages(
                [ServiceBusMessage(f"message {number}", message_id=str(number)) for number in range(2, COUNT + 1)]
            )
        print(f"sent {COUNT} messages")

        received = 0
        with client.get_queue_receiver(queue) as receiver:
            # A receive call returns what there is, up to the number asked for, and [] after the time given.
            while received < COUNT:
                messages = receiver.receive_messages(max_message_count=COUNT, max_wait_time=5)
                if not messages:
                    sys.exit(f"only {received} of {COUNT} messages came")
                for message in messages:
                    print(f"received {message.message_id}: {message!s} (delivery {message.delivery_count})")
                    # Until it is completed a message is only locked; if this program died now, it would come again.
                    receiver.complete_message(message)
                    received += 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: send_and_receive.py QUEUE")
    main(sys.argv[1])
