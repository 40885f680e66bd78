"""Reading the cold tail: ahead of need for receivers, and on demand for those who peek (design 3.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from duobus.broker.read_ahead import Convoy
from duobus.fragment import paged_tail as cold_tail
from duobus.fragment import peek as browsing
from duobus.fragment.fragment import WINDOW_BYTES, Fragment
from duobus.fragment.message import MAIN, NEVER, Slot
from duobus.fragment.peek import Sought
from duobus.fragment.source import Source
from duobus.storage.interface import StoredMessage, is_end

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import Writer

#: Payload bytes that all fragments of a store may keep in memory before new windows get short.
RESIDENT_BYTES_MAX = 128 << 20
WINDOW_BYTES_SHORT = 1 << 20
#: Rows read at once to dispose of expired messages, and for a peek.
FETCH_ROWS, PEEK_ROWS = 1000, 250


class Pager:
    """Brings pages of cold tails into memory for one message broker.

    Args:
        broker: Whose store it is.
        reader: Runs what needs no order with the commits.

    Attributes:
        reader: See ``read_ahead.Road``.
    """

    __slots__ = ("_broker", "_convoys", "reader")

    def __init__(self, broker: MessageBroker, reader: Writer) -> None:
        self._broker = broker
        self.reader = reader
        # What is on its way, by source key.
        self._convoys: dict[int, Convoy] = {}

    def warm(self, fragment: Fragment) -> None:
        """Read what is about to be wanted of a fragment's cold tails, and what has to be disposed of there."""
        for source in fragment.sources.values():
            if source.cold_number and not source.is_paging:
                self._warm(fragment, source)

    def _warm(self, fragment: Fragment, source: Source) -> None:
        if source.cold_due:
            first, number = min(source.cold_due), FETCH_ROWS
            read = partial(self._broker.store.load, source.source_key, first, number)
            source.is_paging = True
            self._broker.read(read, partial(self._fetched, fragment, source))
            return
        page = source.wanted_page(fragment.window_bytes)
        if page is None:
            return
        source.is_paging = True
        convoy = Convoy(self, self._broker, fragment, source)
        if not convoy.ask():
            self._read_rows(fragment, source)
        else:
            self._convoys[source.source_key] = convoy

    def arrived(self, convoy: Convoy) -> None:
        """See ``read_ahead.Road``: go on with rows, or with the next convoy when there is room."""
        fragment, source = convoy.fragment, convoy.source
        if self._convoys.get(source.source_key) is convoy:
            del self._convoys[source.source_key]
        if not convoy.is_current:
            return
        if convoy.is_blocked and source.cold_number:
            self._read_rows(fragment, source)
        else:
            source.is_paging = False
            self._broker.follow_up(fragment, [])

    def _read_rows(self, fragment: Fragment, source: Source) -> None:
        number = source.page_rows(fragment.window_bytes)
        read = partial(self._broker.store.load, source.source_key, source.cold_first, number)
        self._broker.read(read, partial(self._paged, fragment, source, number))

    def _paged(self, fragment: Fragment, source: Source, asked: int, rows: list[StoredMessage]) -> None:
        if fragment.sources.get(source.source_no) is not source:
            return
        missing = cold_tail.page_in(fragment, source.source_no, rows, is_last=is_end(rows, asked))
        self._broker.follow_up(fragment, [], missing=missing)

    def _fetched(self, fragment: Fragment, source: Source, rows: list[StoredMessage]) -> None:
        if fragment.sources.get(source.source_no) is source:
            self._broker.follow_up(fragment, cold_tail.fetched(fragment, source.source_no, rows))

    async def read_ahead(self, fragment: Fragment) -> None:
        """Read what ``warm`` reads, and return when it is there."""
        self.warm(fragment)
        for source in fragment.sources.values():
            convoy = self._convoys.get(source.source_key)
            if convoy is not None:
                await convoy.all_taken()
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
    ) -> list[Slot]:
        """See ``MessageBroker.peek``."""
        broker = self._broker
        sought = Sought(sub_queue, first_count, limit, size, session_id)
        while not sought.is_full and handle.fragment is not None and handle.broker is broker:
            fragment = handle.fragment
            source = fragment.sources[source_no]
            end = source.cold_first if sub_queue == MAIN and source.cold_number else NEVER
            if sought.first < end:
                if browsing.look(fragment, source_no, sought, end, broker.now_ms()) and end == NEVER:
                    break
                # Others have their turn before the next stretch.
                await asyncio.sleep(0)
                continue
            average = max(1, source.cold_bytes // source.cold_number)
            number = max(1, min(PEEK_ROWS, sought.limit, sought.size // average + 1))
            rows = await broker.use(partial(broker.store.load, source.source_key, sought.first, number))
            if not rows:
                break
            if handle.fragment is fragment:
                browsing.look_at_rows(fragment, source_no, sought, rows, broker.now_ms())
        if sought.is_early:
            # Durable before visible: calls of a store are done in order, so this comes after the commit under way.
            await broker.use(lambda: None)
        return sought.found


def set_windows(fragments: Iterable[Fragment]) -> None:
    """Share the room for resident messages: large windows while there is room, small ones when there is not."""
    fragments = list(fragments)
    resident = sum(source.resident_bytes for fragment in fragments for source in fragment.sources.values())
    window = WINDOW_BYTES if resident < RESIDENT_BYTES_MAX else WINDOW_BYTES_SHORT
    for fragment in fragments:
        fragment.window_bytes = window
