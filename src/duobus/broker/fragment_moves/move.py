"""Moving a fragment to another messaging store of the same server while its entity is in use (decision 0025).

The intent is in the catalog. The rows are copied (``copy.py``). Then the fragment is taken out of its message broker
for the moment that the last rows take, the catalog says where it is from now on, and it is recovered there as after a
restart: numbers go on, locks are lost. Whatever fails before the catalog has said so undoes the move; after that only
the old rows are to be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from duobus.broker.fragment_moves.copy import FragmentCopy, LocalTarget, drop_rows
from duobus.errors import ServiceBusError, StoreFailed
from duobus.storage.interface import FragmentRow, SourceRow

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.fragment.fragment import Fragment
    from duobus.storage.catalog.interface import Catalog
    from duobus.storage.catalog_rows import MoveRow

#: How often a catalog is asked that has failed when it was to say where the fragment is, and the pause in between.
_ASK_S: Final = 1.0


class FragmentMove(FragmentCopy):
    """One move.

    Args:
        catalog: Where it is recorded.
        move: What is recorded there.
        plan: Of the fragment.
        target: The message broker that gets it.
        demand: Raises MoveAborted when the move is to end: the entity is gone, or the server stops.
        moved: Called when the fragment is there.

    Attributes:
        held_s: For how long nobody could use the fragment.
        has_switched: It is in the other store, for good.
        is_unknown: The catalog was lost when it was to say where the fragment is; it says so at the next start.
    """

    def __init__(
        self,
        catalog: Catalog,
        move: MoveRow,
        plan: FragmentPlan,
        target: MessageBroker,
        demand: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        super().__init__(plan, LocalTarget(target), demand)
        self.held_s = 0.0
        self.has_switched = False
        self.is_unknown = False
        self._catalog = catalog
        self._move = move
        self._target = target
        self._moved_in = moved

    async def run(self) -> None:
        """Move it.

        Raises:
            MoveAborted, StoreFailed, ServiceBusError: It was not moved, and is where it was.
        """
        for broker in (self._target, self._origin):
            # Whether it could give the fragment up: there is no entity 0.
            await broker.use(partial(broker.store.drop_fragment, 0, 0, 1))
        self._catalog.begin_move(self._move)
        try:
            await self.prepare()
            self._origin.commit_loop.watches.append(self.note)
            try:
                await self.copy_rows()
                await self._hand_over()
            finally:
                self._origin.commit_loop.watches.remove(self.note)
        except BaseException:
            if not self.has_switched and not self.is_unknown:
                await clear_up(self._catalog, self._move, (self._target,))
            raise
        await clear_up(self._catalog, self._move, (self._origin,))

    # -- while nobody uses it -----------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        fragment = self.present()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        handle = self._handle
        parked = self._origin.host.export_fragment(self._plan)
        try:
            await self.finish(fragment)
            self._demand()
            await self._switch()
            handle.move_to(self._target)
            rows = [self._moved(one, fragment) for one in self._tracker.sources.values()]
            await self._target.host.import_fragment(self._plan, self._row, rows, self._shared)
            self._moved_in()
        except BaseException:
            if not self.has_switched and not self.is_unknown:
                await self._give_back(fragment)
            raise
        finally:
            self.held_s = loop.time() - began_s
            for run in parked:
                handle.submit(run)

    async def _switch(self) -> None:
        """Have the catalog say where it is. While the catalog cannot tell, nobody may use it anywhere."""
        move = self._move
        try:
            self._catalog.switch_move(move)
        except StoreFailed:
            self.is_unknown = True
            while self.is_unknown:
                self._demand_on()
                await asyncio.sleep(_ASK_S)
                with suppress(StoreFailed):
                    self.has_switched = store_of(self._catalog, move) == move.to_store
                    self.is_unknown = False
            if not self.has_switched:
                raise
        self.has_switched = True

    async def _give_back(self, fragment: Fragment) -> None:
        """It stays where it was, as after a restart of its store."""
        origin, handle = self._origin, self._handle
        if origin.lifecycle.life != self._life or origin.state != "open":
            origin.host.restore_fragment(self._plan)
            return
        row = FragmentRow(fragment.fragment_key, handle.entity_id, handle.number, fragment.epoch)
        rows = [
            SourceRow(
                one.source_key, row.fragment_key, one.source_no, one.next_count, one.highest_delivered, one.counters()
            )
            for one in fragment.sources.values()
        ]
        stored = 0 if fragment.topic is None else fragment.topic.stored
        await origin.host.import_fragment(self._plan, row, rows, stored)


def store_of(catalog: Catalog, move: MoveRow) -> int | None:
    """The store that has a fragment, by the catalog; None when its entity is gone."""
    for entity in catalog.read().entities:
        for slot in entity.slots if entity.entity_id == move.entity_id else ():
            if slot.fragment_no == move.fragment_no:
                return slot.store_id
    return None


async def clear_up(catalog: Catalog, move: MoveRow, brokers: Iterable[MessageBroker]) -> bool:
    """Delete what the stores of these message brokers have of a fragment that is not theirs, and forget the move.

    Returns:
        Whether that was done; else it stays recorded, and is done when the stores are there.
    """
    try:
        for broker in brokers:
            await drop_rows(broker, move.entity_id, move.fragment_no)
        catalog.end_move(move)
    except (StoreFailed, ServiceBusError):
        return False
    return True
