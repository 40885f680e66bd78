"""A program that says ``ack N`` when message N is safe in an outbox; under strace it proves that it was synced."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from duobus.ha.aio import OutboxSender
from duobus.ha.outbox.queue import Outbox

SIDE_BY_SIDE = 5


class Away:
    """A namespace that takes nothing, so that nothing is removed."""

    entity_name = "orders"

    async def send_messages(self, _: Any) -> None:
        raise ConnectionError

    async def close(self) -> None:
        """Nothing is open."""


async def main(path: Path, number: int) -> None:
    with Outbox(path) as outbox:
        async with OutboxSender(Away, outbox) as sender:

            async def one(index: int) -> None:
                await sender.send_messages(ServiceBusMessage(f"mark-{index}-"))
                os.write(1, f"ack {index}\n".encode())

            for start in range(0, number, SIDE_BY_SIDE):
                await asyncio.gather(*(one(index) for index in range(start, start + SIDE_BY_SIDE)))


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
