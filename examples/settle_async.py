"""What settle.py does, on the SDK's asyncio client.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/settle_async.py queue.1
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient


async def main(queue: str) -> None:
    """Complete, abandon, defer and dead-letter one message each."""
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            for wish in ("complete", "abandon", "defer", "dead-letter"):
                await sender.send_messages(ServiceBusMessage(wish))
        async with client.get_queue_receiver(queue) as receiver:
            deferred: list[int] = []
            left = 5
            while left:
                for message in await receiver.receive_messages(max_message_count=left, max_wait_time=5):
                    left -= 1
                    wish = str(message)
                    if wish == "complete":
                        await receiver.complete_message(message)
                    elif wish == "abandon" and not message.delivery_count:
                        # It comes again at once; a queue dead-letters what was delivered too often.
                        await receiver.abandon_message(message)
                    elif wish == "abandon":
                        print(f"again: {wish} (delivery {message.delivery_count})")
                        await receiver.complete_message(message)
                    elif wish == "defer":
                        # Nobody receives it any more, but whoever knows its number. Keep the number.
                        deferred.append(message.sequence_number or 0)
                        await receiver.defer_message(message)
                    else:
                        why = {"reason": "an example", "error_description": "of a dead letter"}
                        await receiver.dead_letter_message(message, **why)
            for message in await receiver.receive_deferred_messages(deferred):
                print(f"by its number: {message!s}")
                await receiver.complete_message(message)
        async with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            for message in await receiver.receive_messages(max_wait_time=5):
                why = f"{message.dead_letter_reason} {message.dead_letter_error_description}"
                print(f"dead letter: {message!s} ({why})")
                await receiver.complete_message(message)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: settle_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
