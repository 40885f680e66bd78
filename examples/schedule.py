"""Send messages that arrive later, and think better of one.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/schedule.py queue.1
"""

import os
import sys
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage

DELAY_S = 2


def main(queue: str) -> None:
    """Schedule three messages by number and one by a property; cancel the second."""
    due = datetime.now(UTC) + timedelta(seconds=DELAY_S)
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            messages = [ServiceBusMessage(text) for text in ("first", "second", "third")]
            numbers = sender.schedule_messages(messages, due)
            sender.send_messages(ServiceBusMessage("fourth", scheduled_enqueue_time_utc=due))
            # The number is valid until the message arrives; then it gets another.
            sender.cancel_scheduled_messages(numbers[1])
        print(f"scheduled {len(numbers) + 1}, cancelled 1")
        received = []
        with client.get_queue_receiver(queue) as receiver:
            while len(received) < len(numbers):
                for message in receiver.receive_messages(max_message_count=5, max_wait_time=10):
                    early = datetime.now(UTC) < due
                    received.append(f"{message!s} came {'too early' if early else 'in time'}")
                    receiver.complete_message(message)
        print("\n".join(sorted(received)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: schedule.py QUEUE")
    main(sys.argv[1])
