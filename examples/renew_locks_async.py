"""What renew_locks.py does, on the SDK's asyncio client.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/renew_locks_async.py queue.1/sessions.1

The first queue has plain messages, the second requires sessions (QUEUE/SESSION_QUEUE). For the example both have a lock
duration of 5 seconds.
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient

WORK_S = 7


async def main(queues: str) -> None:
    """Hold a message, and then a session, for longer than their locks last."""
    queue, session_queue = queues.split("/")
    async with (
        ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client,
        AutoLockRenewer() as renewer,
    ):
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("slow work"))
        async with client.get_queue_sender(session_queue) as sender:
            await sender.send_messages(ServiceBusMessage("slow session work", session_id="slow"))
        async with (
            client.get_queue_receiver(queue) as receiver,
            client.get_queue_receiver(session_queue, session_id="slow") as session_receiver,
        ):
            (message,) = await receiver.receive_messages(max_wait_time=5)
            (session_message,) = await session_receiver.receive_messages(max_wait_time=5)
            # A message's lock is its own; in a session the session's lock counts for all of its messages.
            renewer.register(receiver, message, max_lock_renewal_duration=60)
            renewer.register(session_receiver, session_receiver.session, max_lock_renewal_duration=60)
            await asyncio.sleep(WORK_S)
            await receiver.complete_message(message)
            await session_receiver.complete_message(session_message)
            print(f"completed {message!s} and {session_message!s} after {WORK_S} seconds")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: renew_locks_async.py QUEUE/SESSION_QUEUE")
    asyncio.run(main(sys.argv[1]))
