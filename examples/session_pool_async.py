"""What session_pool.py does, on the SDK's asyncio client.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/session_pool_async.py queue.1

The queue requires sessions.
"""

import asyncio
import os
import sys

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError

SESSIONS, MESSAGES, WORKERS = 6, 3, 3


async def main(queue: str) -> None:
    """Fill several sessions and empty them side by side."""
    async with (
        ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for name in range(SESSIONS):
            await sender.send_messages(
                [ServiceBusMessage(str(number), session_id=f"room {name}") for number in range(MESSAGES)]
            )
    found = [line for lines in await asyncio.gather(*(work(queue) for _ in range(WORKERS))) for line in lines]
    print("\n".join(sorted(found)))


async def work(queue: str) -> list[str]:
    """Take one session after the other until there is none."""
    found = []
    # No retries: that there is no further session is the end, and no failure.
    connection = os.environ["SERVICEBUS_CONNECTION_STRING"]
    async with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
        while True:
            try:
                # max_wait_time counts for the session, and then for each further message.
                receiver = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
                async with receiver:
                    bodies = []
                    async for message in receiver:
                        bodies.append(str(message))
                        await receiver.complete_message(message)
                    found.append(f"{receiver.session.session_id}: {' '.join(bodies)}")
            except OperationTimeoutError:
                return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: session_pool_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
