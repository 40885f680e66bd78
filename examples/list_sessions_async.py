"""What list_sessions.py does, on the SDK's asyncio client.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/list_sessions_async.py queue.1

The queue requires sessions.
"""

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient


async def main(queue: str) -> None:
    """Make sessions with messages and one with state, then list both kinds."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            for name in ("red", "green"):
                await sender.send_messages(ServiceBusMessage("m", session_id=name))
        async with client.get_queue_receiver(queue, session_id="blue") as receiver:
            await receiver.session.set_state("busy")
        # A page of up to 100 is fetched when the loop comes to it. The SDK's documentation counts sessions with stored
        # state among these, too; duobus lists them below only.
        waiting = sorted([name async for name in client.list_queue_sessions(queue) if name != "blue"])
        print(f"with messages: {waiting}")
        lately = datetime.now(UTC) - timedelta(minutes=5)
        updated = [name async for name in client.list_queue_sessions(queue, state_updated_after=lately)]
        print(f"with new state: {updated}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: list_sessions_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
