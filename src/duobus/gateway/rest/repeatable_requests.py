"""Requests that come again: what their first attempt was answered is answered again.

A client that lost the answer sends the same request with the same ``x-ms-client-request-id``. Without a memory it would
be told that what it has just created exists already.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final, NamedTuple

from duobus.clock import Clock

#: How long an answer is remembered; clients of the SDKs give up after some seconds.
REMEMBERED_MS: Final = 120_000
#: How many answers; the oldest goes when there are more. Each has some KiB.
REMEMBERED_MAX: Final = 4_096
#: Longest id that is remembered, in characters; a UUID has 36.
ID_LENGTH_MAX: Final = 128


class Done(NamedTuple):
    """What a successful request was answered."""

    status: int
    text: str
    content_type: str


class RepeatableRequests:
    """The answers of the last two minutes, and the requests that run now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done: OrderedDict[bytes, tuple[int, Done]] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[Done]] = {}

    async def once(self, request_id: str | None, parts: tuple[bytes, ...], work: Callable[[], Awaitable[Done]]) -> Done:
        """Do the work, unless the same was asked for under the same id; a caller that goes away doesn't stop it.

        Args:
            request_id: As the client sent it; None or one of an odd length is never remembered.
            parts: What makes two requests equal: namespace, method, path, condition, body.
            work: What is done. Its failures are not remembered.
        """
        if not request_id or len(request_id) > ID_LENGTH_MAX:
            return await asyncio.shield(self._start(b"", work))
        digest = blake2b(digest_size=32)
        for part in (request_id.encode("utf-8", "surrogateescape"), *parts):
            digest.update(len(part).to_bytes(8, "big") + part)
        key = digest.digest()
        self._forget_old()
        if key in self._done:
            return self._done[key][1]
        task = self._running.get(key) or self._start(key, work)
        return await asyncio.shield(task)

    def _start(self, key: bytes, work: Callable[[], Awaitable[Done]]) -> asyncio.Task[Done]:
        async def run() -> Done:
            try:
                done = await work()
            finally:
                self._running.pop(key or task_id, None)
            if key:
                self._done[key] = (self._clock.monotonic_ms(), done)
            return done

        task = asyncio.get_running_loop().create_task(run(), name="management")
        # Also those without an id are kept here, so that they are waited for at the end.
        task_id = id(task).to_bytes(8, "big")
        self._running[key or task_id] = task
        task.add_done_callback(_look_at_failure)
        return task

    def _forget_old(self) -> None:
        limit_ms = self._clock.monotonic_ms() - REMEMBERED_MS
        while self._done:
            key, (at_ms, _) = next(iter(self._done.items()))
            if at_ms > limit_ms and len(self._done) < REMEMBERED_MAX:
                return
            del self._done[key]

    @property
    def running(self) -> int:
        """How many requests are being worked on."""
        return len(self._running)

    async def close(self) -> None:
        """Let what runs come to its end."""
        if self._running:
            await asyncio.wait(list(self._running.values()))


def _look_at_failure(task: asyncio.Task[Done]) -> None:
    # Whoever waited has been told; when nobody does any more, it is no fault that nobody asked.
    if not task.cancelled():
        task.exception()
