"""A program that sends numbers through an outbox and says which it was told are safe. The test kills it.

Arguments: the file, the queue, the first number; the connection string is in the environment.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.aio import OutboxSender
from duobus.ha.outbox.queue import Outbox

KEYS = 4


async def main(path: Path, queue: str, number: int) -> None:
    client = ServiceBusClient.from_connection_string(os.environ["CONNECTION_STRING"], retry_total=0)

    async def one_key(key: int, number: int, sender: OutboxSender) -> None:
        while True:
            await sender.send_messages(ServiceBusMessage(f"{key}:{number}", session_id=str(key)))
            print(f"{key}:{number}", flush=True)
            number += 1
            await asyncio.sleep(0.001)

    with Outbox(path, retry_first_ms=20, retry_last_ms=200) as outbox:
        async with client, OutboxSender(lambda: client.get_queue_sender(queue), outbox) as sender:
            print("ready", flush=True)
            if number < 0:
                print("flushed" if await sender.flush() else "not flushed", flush=True)
            else:
                await asyncio.gather(*(one_key(key, number, sender) for key in range(KEYS)))


asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
