"""EntityMove: an entity with all of its fragments goes to another messaging store, whoever has that (decision 0070).

What has to have one owner goes together: a queue or a topic, or one shard of a sharded queue. The steps are those of a
move within one server (decision 0025), and what two owners need beside them:

1. The moves are recorded in the catalog.
2. Each fragment is copied, while clients use it.
3. The entity is held: clients are detached, and attach again where it is then. The last rows are copied.
4. Its fragments are *set aside* in the store that they leave. Whoever gets that store meanwhile finds nothing to serve.
5. The catalog says where they are: all of them, and only if nobody has given the move up. This is the decision.
6. The owner of each store does what the catalog says (``coordinator.py``): one serves the entity, one deletes its rows.

A server that ends before step 5 leaves moves that the next owner of the store gives up in the catalog before it serves
what was set aside. One that ends after it leaves rows that are deleted. So at any moment there is one place, and the
catalog names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from duobus.broker.fragment_moves.copy import CopyTarget, FragmentCopy, MoveAborted
from duobus.cluster.moves.copies import homes_of
from duobus.errors import StoreFailed
from duobus.storage.interface import aside_of

if TYPE_CHECKING:
    from duobus.broker.entities.queue import Queue
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.cluster.moves.host import MoveHost
    from duobus.storage.catalog_rows import MoveRow

#: How often a catalog is asked that has failed when it was to say where an entity is, in seconds.
ASK_S: Final = 1.0

#: Gives the store that gets a fragment, by the fragment's move and epoch.
FindTarget = Callable[["MoveRow", int], Awaitable[CopyTarget]]


class EntityMove:
    """One move.

    Args:
        unit: Whose entity it is.
        entity: The queue or topic.
        moves: For each of its fragments, in order.
        find: Gives the store that gets them.
        demand: Raises MoveAborted when the move is to end.

    Attributes:
        held_s: For how long nobody could use the entity, up to the decision.
        is_held: It is out of use here, and stays so until the catalog was asked where it is.
        has_switched: It is in the other store, for good.
    """

    def __init__(
        self,
        unit: MoveHost,
        entity: Queue,
        moves: Sequence[MoveRow],
        find: FindTarget,
        demand: Callable[[], None],
    ) -> None:
        self.entity = entity
        self.moves = list(moves)
        self.held_s = 0.0
        self.is_held = False
        self.has_switched = False
        self._unit = unit
        self._find = find
        self._demand = demand
        self._origin: MessageBroker = entity.fragments[0].broker
        self._copies: list[FragmentCopy] = []
        self._plans: list[FragmentPlan] = []

    @property
    def messages(self) -> int:
        """Rows that the other store has got so far."""
        return sum(copy.messages for copy in self._copies)

    async def run(self) -> None:
        """Move it.

        Raises:
            MoveAborted, StoreFailed, ServiceBusError: It was not moved; the catalog knows of moves to be given up.
        """
        watches = self._origin.commit_loop.watches
        known = {(move.entity_id, move.fragment_no) for move in self._unit.catalog.read().moves}
        if any((move.entity_id, move.fragment_no) in known for move in self.moves):
            raise MoveAborted("what an earlier move of it has left behind is not deleted yet; try again")
        for move in self.moves:
            self._unit.catalog.begin_move(move)
        try:
            for handle, move in zip(self.entity.fragments, self.moves, strict=True):
                plan = self._origin.plans.get((handle.entity_id, handle.number))
                if plan is None or handle.fragment is None:
                    raise MoveAborted("a fragment of it is away")
                copy = FragmentCopy(plan, await self._find(move, handle.fragment.epoch), self._demand)
                await copy.prepare()
                watches.append(copy.note)
                self._copies.append(copy)
                self._plans.append(plan)
                await copy.copy_rows()
                # What was noted of the others meanwhile is to stay little.
                for earlier in self._copies[:-1]:
                    await earlier.advance()
            await self._hand_over()
        finally:
            for copy in self._copies:
                watches.remove(copy.note)

    async def _hand_over(self) -> None:
        unit, loop = self._unit, asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await unit.take_leave(self.entity.entity_id)
            fragments = [copy.present() for copy in self._copies]
            self._hold()
            for copy, fragment in zip(self._copies, fragments, strict=True):
                await copy.finish(fragment)
            for plan in self._plans:
                await self._set_aside(plan)
            self._demand()
            await self._switch()
        finally:
            # Whatever has failed: clients were told to go, and are served anew where the catalog says.
            self._hold()
            self.held_s = loop.time() - began_s

    def _hold(self) -> None:
        """From this moment nobody is served from here."""
        if self.is_held:
            return
        self.is_held = True
        self._unit.absent.add(self.entity.entity_id)
        waiting = [run for plan in self._plans for run in self._origin.host.export_fragment(plan)]
        self._unit.let_go(self.entity.entity_id)
        for run in waiting:
            self._origin.commit_loop.refuse(run, self._origin.unavailable(), [])

    async def _set_aside(self, plan: FragmentPlan) -> None:
        store, handle = self._origin.store, plan.handle
        aside = aside_of(handle.entity_id)
        await self._origin.use(partial(store.relabel_fragment, handle.entity_id, handle.number, aside, 0))

    async def _switch(self) -> None:
        """Have the catalog decide. While it cannot tell what it has decided, nobody may use the entity anywhere.

        Raises:
            NotAllowed: Another server has given the move up.
            StoreFailed: The catalog has not taken it.
        """
        catalog = self._unit.catalog
        try:
            catalog.switch_moves(self.moves)
        except StoreFailed:
            first = self.moves[0]
            while True:
                self._demand()
                await asyncio.sleep(ASK_S)
                with suppress(StoreFailed):
                    home = homes_of(catalog.read()).get((first.entity_id, first.fragment_no))
                    break
            if home != first.to_store:
                raise
        self.has_switched = True
