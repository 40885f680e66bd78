"""What send_and_receive.py does, on the SDK's asyncio client.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/send_and_receive_async.py queue.1

See send_and_receive.py for where the connection string comes from.
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

COUNT = 5


async def main(queue: str) -> None:
    """Send COUNT messages as a batch, then receive and complete them."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            batch = await sender.create_message_batch()
            for number in range(1, COUNT + 1):
                # Raises MessageSizeExceededError when the batch is full: send it then, and begin another.
                batch.add_message(ServiceBusMessage(f"message {number}", message_id=str(number)))
            await sender.send_messages(batch)
        print(f"sent {COUNT} messages")

        received = 0
        async with client.get_queue_receiver(queue) as receiver:
            while received < COUNT:
                messages = await receiver.receive_messages(max_message_count=COUNT, max_wait_time=5)
                if not messages:
                    sys.exit(f"only {received} of {COUNT} messages came")
                for message in messages:
                    print(f"received {message.message_id}: {message!s} (delivery {message.delivery_count})")
                    await receiver.complete_message(message)
                    received += 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: send_and_receive_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
