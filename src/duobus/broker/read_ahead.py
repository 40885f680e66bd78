"""Bringing a cold tail into memory beside the commits, in columns (design 3.9, decision 0013).

A reader of its own, another thread where there are threads, reads ordinary messages while the store's writer commits.
They are verified and taken in on the loop, some in a turn in which nobody else has something to do, and the next page
is asked for while they are: neither a commit nor a client waits for a page.

    reader   ──page──┬──page──┬──page──                  no order with the commits
    loop             └▪▪▪▪▪▪▪▪└▪▪▪▪▪▪▪▪                  in idle turns

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

from duobus.broker.fragment import cold_tail
from duobus.broker.fragment.fragment import Fragment
from duobus.broker.fragment.slot import MAIN
from duobus.broker.fragment.source import Source
from duobus.stores.interface import Columns

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.ports import Writer

#: With so many messages ready there is time to wait for idle turns: 10 ms at 400,000 a second.
ENOUGH: Final = 4000
#: Messages taken in in an idle turn, about 0.1 ms, and in every turn when they are needed.
AT_ONCE, AT_ONCE_IN_NEED = 128, 256


class Road(Protocol):
    """What a convoy needs of the pager.

    Attributes:
        reader: Runs the reading calls.
        moves: Grows whenever messages were asked for or committed.
    """

    reader: Writer
    moves: int

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
        "_moves",
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
        self._moves = road.moves
        self._next_count = source.cold_first
        # Messages asked for and not here yet; what is here, and not taken in.
        self._asked = 0
        self._read: deque[Columns] = deque()
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
        call = partial(store.load_columns, source.source_key, self._next_count, number)
        self._road.reader.submit(call, self._arrived)
        return True

    async def all_taken(self) -> None:
        """Return when what was asked for is here, or cannot come, and has been taken in."""
        while self._asked:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        while self._read and self.is_current:
            self._take(AT_ONCE_IN_NEED)

    def _arrived(self, stretches: Sequence[Columns] | None, _error: BaseException | None) -> None:
        self._asked = 0
        if not stretches:
            # Also when the reader was stopped: what is wrong shows when rows are read.
            self.is_blocked = True
        elif self.is_current:
            self._join(stretches)
            self.ask()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting = []
        if not self._is_taking:
            self._turn()

    def _join(self, stretches: Sequence[Columns]) -> None:
        for columns in stretches:
            # Told now: while they wait for their turn, none of them can come into memory or leave the store.
            if not cold_tail.is_apart(self.source, columns):
                self.is_blocked = True
                return
            self._read.append(columns)
            self._next_count = columns.first_count + columns.number

    def _turn(self) -> None:
        """Take in some messages, or wait for an idle turn."""
        self._is_taking = False
        if not self.is_current:
            self._read.clear()
        elif self._read:
            is_enough = self.source.sub_queues[MAIN].available() >= ENOUGH
            if is_enough and self._moves != self._road.moves:
                self._moves = self._road.moves
            else:
                self._take(AT_ONCE if is_enough else AT_ONCE_IN_NEED)
        if self._read:
            self._is_taking = True
            asyncio.get_running_loop().call_soon(self._turn)
        elif not self._asked:
            self._road.arrived(self)

    def _take(self, number: int) -> None:
        columns = self._read[0]
        plain = columns.take(number)
        if plain is None:
            # ``load`` tells which message it is. Whatever is still being read comes behind that.
            self.is_blocked = True
            self._read.clear()
            return
        is_needed = not self.source.sub_queues[MAIN].available()
        cold_tail.take_in(self.fragment, self.source.source_no, plain)
        if not columns.number:
            self._read.popleft()
            self.ask()
        if is_needed or not columns.number:
            self._broker.follow_up(self.fragment, [])
