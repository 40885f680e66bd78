"""Batch delete and purge of an entity: slice by slice, each durable before the next, so that others hardly notice.

A slice is one command of at most REMOVED_MAX messages in one commit, together with whatever else waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from duobus.errors import ServerBusy, StoreUnavailable
from duobus.fragment.message import MAIN, NEVER, sub_queue_of
from duobus.fragment.purge import REMOVED_MAX, PurgeAvailable, PurgeCommand, PurgeCounts, is_available, is_held
from duobus.fragment.sessions.sessions import id_of
from duobus.model.batches import Mailbox

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.source import Source

#: Messages that a purge looks at in one go.
LOOK = 5000


class PurgeResult:
    """What was removed.

    Attributes:
        removed: Messages whose removal is durable.
        locked: Messages that were left because somebody holds them.
        is_complete: Nothing else is left of what was there when it began.
    """

    __slots__ = ("is_complete", "locked", "removed")

    def __init__(self) -> None:
        self.removed = 0
        self.locked = 0
        self.is_complete = True


class CommandReply(Mailbox):
    """Waits for one command."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        super().__init__()
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """See Mailbox."""
        if not self._future.done():
            self._future.set_result(None)

    async def answer(self) -> None:
        """Wait for it."""
        await self._future


async def batch_delete(
    handles: Sequence[FragmentHandle],
    source_no: int,
    sub_queue: int,
    limit: int,
    before_ms: int,
    session_id: str | None = None,
) -> int:
    """Remove up to ``limit`` available messages enqueued before an instant, the oldest of each fragment first.

    ``session_id``: only those of this session, where sessions are required.

    Raises:
        ServerBusy: A store failed on a slice, so that the number is not known for certain.
        StoreUnavailable: Nothing was found, and a store that may hold something is away.
    """
    cleared = PurgeResult()
    away: StoreUnavailable | None = None
    for handle in handles:
        left = limit - cleared.removed
        if left <= 0:
            break
        try:
            if sub_queue == MAIN and _source_of(handle, source_no).sessions is not None:
                await _clear_sessions(handle, source_no, cleared, left, before_ms, session_id)
            else:
                await _clear_available(handle, source_no, sub_queue, cleared, left, before_ms, NEVER, lambda: False)
        except StoreUnavailable as error:
            # Away before its next slice began: what was removed is known.
            away = error
    if away is not None and not cleared.removed:
        raise away
    return cleared.removed


async def _clear_sessions(
    handle: FragmentHandle, source_no: int, cleared: PurgeResult, limit: int, before_ms: int, session_id: str | None
) -> None:
    """Remove available messages of sessions, held or not, in order of count: no list has them in this order."""
    left = limit
    every = sorted(_source_of(handle, source_no).by_count)
    for start in range(0, len(every), LOOK):
        # Others have their turn before the next stretch.
        await asyncio.sleep(0)
        by_count = _source_of(handle, source_no).by_count
        wanted = [
            count
            for count in every[start : start + LOOK]
            if (message := by_count.get(count)) is not None
            and is_available(message, before_ms)
            and (session_id is None or id_of(message) == session_id)
        ]
        while wanted and left > 0:
            number = min(left, REMOVED_MAX)
            counts, wanted = wanted[:number], wanted[number:]
            command = PurgeCounts(handle, source_no, None, counts=counts, before_ms=before_ms)
            await _do(command, cleared, number)
            left -= len(command.messages)
        if left <= 0:
            return


async def purge(
    handles: Sequence[FragmentHandle], source_no: int, sub_queues: Sequence[int], is_time_over: Callable[[], bool]
) -> PurgeResult:
    """Remove every message of these sub-queues that is there now and that nobody holds, whatever its state.

    Raises:
        ServerBusy: A store failed on a slice, so that the number is not known for certain.
        StoreUnavailable: Every store is away.
    """
    cleared = PurgeResult()
    away: list[StoreUnavailable] = []
    for handle in handles:
        try:
            await _purge_fragment(handle, source_no, sub_queues, cleared, is_time_over)
        except StoreUnavailable as error:
            away.append(error)
            cleared.is_complete = False
    if len(away) == len(handles) and not cleared.removed:
        raise away[0]
    return cleared


