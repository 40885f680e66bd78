"""The official SDK in both flavours behind one face: a scenario is written once, with ``await``."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import azure.servicebus
import azure.servicebus.aio

#: A hang is a failure.
LIMIT_S = 60.0


def within_the_limit(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a scenario on a loop of its own, for at most LIMIT_S."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


class Sdk:
    """One flavour, ``sync`` or ``asyncio``."""

    def __init__(self, flavour: str) -> None:
        self.module = azure.servicebus if flavour == "sync" else azure.servicebus.aio

    @asynccontextmanager
    async def client(self, connection_string: str, **options: Any) -> AsyncIterator[Face]:
        """An open client; retries only where a test asks for them, so that errors show at once."""
        options.setdefault("retry_total", 0)
        made = self.module.ServiceBusClient.from_connection_string(connection_string, **options)
        async with opened(made) as client:
            yield client


class Face:
    """An SDK object, every call of which can be awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return call

    def sender(self, queue: str, **options: Any) -> Any:
        """An open sender of this client."""
        return opened(self.inner.get_queue_sender(queue, **options))

    def receiver(self, queue: str, **options: Any) -> Any:
        """An open receiver of this client."""
        return opened(self.inner.get_queue_receiver(queue, **options))


@asynccontextmanager
async def opened(thing: Any) -> AsyncIterator[Face]:
    """Enter an SDK object of either flavour and leave it."""
    if hasattr(thing, "__aenter__"):
        async with thing:
            yield Face(thing)
    else:
        with thing:
            yield Face(thing)


async def bodies(receiver: Face, number: int, wait_s: float = 20.0) -> list[bytes]:
    """Receive and complete ``number`` messages; fewer when no more come."""
    found: list[bytes] = []
    while len(found) < number:
        messages = await receiver.receive_messages(max_message_count=number - len(found), max_wait_time=wait_s)
        if not messages:
            break
        for message in messages:
            found.append(b"".join(message.body))
            await receiver.complete_message(message)
    return found
