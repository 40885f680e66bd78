"""Looking through a sub-queue for the messages that somebody means."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from duobus.broker.dead_letters.results import number_of
from duobus.broker.entities.queue import Queue
from duobus.errors import StoreUnavailable
from duobus.fragment.message import QueuedMessage
from duobus.model.json.plan import CHUNK_MAX
from duobus.rules.selection import Selection

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle

#: Bytes after which a chunk takes no further message.
CHUNK_BYTES_MAX: Final = 1 << 20
#: Messages that one request looks at; whoever asks goes on from there.
EXAMINED_MAX: Final = 5_000
#: Messages, and their bytes, that are read at a time.
_PAGE: Final = 100
_PAGE_BYTES: Final = 512 << 10
#: Bytes of messages that are compared with a selection before others have a turn: what the costliest filter and 16
#: conditions on JSON do with so many, or with one message, takes some 50 ms.
TURN_BYTES: Final = 16 << 10


class DeadLetterQuery:
    """Which messages are meant.

    Attributes:
        selection: What they are like.
        first: Lowest sequence number.
        before_ms: They were enqueued before this instant: what comes back while somebody goes through them is not
            gone through again.
        numbers: None, or the only sequence numbers that count.
        limit: Most that are wanted.
        is_partial: Fragments that are away are passed over.
    """

    __slots__ = ("before_ms", "first", "is_partial", "limit", "numbers", "selection")

    def __init__(
        self,
        selection: Selection,
        *,
        first: int,
        before_ms: int,
        limit: int,
        numbers: frozenset[int] | None = None,
        is_partial: bool = False,
    ) -> None:
        self.selection = selection
        self.first = first if not numbers else max(first, min(numbers))
        self.before_ms = before_ms
        self.limit = min(limit, CHUNK_MAX)
        self.numbers = numbers
        self.is_partial = is_partial

    def takes(self, handle: FragmentHandle, message: QueuedMessage) -> bool:
        """Whether a message is meant."""
        number = number_of(handle, message)
        if message.enqueued_ms >= self.before_ms or (self.numbers is not None and number not in self.numbers):
            return False
        return self.selection.takes(
            message.payload,
            message.metadata,
            enqueued_ms=message.enqueued_ms,
            sequence_number=number,
            deliveries=message.deliveries,
        )


class SearchPage:
    """What was found.

    Attributes:
        found: Messages, in order.
        examined: How many were looked at.
        following: Sequence number to go on from; None when there are no more.
        unavailable: Numbers of the fragments that were passed over, because their store is away.
    """

    __slots__ = ("examined", "following", "found", "unavailable")

    def __init__(self) -> None:
        self.found: list[tuple[FragmentHandle, QueuedMessage]] = []
        self.examined = 0
        self.following: int | None = None
        self.unavailable: list[int] = []


async def search(queue: Queue, sub_queue: int, query: DeadLetterQuery, *, one_fragment: bool = False) -> SearchPage:
    """Look through messages of a sub-queue; ``one_fragment``: no further than those of the first that has any.

    Raises:
        StoreUnavailable: Nothing was found, and a store that may have something is away; never of a partial query.
    """
    looked = SearchPage()
    if query.is_partial:
        looked.unavailable = [handle.number for handle in queue.fragments if not handle.online]
    following: int | None = query.first
    size = compared = 0
    while following is not None:
        page = await _page_of(queue, sub_queue, following, query)
        following = _after(page)
        for handle, message in page:
            if one_fragment and looked.found and handle is not looked.found[0][0]:
                looked.following = number_of(handle, message)
                return looked
            looked.examined += 1
            compared += message.size
            if compared > TURN_BYTES:
                compared = message.size
                await asyncio.sleep(0)
            if query.takes(handle, message):
                looked.found.append((handle, message))
                size += message.size
            is_enough = len(looked.found) >= query.limit or size >= CHUNK_BYTES_MAX
            if is_enough or looked.examined >= EXAMINED_MAX:
                looked.following = number_of(handle, message) + 1
                return looked
        if query.numbers is not None and following is not None and following > max(query.numbers, default=0):
            break
        # Others have their turn before the next page.
        await asyncio.sleep(0)
    return looked


async def _page_of(
    queue: Queue, sub_queue: int, first: int, query: DeadLetterQuery
) -> Sequence[tuple[FragmentHandle, QueuedMessage]]:
    try:
        return await queue.peek(sub_queue, first, _PAGE, _PAGE_BYTES)
    except StoreUnavailable:
        if not query.is_partial:
            raise
        return ()


def _after(page: Sequence[tuple[FragmentHandle, QueuedMessage]]) -> int | None:
    return number_of(*page[-1]) + 1 if page else None
