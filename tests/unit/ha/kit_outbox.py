"""A sender that does as it is told, and waits for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessage


class FakeSender:
    """Takes messages; raises what ``answer`` returns for a list of their texts."""

    entity_name = "orders"

    def __init__(self, answer: Callable[[list[str]], Exception | None] = lambda _: None) -> None:
        self.answer = answer
        self.calls: list[list[str]] = []
        self.taken: list[str] = []
        self.ids: list[Any] = []
        self.closed = 0
        self.now = self.most = 0

    def __call__(self) -> FakeSender:
        return self

    async def send_messages(self, message: Any, **_: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.005)
        self.now -= 1
        messages = message if isinstance(message, list) else [message]
        raws = [one.raw_amqp_message if isinstance(one, ServiceBusMessage) else one for one in messages]
        texts = [b"".join(raw.body).decode() for raw in raws]
        self.calls.append(texts)
        error = self.answer(texts)
        if error is not None:
            raise error
        self.taken += texts
        self.ids += [raw.properties.message_id for raw in raws]

    async def close(self) -> None:
        self.closed += 1
