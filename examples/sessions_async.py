"""What sessions.py does, on the SDK's asyncio client.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/sessions_async.py queue.1

The queue requires sessions.
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

STEPS = ("cut", "glue", "paint", "dry")


async def main(queue: str) -> None:
    """Send the steps of two works; do half of one, hand it over, and do the rest."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            for work in ("chair", "table"):
                await sender.send_messages([ServiceBusMessage(step, session_id=work) for step in STEPS])
        for number in (2, 2):
            # While this receiver has the session nobody else gets a message of it.
            async with client.get_queue_receiver(queue, session_id="chair") as receiver:
                session = receiver.session
                state = await session.get_state()
                done = state.decode().split() if state else []
                print(f"chair so far: {done}")
                while number:
                    for message in await receiver.receive_messages(max_message_count=number, max_wait_time=5):
                        number -= 1
                        done.append(str(message))
                        # State first: if we died now, the step would come again and we would know it.
                        await session.set_state(" ".join(done))
                        await receiver.complete_message(message)
                until = session.locked_until_utc
                print(f"chair now: {done}, lock renewed: {await session.renew_lock() >= until}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: sessions_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
