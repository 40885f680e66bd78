"""Taking one message for one request: a standing request at the entity, for as long as the client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from duobus.broker import Queue, Receiver, Throttle
from duobus.errors import QuotaExceeded
from duobus.gateway.waits import ResultWaiter
from duobus.model.batches import DeliveryBatch

#: What a client gets that names no time, and the most that one may ask for.
TIMEOUT_DEFAULT_S: Final = 60.0
TIMEOUT_MAX_S: Final = 60.0
#: When the time is over and a fragment says that it has something, it may take so long to hand it out.
LAST_CHANCE_S: Final = 5.0
#: The same when it has been taken out of the store already: as long as a commit may take.
REMOVAL_S: Final = 60.0
#: How often a request that waits is asked whether its token is still good.
CHECK_S: Final = 2.0


async def take_one(
    queue: Queue,
    sub_queue: int,
    limit_s: float,
    *,
    removing: bool,
    receivers_max: int,
    throttle: Throttle | None,
    check: Callable[[], object],
) -> DeliveryBatch | None:
    """Wait for one message; None when there is none in time.

    ``check``: raises when the caller may not receive any more; called every CHECK_S seconds.

    When the caller goes away it gets nothing: a message that was locked for it meanwhile goes back uncounted, one that
    is being removed is waited for and is lost, as receive-and-delete is.

    Raises:
        QuotaExceeded: The entity has as many receivers as it may.
        Exception: Whatever ``check`` raises.
    """
    if sum(len(scheduler.receivers) for scheduler in queue.schedulers.values()) >= receivers_max:
        raise QuotaExceeded(
            f"The {queue.kind} '{queue.path}' has {receivers_max} receivers already. Close some, or raise the quota "
            "(--quota receivers=...)."
        )
    waiting = ResultWaiter()
    receiver = queue.open_receiver(sub_queue, waiting, removing=removing)
    receiver.gate = throttle
    taken: DeliveryBatch | None = None
    try:
        receiver.request(1)
        left_s = limit_s
        while True:
            try:
                async with asyncio.timeout(min(left_s, CHECK_S)):
                    await _arrival(waiting)
                break
            except TimeoutError:
                left_s -= CHECK_S
            if left_s <= 0:
                await _last_chance(queue, sub_queue, receiver, waiting)
                break
            check()
        taken = _arrived(waiting)
    finally:
        receiver.close()
        late = _arrived(waiting)
        if late is not None and taken is None and not removing:
            # It came in the very moment in which the caller went.
            give_back(queue, late)
    return taken


async def _last_chance(queue: Queue, sub_queue: int, receiver: Receiver, waiting: ResultWaiter) -> None:
    """Nothing is said to be empty while any fragment has something, or is handing it out."""
    if _arrived(waiting) is not None or not (receiver.granted or _has_any(queue, sub_queue)):
        return
    try:
        # A message that is being removed is nobody else's any more: it is worth waiting for.
        async with asyncio.timeout(REMOVAL_S if receiver.removing and receiver.granted else LAST_CHANCE_S):
            await _arrival(waiting)
    except TimeoutError:
        return


def _has_any(queue: Queue, sub_queue: int) -> bool:
    return any(
        handle.fragment is not None and handle.fragment.available(queue.source_no, sub_queue) > 0
        for handle in queue.fragments
    )


def _arrived(waiting: ResultWaiter) -> DeliveryBatch | None:
    return next((batch for batch in waiting.ready if isinstance(batch, DeliveryBatch) and batch.messages), None)


async def _arrival(waiting: ResultWaiter) -> None:
    while True:
        await waiting.results(1)
        if _arrived(waiting) is not None:
            return
        # Empty answers: what was there had just expired.
        waiting.ready.clear()


def give_back(queue: Queue, batch: DeliveryBatch) -> None:
    """Undo a delivery that nobody got to see: unlocked, and not counted."""
    ranges = [(batch.first_lock, len(batch.messages))]
    batch.fragment.unlock(queue.source_no, batch.prefix, ranges, counted=False)
