"""Reading the paged tail: ahead of need for receivers, and on demand for clients that peek (decision 0013)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from duobus.broker.fragment_handle import FragmentHandle
from duobus.fragment import paged_tail, peek
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import MAIN, NEVER, QueuedMessage
from duobus.fragment.paged_tail import TailPage
from duobus.fragment.peek import PeekProgress
from duobus.fragment.source import WINDOW_COUNT, Source
from duobus.storage.interface import MessagingStore, StoredMessage, is_end

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.storage.writers import Writer


# Bringing a paged tail into memory beside the commits, in columns (decision 0013).
#
# A separate reader, another thread where there are threads, reads plain messages while the store's writer commits,
# verifies them and makes queued messages of them: work for the time in which the loop waits for its clients. On the
# loop the messages are taken in, some in each loop iteration, and the next page is asked for meanwhile: neither a
# commit nor a client waits for a page.
#
#     reader   ──page──┬──page──┬──page──                  no order with the commits
#     loop             └▪▪▪▪▪▪▪▪└▪▪▪▪▪▪▪▪                  some in each iteration
#
# What is read out of order with the commits may be more than this side knows of, or less. So only counts below
# ``Source.tail_end`` are asked for: they are durable, and released. And only what is not in memory is taken in. A paged
# message leaves the store without having been in memory only when its own time to live ends, and such messages are not
# plain: columns never have one. Everything else ends the page loader; what is behind it is read by row, in order
# with the commits.

#: Messages of a part.
PART: Final = 256
#: Messages that are taken in in a turn, 0.1 ms of the loop.
AT_ONCE: Final = 1024


def read(store: MessagingStore, source_key: int, first_count: int, number: int) -> list[TailPage]:
    """Read a page and make queued messages of it; touches nothing but the store, so that any thread may call it."""
    found = store.load_columns(source_key, first_count, number)
    return [TailPage(plain, first, PART) for plain in found for first in range(0, len(plain.payloads), PART)]


class PageSource(Protocol):
    """What a page loader needs of the pager.

    Attributes:
        reader: Runs the reading calls.
    """

    reader: Writer

    def arrived(self, loader: PageLoader) -> None:
        """Nothing of this page loader is on its way any more."""


class PageLoader:
    """Pages of one source that follow each other without a pause.

    Args:
        page_source: Learns of its end.
        broker: Whose store it is.
        fragment: Of this life.
        source: One of its sources; its ``is_paging`` is set.

    Attributes:
        is_blocked: What comes next is not for columns.
    """

    __slots__ = (
        "_asked",
        "_broker",
        "_is_taking",
        "_next_count",
        "_page_source",
        "_read",
        "_waiting",
        "fragment",
        "is_blocked",
        "source",
    )

    def __init__(self, page_source: PageSource, broker: MessageBroker, fragment: Fragment, source: Source) -> None:
        self.fragment = fragment
        self.source = source
        self.is_blocked = False
        self._page_source = page_source
        self._broker = broker
        self._next_count = source.tail_first
        # Messages asked for and not here yet; what is here, and not taken in.
        self._asked = 0
        self._read: deque[TailPage] = deque()
        self._is_taking = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_current(self) -> bool:
        """Whether the fragment is still alive, and the source part of it."""
        if self.fragment.sources.get(self.source.source_no) is not self.source:
            return False
        handle = self.fragment.handle
        return isinstance(handle, FragmentHandle) and handle.fragment is self.fragment

    def ask(self) -> bool:
        """Ask for the next page, if there is one for this way of reading and room for it; whether that was done."""
        source = self.source
        if self._asked or self.is_blocked or source.tail_due:
            return False
        page_bytes = self.fragment.page_bytes
        if source.wanted_page(page_bytes, self._next_count - source.tail_first) is None:
            return False
        store = self._broker.store
        number = min(source.page_rows(page_bytes), source.tail_end - self._next_count)
        if number < store.columns_least:
            return False
        self._asked = number
        call = partial(read, store, source.source_key, self._next_count, number)
        self._page_source.reader.submit(call, self._arrived)
        return True

    async def all_taken(self) -> None:
        """Return when what was asked for is here, or cannot come, and has been taken in."""
        while self._asked:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        while self._read and self.is_current:
            self._take()

    def _arrived(self, parts: Sequence[TailPage] | None, _error: BaseException | None) -> None:
        self._asked = 0
        if not parts:
            # Also when the reader was stopped: what is wrong shows when rows are read.
            self.is_blocked = True
        elif self.is_current:
            self._join(parts)
            self.ask()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting = []
        if not self._is_taking:
            self._next()

    def _join(self, parts: Sequence[TailPage]) -> None:
        for part in parts:
            # Told now: while they wait for their turn, none of them can come into memory or leave the store.
            if not paged_tail.is_kept_in_memory(self.source, part):
                self.is_blocked = True
                return
            self._read.append(part)
            self._next_count = part.end_count

    def _next(self) -> None:
        """Take in some messages."""
        self._is_taking = False
        if not self.is_current:
            self._read.clear()
        elif self._read:
            self._take()
        if self._read:
            self._is_taking = True
            asyncio.get_running_loop().call_soon(self._next)
        elif not self._asked:
            self._page_source.arrived(self)

    def _take(self) -> None:
        is_needed = not self.source.sub_queues[MAIN].available()
        number = 0
        while self._read and number < AT_ONCE:
            part = self._read.popleft()
            paged_tail.take_in(self.fragment, self.source.source_no, part)
            number += len(part.messages)
        if not self._read:
            self.ask()
        if is_needed or not self._read:
            self._broker.commit_loop.follow_up(self.fragment, [])


#: Rows read at once to dispose of expired messages, and for a peek.
FETCH_ROWS, PEEK_ROWS = 1000, 250


class Pager:
    """Brings pages of paged tails into memory for one message broker.

    Args:
        broker: Whose store it is.
        reader: Runs what needs no order with the commits.

    Attributes:
        reader: See ``PageSource``.
    """

    __slots__ = ("_broker", "_loaders", "reader")

    def __init__(self, broker: MessageBroker, reader: Writer) -> None:
        self._broker = broker
        self.reader = reader
        # What is on its way, by source key.
        self._loaders: dict[int, PageLoader] = {}

    def prefetch(self, fragment: Fragment, source: Source) -> None:
        """Read what is about to be wanted of a source's paged tail, and what has to be disposed of there.

        Called when the source has one, and no page of it is on its way.
        """
        if source.tail_due:
            first, number = min(source.tail_due), FETCH_ROWS
            read = partial(self._broker.store.load, source.source_key, first, number)
            source.is_paging = True
            self._broker.lifecycle.read(read, partial(self._fetched, fragment, source))
            return
        page = source.wanted_page(fragment.page_bytes)
        if page is None:
            return
        source.is_paging = True
        loader = PageLoader(self, self._broker, fragment, source)
        if not loader.ask():
            self._read_rows(fragment, source)
        else:
            self._loaders[source.source_key] = loader

    def arrived(self, loader: PageLoader) -> None:
        """See ``PageSource``: go on with rows, or with the next page loader when there is room."""
        fragment, source = loader.fragment, loader.source
        if self._loaders.get(source.source_key) is loader:
            del self._loaders[source.source_key]
        if not loader.is_current:
            return
        if loader.is_blocked and source.tail_count:
            self._read_rows(fragment, source)
        else:
            source.is_paging = False
            self._broker.commit_loop.follow_up(fragment, [])

    def _read_rows(self, fragment: Fragment, source: Source) -> None:
        number = source.page_rows(fragment.page_bytes)
        read = partial(self._broker.store.load, source.source_key, source.tail_first, number)
        self._broker.lifecycle.read(read, partial(self._paged, fragment, source, number))

    def _paged(self, fragment: Fragment, source: Source, asked: int, rows: list[StoredMessage]) -> None:
        if fragment.sources.get(source.source_no) is not source:
            return
        missing = paged_tail.page_in(fragment, source.source_no, rows, is_last=is_end(rows, asked))
        self._broker.commit_loop.follow_up(fragment, [], missing=missing)

    def _fetched(self, fragment: Fragment, source: Source, rows: list[StoredMessage]) -> None:
        if fragment.sources.get(source.source_no) is source:
            self._broker.commit_loop.follow_up(fragment, paged_tail.fetched(fragment, source.source_no, rows))

    async def read_ahead(self, fragment: Fragment) -> None:
        """Read what ``prefetch`` reads of all sources, and return when it is there."""
        for source in fragment.sources.values():
            if source.tail_count and not source.is_paging:
                self.prefetch(fragment, source)
        for source in fragment.sources.values():
            loader = self._loaders.get(source.source_key)
            if loader is not None:
                await loader.all_taken()
        # Calls of a store are done in order, so whatever was asked of it before has come by then.
        await self._broker.use(lambda: None)

    async def peek(
        self,
        handle: FragmentHandle,
        source_no: int,
        sub_queue: int,
        first_count: int,
        limit: int,
        size: int,
        session_id: str | None,
        partition_key: str | None = None,
    ) -> list[QueuedMessage]:
        """See ``FragmentHandle.peek``."""
        broker = self._broker
        sought = PeekProgress(sub_queue, first_count, limit, size, session_id, partition_key)
        for _ in range(broker.commit_loop.write_unanswered()):
            # A client that completes a message and then peeks must not see the message again.
            await broker.use(lambda: None)
        while not sought.is_full and handle.fragment is not None and handle.broker is broker:
            fragment = handle.fragment
            source = fragment.sources[source_no]
            end = source.tail_first if sub_queue == MAIN and source.tail_count else NEVER
            if sought.first < end:
                if peek.peek(fragment, source_no, sought, end, broker.now_ms()) and end == NEVER:
                    break
                # Others have their turn before the next stretch.
                await asyncio.sleep(0)
                continue
            average = max(1, source.tail_bytes // source.tail_count)
            number = max(1, min(PEEK_ROWS, sought.limit, sought.size // average + 1))
            rows = await broker.use(partial(broker.store.load, source.source_key, sought.first, number))
            if not rows:
                break
            if handle.fragment is fragment:
                peek.peek_rows(fragment, source_no, sought, rows, broker.now_ms())
        if sought.is_early:
            # Durable before visible: calls of a store are done in order, so this comes after the commit under way.
            await broker.use(lambda: None)
        return sought.found


#: Bytes that a message in memory takes beside its payload: its object, and its places in index and list. 281 to 286
#: were measured with Python 3.11.
MESSAGE_BYTES: Final = 300
#: Bytes of messages that a server without another limit keeps in memory.
MEMORY_BYTES_MAX: Final = 256 << 20
#: Payload bytes, and messages, that a source keeps in memory even though there is no room.
WINDOW_BYTES_SHORT: Final = 512 << 10
WINDOW_COUNT_SHORT: Final = 2000
#: A source may take one part of so many of what is free until the next look.
PARTS: Final = 4


class MemoryRoom:
    """Room in memory that the stores of a server share for their messages (decision 0062).

    While there is room, a source keeps what arrives in memory, and receivers get it without a read of the store. The
    windows of all sources follow from what is free, at each look: a source may grow by a fourth of that. Without room
    each keeps a short window. What has to be in memory (locked, deferred, scheduled and dead messages, and those of
    sessions) is counted and not refused, so it takes from what the windows have.

    Args:
        limit: Bytes for the messages of all stores, each with ``MESSAGE_BYTES``.

    Attributes:
        limit: See the argument.
        look_at: Payload bytes that a store may take in before its next look.
    """

    __slots__ = ("_held", "limit", "look_at")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.look_at = max(limit // PARTS, WINDOW_BYTES_SHORT)
        self._held: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Bytes that messages took at the last look of each store."""
        return sum(self._held.values())

    def share(self, store_id: int, fragments: Iterable[Fragment]) -> None:
        """Look at what a store's fragments hold, and set their windows by what is free."""
        found = []
        held = 0
        for fragment in fragments:
            most_bytes = most_messages = 0
            for source in fragment.sources.values():
                size, messages = source.memory_bytes, len(source.by_count)
                held += size + messages * MESSAGE_BYTES
                most_bytes, most_messages = max(most_bytes, size), max(most_messages, messages)
            found.append((fragment, most_bytes, most_messages))
        self._held[store_id] = held
        part = max(0, self.limit - self.held) // PARTS
        self.look_at = max(part, WINDOW_BYTES_SHORT)
        for fragment, most_bytes, most_messages in found:
            if part <= WINDOW_BYTES_SHORT:
                fragment.window_bytes, fragment.window_count = WINDOW_BYTES_SHORT, WINDOW_COUNT_SHORT
            else:
                fragment.window_bytes = most_bytes + part
                fragment.window_count = max(WINDOW_COUNT, most_messages + part // MESSAGE_BYTES)

    def left(self, store_id: int) -> None:
        """The store's messages are in memory no more."""
        self._held.pop(store_id, None)
