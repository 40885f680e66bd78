"""The four things that can become of a received message, and how to get it back.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/settle.py queue.1
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue


def main(queue: str) -> None:
    """Complete, abandon, defer and dead-letter one message each."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            for wish in ("complete", "abandon", "defer", "dead-letter"):
                sender.send_messages(ServiceBusMessage(wish))
        with client.get_queue_receiver(queue) as receiver:
            deferred: list[int] = []
            left = 5
            while left:
                for message in receiver.receive_messages(max_message_count=left, max_wait_time=5):
                    left -= 1
                    wish = str(message)
                    if wish == "complete":
                        receiver.complete_message(message)
                    elif wish == "abandon" and not message.delivery_count:
                        # It comes again at once; a queue dead-letters what was delivered too often.
                        receiver.abandon_message(message)
                    elif wish == "abandon":
                        print(f"again: {wish} (delivery {message.delivery_count})")
                        receiver.complete_message(message)
                    elif wish == "defer":
                        # Nobody receives it any more, but whoever knows its number. Keep the number.
                        deferred.append(message.sequence_number or 0)
                        receiver.defer_message(message)
                    else:
                        why = {"reason": "an example", "error_description": "of a dead letter"}
                        receiver.dead_letter_message(message, **why)
            for message in receiver.receive_deferred_messages(deferred):
                print(f"by its number: {message!s}")
                receiver.complete_message(message)
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            for message in receiver.receive_messages(max_wait_time=5):
                why = f"{message.dead_letter_reason} {message.dead_letter_error_description}"
                print(f"dead letter: {message!s} ({why})")
                receiver.complete_message(message)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: settle.py QUEUE")
    main(sys.argv[1])