async def _purge_fragment(
    handle: FragmentHandle,
    source_no: int,
    sub_queues: Sequence[int],
    cleared: PurgeResult,
    is_time_over: Callable[[], bool],
) -> None:
    source = _source_of(handle, source_no)
    end = source.next_count
    is_clean = False
    while not is_clean:
        if is_time_over():
            cleared.is_complete = False
            break
        for sub_queue in sub_queues:
            await _clear_available(handle, source_no, sub_queue, cleared, NEVER, NEVER, end, is_time_over)
        is_clean = await _clear_others(handle, source_no, sub_queues, cleared, end, is_time_over)
        source = _source_of(handle, source_no)
        is_clean = is_clean and not (source.tail_count and source.tail_first < end and MAIN in sub_queues)
    cleared.locked += sum(
        message.count < end and sub_queue_of(message.state) in sub_queues for message in source.locks.values()
    )


async def _clear_available(
    handle: FragmentHandle,
    source_no: int,
    sub_queue: int,
    cleared: PurgeResult,
    limit: int,
    before_ms: int,
    end: int,
    is_time_over: Callable[[], bool],
) -> None:
    """Remove what receivers would get next, and read the paged tail meanwhile."""
    left = limit
    while left > 0 and not is_time_over():
        source = _source_of(handle, source_no)
        queued = source.sub_queues[sub_queue]
        if queued.available() <= 0:
            in_tail = source.tail_count
            if sub_queue != MAIN or not in_tail:
                return
            fragment = handle.fragment
            assert fragment is not None
            await handle.read_ahead(fragment)
            if source.tail_count == in_tail and queued.available() <= 0:
                # Somebody else's page is on its way, or there is no room for one: not now.
                return
            continue
        command = PurgeAvailable(handle, source_no, None, sub_queue=sub_queue, limit=left, before_ms=before_ms, end=end)
        await _do(command, cleared, command.limit)
        left -= len(command.messages)
        if not command.messages:
            return


async def _clear_others(
    handle: FragmentHandle,
    source_no: int,
    sub_queues: Sequence[int],
    cleared: PurgeResult,
    end: int,
    is_time_over: Callable[[], bool],
) -> bool:
    """Remove what stands in no list (deferred, scheduled); True when nothing was there that may still be removed."""
    every = list(_source_of(handle, source_no).by_count)
    is_clean = True
    for start in range(0, len(every), LOOK):
        # Others have their turn before the next stretch.
        await asyncio.sleep(0)
        wanted = _wanted(_source_of(handle, source_no), every[start : start + LOOK], sub_queues, end)
        is_clean = is_clean and not wanted
        for first in range(0, len(wanted), REMOVED_MAX):
            if is_time_over():
                return False
            counts = wanted[first : first + REMOVED_MAX]
            await _do(PurgeCounts(handle, source_no, None, counts=counts), cleared, len(counts))
    return is_clean


def _wanted(source: Source, counts: Iterable[int], sub_queues: Sequence[int], end: int) -> list[int]:
    found = []
    for count in counts:
        message = source.by_count.get(count)
        if (
            message is not None
            and count < end
            and sub_queue_of(message.state) in sub_queues
            and not is_held(source, message)
        ):
            found.append(count)
    return found


def _source_of(handle: FragmentHandle, source_no: int) -> Source:
    fragment = handle.fragment
    if fragment is None:
        raise handle.unavailable()
    return fragment.sources[source_no]


async def _do(command: PurgeCommand, cleared: PurgeResult, at_most: int) -> None:
    """Do one slice; its removal is durable on return."""
    reply = command.reply = CommandReply()
    command.handle.submit(command)
    await reply.answer()
    if command.error is not None:
        raise ServerBusy(
            f"{command.error} {cleared.removed} messages were removed for certain, and up to {at_most} more may be."
        )
    cleared.removed += len(command.messages)
