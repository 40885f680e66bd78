"""What resubmit.py does, on the SDK's asyncio client.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/resubmit_async.py queue.1
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

ORDERS = ("3 apples", "apples", "5 pears")


def is_valid(order: str) -> bool:
    """Whether an order begins with how many."""
    return order[0].isdigit()


async def main(queue: str) -> None:
    """Send orders, dead-letter those that say no number, and send them again with one."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(order, subject="order") for order in ORDERS])
        await take_orders(client, queue)
        async with (
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=2) as dead,
        ):
            async for letter in dead:
                print(f"corrected {letter!s} ({letter.dead_letter_reason})")
                # First the new message, then the end of the old one: a crash in between repeats, and loses nothing.
                await sender.send_messages(ServiceBusMessage(f"1 {letter!s}", subject=letter.subject))
                await dead.complete_message(letter)
        await take_orders(client, queue)


async def take_orders(client: ServiceBusClient, queue: str) -> None:
    """Complete valid orders and dead-letter the others."""
    async with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
        async for message in receiver:
            if is_valid(str(message)):
                print(f"took {message!s}")
                await receiver.complete_message(message)
            else:
                await receiver.dead_letter_message(message, reason="no number")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: resubmit_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
