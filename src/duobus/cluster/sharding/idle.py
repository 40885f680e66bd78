"""AutoDeleteOnIdle of sharded entities: deleted when no shard is used, and no use that was answered is lost (0069).

Every owner looks after its own shards. One that nobody has used for long enough is *told as idle*: an entry beside its
own in the catalog, which counts once the store has been told of it, so that no owner can be without it. Before such a
shard is used again its owner takes the entry back, and looks whether the whole is still there; only then is the use
answered. The whole is deleted by any server that sees all shards told as idle, in one change of the catalog that does
nothing unless all of these entries are there at that moment. So either the use comes first, and nothing is deleted, or
the deletion does, and the use is refused like any of an entity that is gone (I42).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from duobus.broker.entities.queue import LastUse, Queue
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import EntityAlreadyExists, ServerBusy, ServiceBusError, StoreFailed
from duobus.model.address import not_found, whole_path
from duobus.storage.catalog_rows import DELETING, LIVE, EntityRow

if TYPE_CHECKING:
    from duobus.cluster.directory import Directory
    from duobus.cluster.sharding.host import ShardHost

#: Kind of an entry that tells a shard as idle; its description is the limit, in milliseconds, for which it is.
IDLE_SHARD: Final = "idle-shard"
#: What the path of such an entry has behind that of the shard.
_BEHIND: Final = "#idle"


class ToldIdle(LastUse):
    """Stands in the place of the last use of a shard that was told as idle: any use takes that back first.

    Attributes:
        entry_id: The catalog's number of the entry.
        is_over: It was taken back.
    """

    __slots__ = ("_end", "entry_id", "is_over")

    def __init__(self, entry_id: int, unit: ShardHost, end: Callable[[ToldIdle], None]) -> None:
        super().__init__(None, unit.time)
        self.entry_id = entry_id
        self.is_over = False
        self._end = end

    def note(self) -> None:
        """Take it back.

        Raises:
            EntityNotFound: The whole was deleted before.
            ServerBusy: The catalog is lost, so that nobody knows; the use is not answered.
        """
        if not self.is_over:
            self._end(self)

    def end(self) -> None:
        """See LastUse; raises as ``note``."""
        self.note()


class ShardIdleness:
    """What a server does for AutoDeleteOnIdle of sharded entities.

    Args:
        unit: Whose stores have shards.
        find: Gives what this server has of a whole, by namespace and lower-case path.
        gone: Hears of a whole that was deleted.
    """

    def __init__(
        self, unit: ShardHost, find: Callable[[tuple[str, str]], Queue | None], gone: Callable[[Queue], None]
    ) -> None:
        self._unit = unit
        self._find = find
        self._gone = gone
        self._tasks: set[asyncio.Task[None]] = set()

    # -- shards of this server ----------------------------------------------------------------------------------

    def tell(self, shard: Queue) -> None:
        """A shard has been idle for long enough: from now on a use of it is one only once that is taken back."""
        unit, limit_ms = self._unit, shard.description.auto_delete_on_idle_ms
        try:
            entry_id = unit.catalog.begin_create(
                shard.namespace, IDLE_SHARD, f"{shard.path}{_BEHIND}", str(limit_ms).encode(), ()
            )
        except (StoreFailed, EntityAlreadyExists) as error:
            # It is looked at again when the time has passed once more.
            unit.idle_watch.begin(shard)
            unit.store_events(shard.fragments[0].store.store_id, "unfinished", f"'{shard.path}' is idle: {error}")
            return
        told = self._stand_in(shard, entry_id)
        task = asyncio.get_running_loop().create_task(self._count(shard, told), name="tell-idle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _count(self, shard: Queue, told: ToldIdle) -> None:
        """Have the store know that its catalog says so, and let it count from then on."""
        broker = shard.fragments[0].broker
        try:
            await broker.use(broker.store.keep_records)
            if not told.is_over and shard.idle is told:
                self._unit.catalog.mark_live(told.entry_id)
        except (StoreFailed, ServiceBusError) as error:
            self._unit.store_events(broker.store_id, "unfinished", f"'{shard.path}' is idle: {error}")

    def _stand_in(self, shard: Queue, entry_id: int) -> ToldIdle:
        told = shard.idle = ToldIdle(entry_id, self._unit, lambda told: self._take_back(shard, told))
        return told

    def _take_back(self, shard: Queue, told: ToldIdle) -> None:
        """A shard that was told as idle is about to be used."""
        unit, key = self._unit, whole_path(shard.path.lower())
        try:
            unit.catalog.finish_delete(told.entry_id)
            # Once the entry is gone, nothing can be deleted because of it; what was, is seen here.
            rows = unit.catalog.read().entities
        except StoreFailed as error:
            raise ServerBusy(f"Whether '{key}' was deleted as idle is not known: {error} Try again.") from error
        place = (shard.namespace.lower(), key)
        whole = next((row for row in rows if (row.namespace.lower(), row.path.lower()) == place), None)
        if whole is None or whole.state == DELETING:
            raise not_found(f"sb://{shard.namespace}/{key}")
        told.is_over = True
        unit.idle_watch.begin(shard)
        if shard.idle is not None:
            shard.idle.note()

    def adopted(self, shards: list[Queue], directory: Directory) -> None:
        """Shards of a store that is about to be opened: what was told of them by its former owner stands."""
        for shard in shards:
            row = directory.entry(shard.namespace, f"{shard.path}{_BEHIND}".lower()) if shard.is_shard else None
            if row is not None:
                self._stand_in(shard, row.entity_id)

    # -- the whole ----------------------------------------------------------------------------------------------

    def decide(self, directory: Directory) -> None:
        """Delete what is told as idle in all shards; forget what was told of shards that are gone."""
        told = {
            (row.namespace.lower(), row.path.lower()): row
            for row in directory.contents.entities
            if row.kind == IDLE_SHARD
        }
        if not told:
            return
        for place, entity in directory.sharded.items():
            limit_ms = entity.about.auto_delete_on_idle_ms
            entries = [told.get((place[0], f"{share.path}{_BEHIND}".lower())) for share in entity.shares]
            found = [one for one in entries if one is not None and _counts(one, limit_ms)]
            if limit_ms is not None and len(found) == len(entity.shares):
                self._delete(place, entity, [one.entity_id for one in found])
        for (namespace, path), row in told.items():
            if directory.entry(namespace, path.removesuffix(_BEHIND)) is None:
                self._unit.catalog.finish_delete(row.entity_id)

    def _delete(self, place: tuple[str, str], entity: ShardedEntityMap, entries: list[int]) -> None:
        unit = self._unit
        front = self._find(place)
        if front is None:
            return
        try:
            heard = unit.idle_watch.journal(front)
        except ServiceBusError:
            # What cannot be written down is not done.
            return
        is_done = unit.catalog.begin_delete_while(entity.row.entity_id, entity.row.description, entries)
        heard(None if is_done else "It was used at the last moment, or another server has deleted it.")
        if is_done:
            minutes = (front.description.auto_delete_on_idle_ms or 0) / 60_000
            self._gone(front)
            unit.store_events(
                0, "deleted", f"{front.kind} '{front.path}' was idle for {minutes:g} minutes (AutoDeleteOnIdle)"
            )


def _counts(row: EntityRow, limit_ms: int | None) -> bool:
    """Whether an entry tells a shard as idle for as long as it has to be now."""
    return row.state == LIVE and row.description == str(limit_ms).encode()
