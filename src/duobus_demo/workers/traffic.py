"""A group of senders and receivers on one queue, and the final look whether anything is left in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from azure.servicebus import ServiceBusMessageState, ServiceBusSubQueue

from duobus.testing.server import DemoFailed
from duobus_demo.clients import UNKNOWN_OUTCOME, Endpoint, number_of, sync_endpoints
from duobus_demo.run_state import RunState
from duobus_demo.workers.asyncio_workers import run_async_receiver, run_async_sender
from duobus_demo.workers.sync_workers import run_deferred_receiver, run_receiver, run_sender
from duobus_demo.workers.threads import WorkerThreads

#: With no completion for so long, although messages are left, the drain gives up: longer than any lock can last.
STALLED_S = 45.0

LOOK_PERIOD_S = 0.25

_PREFETCHES = (0, 20)
_PEEK_COUNT = 100


class WorkerCounts(NamedTuple):
    """How many workers of each kind; those of one kind use the endpoints in turn, receivers also without prefetch."""

    senders: int = 3
    async_senders: int = 3
    receivers: int = 3
    async_receivers: int = 3


class Traffic:
    """The workers of one run. As a context manager it starts them, and stops them whatever happens.

    Args:
        run: What the workers share.
        endpoints: Ways to connect, taken in turn.
        pool: How many workers.
    """

    def __init__(self, run: RunState, endpoints: Sequence[Endpoint], pool: WorkerCounts) -> None:
        self._run = run
        self._endpoints = endpoints
        self._sync_endpoints = sync_endpoints(endpoints)
        jobs: list[tuple[str, Callable[[], None]]] = [
            (f"sender {index}", self._sender(index)) for index in range(pool.senders)
        ]
        jobs += [(f"receiver {index}", self._receiver(index)) for index in range(pool.receivers)]
        jobs.append(("deferred receiver", lambda: run_deferred_receiver(run, endpoints[0])))
        jobs.append(("asyncio", lambda: asyncio.run(self._run_tasks(pool))))
        self._threads = WorkerThreads(run, jobs)

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.__exit__(kind, value, traceback)

    def drain(self, timeout_s: float, on_look: Callable[[], None] = lambda: None) -> int:
        """Receive until a look into the queue and its dead-letter queue finds nothing more.

        Args:
            timeout_s: Bound on it.
            on_look: Called after each look, for a progress bar.

        Returns:
            The number of messages that are still there when nothing has moved for STALLED_S; 0 when all is empty.

        Raises:
            DemoFailed: It took longer than ``timeout_s``.
        """
        run, clock = self._run, self._run.clock
        began_ms = moved_ms = clock.monotonic_ms()
        state = (-1, -1)
        while True:
            run.check()
            left = self._look()
            on_look()
            if not left:
                return 0
            now_ms = clock.monotonic_ms()
            if (run.account.completions, left) != state:
                state, moved_ms = (run.account.completions, left), now_ms
            elif now_ms - moved_ms > STALLED_S * 1000:
                return left
            if now_ms - began_ms > timeout_s * 1000:
                raise DemoFailed(f"Waited {timeout_s:g} s in vain: {left} messages or more are still in the queue.")
            run.stopping.wait(LOOK_PERIOD_S)

    def _look(self) -> int:
        """Return how many messages the queue shows; notes those that are deferred. Counts 1 when it cannot look."""
        seen = 0
        try:
            with self._endpoints[0].client() as client:
                for sub_queue in (None, ServiceBusSubQueue.DEAD_LETTER):
                    with client.get_queue_receiver(self._run.queue, sub_queue=sub_queue) as receiver:
                        messages = receiver.peek_messages(max_message_count=_PEEK_COUNT, timeout=10)
                        seen += len(messages)
                        for message in messages:
                            if message.state is ServiceBusMessageState.DEFERRED:
                                self._run.deferred.add(number_of(message))
        except UNKNOWN_OUTCOME:
            return max(seen, 1)
        return seen

    def _endpoint(self, index: int) -> Endpoint:
        return self._endpoints[index % len(self._endpoints)]

    def _sync_endpoint(self, index: int) -> Endpoint:
        return self._sync_endpoints[index % len(self._sync_endpoints)]

    def _sender(self, index: int) -> Callable[[], None]:
        return lambda: run_sender(self._run, self._sync_endpoint(index))

    def _receiver(self, index: int) -> Callable[[], None]:
        return lambda: run_receiver(self._run, self._sync_endpoint(index), _PREFETCHES[index % 2])

    async def _run_tasks(self, pool: WorkerCounts) -> None:
        run = self._run
        jobs: list[Awaitable[None]] = [
            run_async_sender(run, self._endpoint(index)) for index in range(pool.async_senders)
        ]
        jobs += [
            # The other way round than the threads: each endpoint is used with and without prefetch.
            run_async_receiver(run, self._endpoint(index), _PREFETCHES[(index + 1) % 2])
            for index in range(pool.async_receivers)
        ]
        jobs.append(run_async_receiver(run, self._endpoint(1), 0, ServiceBusSubQueue.DEAD_LETTER))
        await asyncio.gather(*jobs)
