"""What peek.py does, on the SDK's asyncio client.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/peek_async.py queue.1
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

PAGE = 2


async def main(queue: str) -> None:
    """Send five messages and page through them."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(f"page {number}") for number in range(1, 6)])
        async with client.get_queue_receiver(queue) as receiver:
            number = 0
            # From a sequence number on, this one included; an empty page is the end.
            while page := await receiver.peek_messages(max_message_count=PAGE, sequence_number=number):
                print("peeked " + ", ".join(str(message) for message in page))
                number = (page[-1].sequence_number or 0) + 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: peek_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
