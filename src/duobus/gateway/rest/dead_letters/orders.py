"""Orders under way: each is done to its end, and its client is answered in time, whatever becomes of a store.

Looking for messages takes as long as it takes, and reads that a store does not answer are given up. From then on, when
messages are moved, removed or put in, the client waits for ANSWER_S at most.

The commit of an order may fail in such a way that only its store can tell whether it holds it. The client is then told
to give the same order again. That does not start a second one: while the first is under way the same order waits for
it, and afterwards it gets the first one's result. So nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from duobus.errors import ServerBusy
from duobus.model.quotas import STORE_TIMEOUT_S

#: How long a client waits for what its order changes: as long as one that sends without a key may have to wait, which
#: is the timeout of a store and the time to send its messages elsewhere. A store that failed is often back by then.
ANSWER_S: Final = STORE_TIMEOUT_S + 2.0
#: How long the result of an order is kept for a client that was told to give the order again.
KEPT_S: Final = 120.0
#: How many such results are kept; the oldest goes when there are more.
KEPT_MAX: Final = 64
#: How long a server that stops waits for the orders that are under way.
_STOP_S: Final = 2.0

#: The result of an order, ready for JSON.
Result = dict[str, Any]


class Order:
    """One order under way.

    Attributes:
        task: Does it.
    """

    __slots__ = ("_changing", "task")

    def __init__(self, work: Callable[[Order], Coroutine[Any, Any, Result]]) -> None:
        loop = asyncio.get_running_loop()
        self._changing: asyncio.Future[None] = loop.create_future()
        self.task = loop.create_task(work(self), name="desk")

    def begin_changes(self) -> None:
        """The order has found what it is about, and is handed to the stores."""
        if not self._changing.done():
            self._changing.set_result(None)

    async def wait(self) -> bool:
        """Wait for its end, for ANSWER_S from the time when it was handed to the stores; whether it has ended."""
        waited: set[asyncio.Future[Any]] = {self.task, self._changing}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not self.task.done():
            await asyncio.wait({self.task}, timeout=ANSWER_S)
        return self.task.done()


class PendingOrders:
    """Does orders of the dead-letter service to their end, although their clients do not wait."""

    __slots__ = ("_kept", "_running", "_unanswered")

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Result]] = set()
        # Orders whose clients were told to give them again, while they run; then their results, until when.
        self._unanswered: dict[bytes, Order] = {}
        self._kept: OrderedDict[bytes, tuple[float, Result]] = OrderedDict()

    def __len__(self) -> int:
        """How many orders are being worked on."""
        return len(self._running)

    async def finished(self, key: bytes, work: Callable[[Order], Coroutine[Any, Any, Result]]) -> Result:
        """Do an order, or wait for the one that an earlier request has begun, or return what that one has come to.

        Args:
            key: Equal for requests that ask for the same.
            work: Does the order.

        Raises:
            ServerBusy: The stores have not told within ANSWER_S what became of it.
            ServiceBusError: The order was refused. A refusal is not kept: the same order begins anew.
        """
        self._forget_old()
        kept = self._kept.pop(key, None)
        if kept is not None:
            return kept[1]
        order = self._unanswered.get(key)
        if order is None:
            order = Order(work)
            self._running.add(order.task)
            order.task.add_done_callback(self._running.discard)
        if await order.wait():
            self._unanswered.pop(key, None)
            self._kept.pop(key, None)
            return order.task.result()
        if key not in self._unanswered:
            self._unanswered[key] = order
            order.task.add_done_callback(lambda task: self._keep(key, task))
        raise ServerBusy(
            f"The messaging store has not told within {ANSWER_S:g} seconds whether it holds this order: all or part of "
            "it may be done. Give the same order again in a few seconds: nothing is done twice, and you get the result."
        )

    def _keep(self, key: bytes, task: asyncio.Task[Result]) -> None:
        self._unanswered.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = asyncio.get_running_loop().time() + KEPT_S, task.result()
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def _forget_old(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._kept and next(iter(self._kept.values()))[0] <= now_s:
            self._kept.popitem(last=False)

    async def close(self) -> None:
        """Let what is under way come to its end, for a while."""
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_S)
        for task in list(self._running):
            task.cancel()
