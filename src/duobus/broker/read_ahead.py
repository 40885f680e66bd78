"""Bringing a cold tail into memory beside the commits, in columns (design 3.9, decision 0013).

A reader of its own, another thread where there are threads, reads ordinary messages while the store's writer commits,
verifies them and makes their slots: work for the time in which the loop waits for its clients. On the loop they are
taken in, a part in a turn, and the next page is asked for meanwhile: neither a commit nor a client waits for a page.

    reader   ──page──┬──page──┬──page──                  no order with the commits
    loop             └▪▪▪▪▪▪▪▪└▪▪▪▪▪▪▪▪                  a part in a turn

What is read out of order with the commits may be more than this side knows of, or less. So only counts below
``Source.cold_end`` are asked for: they are durable, and released. And only what is not in memory is taken in. A cold
message leaves the store without having been in memory only when its own time to live ends, and those are not ordinary:
columns never have one. Everything else ends the convoy; what is behind it is read by row, in order with the commits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from duobus.fragment import paged_tail as cold_tail
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import MAIN
from duobus.fragment.paged_tail import Part
from duobus.fragment.source import Source
from duobus.storage.interface import MessagingStore

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import Writer

#: Messages of a part.
PART: Final = 256
#: Messages that are taken in in a turn, 0.1 ms of the loop.
AT_ONCE: Final = 1024


def read(store: MessagingStore, source_key: int, first_count: int, number: int) -> list[Part]:
    """Read a page and make its slots; touches nothing but the store, so that any thread may call it."""
    found = store.load_columns(source_key, first_count, number)
    return [Part(plain, first, PART) for plain in found for first in range(0, len(plain.payloads), PART)]


class Road(Protocol):
    """What a convoy needs of the pager.

    Attributes:
        reader: Runs the reading calls.
    """

    reader: Writer

    def arrived(self, convoy: Convoy) -> None:
        """Nothing of this convoy is on its way any more."""


class Convoy:
    """Pages of one source that follow each other without a pause.

    Args:
        road: Whom to tell of its end.
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
        "_read",
        "_road",
        "_waiting",
        "fragment",
        "is_blocked",
        "source",
    )

    def __init__(self, road: Road, broker: MessageBroker, fragment: Fragment, source: Source) -> None:
        self.fragment = fragment
        self.source = source
        self.is_blocked = False
        self._road = road
        self._broker = broker
        self._next_count = source.cold_first
        # Messages asked for and not here yet; what is here, and not taken in.
        self._asked = 0
        self._read: deque[Part] = deque()
        self._is_taking = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_current(self) -> bool:
        """Whether the fragment is still alive, and the source part of it."""
        if self.fragment.sources.get(self.source.source_no) is not self.source:
            return False
        return self.fragment.handle.fragment is self.fragment  # type: ignore[attr-defined]

    def ask(self) -> bool:
        """Ask for the next page, if there is one for this way of reading and room for it; whether that was done."""
        source = self.source
        if self._asked or self.is_blocked or source.cold_due:
            return False
        window_bytes = self.fragment.window_bytes
        if source.wanted_page(window_bytes, self._next_count - source.cold_first) is None:
            return False
        store = self._broker.store
        number = min(source.page_rows(window_bytes), source.cold_end - self._next_count)
        if number < store.columns_least:
            return False
        self._asked = number
        call = partial(read, store, source.source_key, self._next_count, number)
        self._road.reader.submit(call, self._arrived)
        return True

    async def all_taken(self) -> None:
        """Return when what was asked for is here, or cannot come, and has been taken in."""
        while self._asked:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        while self._read and self.is_current:
            self._take()

    def _arrived(self, parts: Sequence[Part] | None, _error: BaseException | None) -> None:
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
            self._turn()

    def _join(self, parts: Sequence[Part]) -> None:
        for part in parts:
            # Told now: while they wait for their turn, none of them can come into memory or leave the store.
            if not cold_tail.is_apart(self.source, part):
                self.is_blocked = True
                return
            self._read.append(part)
            self._next_count = part.end_count

    def _turn(self) -> None:
        """Take in some messages."""
        self._is_taking = False
        if not self.is_current:
            self._read.clear()
        elif self._read:
            self._take()
        if self._read:
            self._is_taking = True
            asyncio.get_running_loop().call_soon(self._turn)
        elif not self._asked:
            self._road.arrived(self)

    def _take(self) -> None:
        is_needed = not self.source.sub_queues[MAIN].available()
        number = 0
        while self._read and number < AT_ONCE:
            part = self._read.popleft()
            cold_tail.take_in(self.fragment, self.source.source_no, part)
            number += len(part.slots)
        if not self._read:
            self.ask()
        if is_needed or not self._read:
            self._broker.follow_up(self.fragment, [])
