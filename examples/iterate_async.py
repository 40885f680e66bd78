"""What iterate.py does, on the SDK's asyncio client.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/iterate_async.py queue.1
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient


async def main(queue: str) -> None:
    """Send three messages, then receive until none has come for two seconds."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(text) for text in ("north", "east", "south")])
        # Without max_wait_time the loop never ends.
        async with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
            async for message in receiver:
                print(f"received {message!s}")
                await receiver.complete_message(message)
        print("nothing more")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: iterate_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
