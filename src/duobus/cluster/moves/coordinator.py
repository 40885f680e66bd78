"""ClusterMoves: the moves of entities that a server makes, and what it does about all others (``entity_move.py``).

Nothing is ordered between servers. Each looks at the catalog, whenever it was changed or a store has come, and does
what concerns its own stores: it gives up moves that nobody makes any more, deletes what is left of those that have
ended, lets go of what is elsewhere, and serves what is here. Every step can be done again (I31).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from duobus.broker.fragment_moves.coordinator import FragmentMoves
from duobus.broker.fragment_moves.copy import CopyTarget, MoveAborted, drop_rows
from duobus.cluster.directory import MOVING
from duobus.cluster.moves.copies import EpochTarget, homes_of
from duobus.cluster.moves.entity_move import EntityMove
from duobus.cluster.moves.target import RemoteTarget
from duobus.errors import ArgumentInvalid, EntityNotFound, NotAllowed, ServerBusy, ServiceBusError, StoreFailed
from duobus.model.address import whole_path
from duobus.model.descriptions import QUEUE, TOPIC
from duobus.storage.catalog_rows import LIVE, CatalogContents, EntityRow, MoveRow
from duobus.storage.interface import aside_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from duobus.broker.entities.queue import Queue
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.cluster.moves.host import MoveHost

#: How soon it looks again when something could not be done, in seconds.
AGAIN_S: Final = 1.0


class ClusterMoves(FragmentMoves):
    """The moves of one of several servers.

    Attributes:
        is_understood: Whether every server that is alive knows of fragments that are set aside.
    """

    __slots__ = ("_again", "_clearing", "_clustered", "_looking", "_own", "_planned", "is_understood")

    def __init__(self, unit: MoveHost) -> None:
        super().__init__(unit)
        self.is_understood: Callable[[], bool] = lambda: False
        self._clustered = unit
        self._own: EntityMove | None = None
        # What is being deleted, or could not be yet.
        self._clearing: dict[MoveRow, asyncio.Task[None]] = {}
        # Numbers of entities that have come, and have not begun to do what goes on in them by itself.
        self._planned: set[int] = set()
        self._again: asyncio.TimerHandle | None = None
        self._looking: set[asyncio.Task[None]] = set()
        unit.follow(self._changed)

    # -- what operators ask for ---------------------------------------------------------------------------------

    def start(self, namespace: str, path: str, fragment_no: int, store_id: int) -> dict[str, Any]:
        """See FragmentMoves: with the fragment go all others that have one owner with it.

        Raises:
            EntityNotFound: There is no such queue or topic, or it has no such fragment.
            ArgumentInvalid: There is no such store, or the fragment is there.
            NotAllowed: A server of an earlier version is in the cluster.
            ServerBusy: There is a move under way, or one of the stores is away.
        """
        unit = self._clustered
        entity = self._owned(namespace, path, fragment_no)
        whole = whole_path(entity.path)
        origin = entity.fragments[0].broker
        stores = sorted(row.store_id for row in unit.directory.contents.stores)
        if store_id not in stores:
            known = ", ".join(map(str, stores))
            raise ArgumentInvalid(f"There is no messaging store {store_id}; there are {known}.")
        if store_id == origin.store_id:
            raise ArgumentInvalid(f"Fragment {fragment_no} of '{whole}' is on store {store_id} already.")
        if not self.is_understood():
            raise NotAllowed(
                "A server of an earlier version is in the cluster, and would not know of a fragment that moves. "
                "Upgrade all servers first: duobus cluster status tells their versions."
            )
        if self._task is not None and not self._task.done():
            raise ServerBusy(
                f"The server that has '{whole}' moves something already. Wait until that is done: GET /$duobus/moves."
            )
        if origin.state != "open":
            raise origin.unavailable()
        owners = unit.remote.owners
        if owners is None or owners.owner_of(store_id) == MOVING:
            raise ServerBusy(f"Messaging store {store_id} has no server now. Try again in a few seconds.")
        numbers = [handle.number for handle in entity.fragments]
        if {(move.entity_id, move.fragment_no) for move in unit.directory.contents.moves} & {
            (entity.entity_id, number) for number in numbers
        }:
            raise ServerBusy(
                f"What an earlier move of '{whole}' has left behind is not deleted yet. Try again in a few seconds; "
                "duobus cluster status tells which stores have no server."
            )
        status: dict[str, Any] = {
            "entity": whole,
            "fragment": fragment_no,
            "fragments": numbers,
            "from": origin.store_id,
            "to": store_id,
            "state": "running",
            "reason": None,
            "messages": 0,
            "heldMs": None,
            "begunMs": unit.now_ms(),
            "endedMs": None,
        }
        self._shown.appendleft(status)
        moves = [MoveRow(entity.entity_id, number, origin.store_id, store_id) for number in numbers]
        self._moving = moves
        self._own = own = EntityMove(unit, entity, moves, self._target_of, lambda: self._demand(entity))
        self._task = asyncio.get_running_loop().create_task(self._move(own, status), name="move-entity")
        return dict(status)

    def status(self) -> list[dict[str, Any]]:
        """See FragmentMoves."""
        if self._own is not None:
            self._shown[0]["messages"] = self._own.messages
        return [dict(one) for one in self._shown]

    def _owned(self, namespace: str, path: str, fragment_no: int) -> Queue:
        """The queue, topic or shard of this server that has a fragment."""
        sharded = self._clustered.directory.sharded.get((namespace.lower(), path.lower()))
        if sharded is not None:
            index = sharded.of_number(fragment_no)
            if index is None:
                raise EntityNotFound(f"'{path}' has no fragment {fragment_no}; it has 0 to {sharded.slots - 1}.")
            path = sharded.shares[index].path
        row = self._clustered.directory.row_of(namespace, path.lower())
        if row is not None and not self._clustered.has(row):
            raise ServerBusy(f"'{path}' moves between servers. Please wait a second and try again.")
        entity = self._entity(namespace, path)
        if all(handle.number != fragment_no for handle in entity.fragments):
            numbers = ", ".join(str(handle.number) for handle in entity.fragments)
            raise EntityNotFound(f"'{entity.path}' has no fragment {fragment_no}; it has {numbers}.")
        return entity

    async def _target_of(self, move: MoveRow, epoch: int) -> CopyTarget:
        """The store that gets a fragment, here or at another server."""
        unit = self._clustered
        broker = unit.brokers.get(move.to_store)
        if broker is not None and move.to_store in unit.adopted:
            return EpochTarget(broker, epoch)
        namespace = unit.directory.namespace_of_id(move.entity_id)
        try:
            return RemoteTarget(await unit.remote.connection_to(move.to_store, namespace), move, epoch)
        except ConnectionError as error:
            raise MoveAborted(f"the server that has messaging store {move.to_store}: {error}") from error

    async def _move(self, own: EntityMove, status: dict[str, Any]) -> None:
        unit = self._clustered
        what = f"'{status['entity']}', fragments {status['fragments']}, from store {status['from']} to {status['to']}"
        unit.store_events(status["from"], "move begun", what)
        reason = await self._outcome_of(own)
        self._own = None
        self._moving = ()
        try:
            # What is to be done now, every server finds in the catalog.
            await unit.read_again()
            left = [task for move, task in self._clearing.items() if move.entity_id == own.entity.entity_id]
            if left:
                await asyncio.wait(left)
        except StoreFailed:
            self._look_again()
        self._end(status, own, reason)
        unit.store_events(status["from"], f"move {status['state']}", f"{what}: {reason or own.messages}")

    def _changed(self, queue: Queue) -> None:
        """An entity that is deleted moves nowhere; said before the catalog forgets it, which would forget the rest."""
        own = self._own
        if own is None or not queue.is_deleted or queue.entity_id != own.entity.entity_id:
            return
        try:
            for move in own.moves:
                self._clustered.catalog.give_up_move(move)
        except StoreFailed:
            # Then the deletion is not finished either: whoever has the store next does both.
            self._look_again()

    async def stop(self) -> None:
        """See FragmentMoves."""
        self._is_stopped = True
        if self._again is not None:
            self._again.cancel()
        await self.wait()
        for task in (*self._clearing.values(), *self._looking):
            task.cancel()

    def store_opened(self) -> None:
        """A store is there again: what was set aside in it may have to be served."""
        if any(plan.handle.fragment is None for broker in self._open() for plan in broker.plans.values()):
            self._look_again(0.0)

    async def resume(self, moves: Iterable[MoveRow]) -> None:
        """See FragmentMoves: stores come here later, each with what is to be done."""

    # -- what the catalog says ----------------------------------------------------------------------------------

    def give_up(self, contents: CatalogContents, store_id: int) -> None:
        """A store has come here: moves from it that its last owner has left are not decided any more.

        Before what lives in it is served or deleted. While the catalog is away, what was set aside is not served.
        """
        homes = homes_of(contents)
        for move in contents.moves:
            if move.from_store == store_id and homes.get((move.entity_id, move.fragment_no)) == store_id:
                try:
                    self._clustered.catalog.give_up_move(move)
                except StoreFailed:
                    self._look_again()

    async def settle(self, contents: CatalogContents) -> None:
        """Do for the stores that are open here what the catalog asks for; nothing else adopts or reads meanwhile."""
        unit = self._clustered
        unit.copies.see(contents)
        if self._is_stopped or not self._is_wanted(contents):
            unit.absent = self._held()
            return
        try:
            # What is decided here must not rest on what another server has changed meanwhile.
            contents = unit.catalog.read()
            self._clear_up(contents)
            await self._serve(contents)
        except (StoreFailed, ServiceBusError) as error:
            unit.store_events(0, "unfinished", f"moves of fragments: {error}")
            self._look_again()

    def _held(self) -> set[int]:
        """The entity that is being moved away at this moment."""
        return {self._own.entity.entity_id} if self._own is not None and self._own.is_held else set()

    def _is_wanted(self, contents: CatalogContents) -> bool:
        """Whether there is anything to be done here, as far as memory and a catalog tell that may be old."""
        return (
            bool(contents.moves)
            or bool(self._planned)
            or bool(self._missing(contents))
            or bool(self._elsewhere(contents))
            or any(plan.handle.fragment is None for broker in self._open() for plan in broker.plans.values())
        )

    def _open(self) -> list[MessageBroker]:
        return [broker for broker in self._clustered.brokers.values() if broker.state == "open"]

    def missing(self, contents: CatalogContents) -> set[int]:
        """Numbers of the entities that live in the stores of this server, and are not served here."""
        return {row.entity_id for row in self._missing(contents)}

    def _missing(self, contents: CatalogContents) -> list[EntityRow]:
        """What lives in the stores of this server, by the catalog, and is not served here."""
        unit = self._clustered
        held = self._held()
        return [
            row
            for row in contents.entities
            if row.state == LIVE
            and row.slots
            and row.kind in (QUEUE, TOPIC)
            and row.slots[0].store_id in unit.adopted
            and row.entity_id not in held
            and not unit.has(row)
        ]

    def _elsewhere(self, contents: CatalogContents) -> list[tuple[MessageBroker, FragmentPlan]]:
        """What is served here, and lives in another store by the catalog."""
        homes = homes_of(contents)
        return [
            (broker, plan)
            for broker in self._clustered.brokers.values()
            for (entity_id, number), plan in list(broker.plans.items())
            if homes.get((entity_id, number), broker.store_id) != broker.store_id
        ]

    def _clear_up(self, contents: CatalogContents) -> None:
        """Moves that nobody makes any more, and what they have left in the stores of this server."""
        unit = self._clustered
        for broker, plan in self._elsewhere(contents):
            unit.absent.add(plan.handle.entity_id)
            broker.host.export_fragment(plan)
            unit.let_go(plan.handle.entity_id)
        homes = homes_of(contents)
        own = set() if self._own is None else set(self._own.moves)
        for found in contents.moves:
            move, home = found, homes.get((found.entity_id, found.fragment_no))
            if move in own:
                continue
            if home == move.from_store:
                if home not in unit.brokers:
                    # Whoever has its store sees to it.
                    continue
                unit.catalog.give_up_move(move)
                move = move.reversed()
            left = unit.brokers.get(move.from_store)
            if left is not None and left.state != "open":
                self._look_again()
            elif left is not None and move not in self._clearing:
                unit.copies.end(move.entity_id, move.fragment_no)
                task = asyncio.get_running_loop().create_task(self._delete(left, move), name="clear-up-move")
                self._clearing[move] = task

    async def _delete(self, broker: MessageBroker, move: MoveRow) -> None:
        """Delete what a store has of a fragment that is elsewhere, and forget the move."""
        try:
            for entity_id in (move.entity_id, aside_of(move.entity_id)):
                await drop_rows(broker, entity_id, move.fragment_no)
            self._clustered.catalog.end_move(move)
        except (StoreFailed, ServiceBusError):
            self._look_again()
        finally:
            self._clearing.pop(move, None)

    async def _serve(self, contents: CatalogContents) -> None:
        """Serve what is here: entities that came, and fragments that were set aside and stay."""
        unit = self._clustered
        missing = self._missing(contents)
        # Those on which a store failed while they were brought in are known already, and do nothing by themselves yet.
        self._planned |= {row.entity_id for row in missing}
        unit.absent = self._held() | self._planned
        for row in missing:
            unit.plan_entity(row, contents)
        for broker in self._open():
            for plan in [one for one in broker.plans.values() if one.handle.fragment is None]:
                await self._bring_in(broker, plan)
        for row in [row for row in contents.entities if row.entity_id in self._planned]:
            if unit.has(row):
                await unit.begin_entity(row, contents)
        unit.absent -= self._planned
        self._planned.clear()

    async def _bring_in(self, broker: MessageBroker, plan: FragmentPlan) -> None:
        """Open a fragment that an open store has beside those that it was opened with."""
        handle, store = plan.handle, broker.store
        found = await broker.use(lambda: store.find_fragment(handle.entity_id, handle.number))
        if found is None:
            aside = aside_of(handle.entity_id)
            await broker.use(lambda: store.relabel_fragment(aside, handle.number, handle.entity_id, 0))
            found = await broker.use(lambda: store.find_fragment(handle.entity_id, handle.number))
        if found is None:
            self._unit.store_events(
                broker.store_id, "lacks a fragment", f"fragment {handle.number} of entity {handle.entity_id}"
            )
        elif handle.fragment is None:
            await broker.host.import_fragment(plan, *found)

    def _look_again(self, after_s: float = AGAIN_S) -> None:
        """Ask the catalog once more, soon."""
        if self._is_stopped or (self._again is not None and after_s):
            return
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(after_s, self._begin_look)

    def _begin_look(self) -> None:
        self._again = None
        task = asyncio.get_running_loop().create_task(self._look(), name="look-at-moves")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look(self) -> None:
        try:
            await self._clustered.read_again()
        except StoreFailed:
            self._look_again()
