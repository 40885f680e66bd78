"""Creating many entities with few commits: what a configuration asks for is there at once, or nearly.

One after the other, each takes two commits of the catalog and one of a store for each fragment, some 3 ms apiece. Here
the catalog takes the intents of a whole batch in one commit, each store its fragments of it in one, and the catalog
the word that they are live in one. A crash in between leaves intents, which the next start brings to their end (I31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from duobus.broker.protocols import FragmentPlan
from duobus.errors import EntityAlreadyExists, RowsExist, ServiceBusError, StoreFailed, StoreUnavailable
from duobus.model.descriptions import QUEUE, QueueDescription, to_json
from duobus.storage.catalog_rows import INTENT, EntityRow

if TYPE_CHECKING:
    from duobus.broker.entities.entity_host import EntityHost
    from duobus.broker.entities.namespace import Namespace
    from duobus.broker.entities.queue import Queue
    from duobus.broker.message_broker import MessageBroker

QueueT = TypeVar("QueueT", bound="Queue")

#: How long other stores are tried for an entity on which a store has failed. A store that stalls takes its timeout.
CREATION_S: Final = 5.0
#: Entities that are created at one go: 16 fragments each are some 30 ms of work for four stores.
BATCH_ENTITIES: Final = 250


async def create_fragments(plans: Iterable[FragmentPlan]) -> None:
    """Create fragments in their stores, with one commit in each.

    Raises:
        StoreUnavailable: A store is away, or failed on this. Others may have theirs.
    """
    by_broker: dict[MessageBroker, list[FragmentPlan]] = {}
    for plan in plans:
        by_broker.setdefault(plan.handle.broker, []).append(plan)
    outcomes = await asyncio.gather(
        *(broker.host.create_fragments(own) for broker, own in by_broker.items()), return_exceptions=True
    )
    # Only when all have come to their end: who is told of a failure may take all of it back.
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


class NotCreated(StoreUnavailable):
    """A store has failed on what an entity was to have there; nothing of it stays.

    Attributes:
        entity: The entity.
    """

    def __init__(self, entity: Queue, error: BaseException) -> None:
        super().__init__(f"The {entity.kind} '{entity.path}' could not be created: {error}")
        self.entity = entity


async def create_somewhere(attempt: Callable[[], Awaitable[QueueT]]) -> QueueT:
    """Create an entity, again for as long as a store that was well before has failed on it.

    Raises:
        StoreUnavailable: There is no store that can hold it, or it took too long to find one.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + CREATION_S
    while True:
        try:
            return await attempt()
        except NotCreated as error:
            # A store that has failed on it is not there now, so the next try has others.
            if loop.time() >= until_s or all(handle.store.state == "open" for handle in error.entity.fragments):
                raise


async def drop_from_stores(entity: Queue) -> None:
    """Delete what the stores hold of a queue or topic, from all that are there.

    Raises:
        StoreFailed, StoreUnavailable: Some may hold something of it still.
    """
    failed: list[StoreFailed | ServiceBusError] = []
    for broker in {handle.store.store_id: handle.broker for handle in entity.fragments}.values():
        try:
            await broker.host.drop_entity(entity.entity_id)
        except (StoreFailed, ServiceBusError) as error:
            failed.append(error)
    if failed:
        raise failed[0]


def withdrawn_path(path: str, entity_id: int) -> str:
    """The path by which the catalog knows an entity that could not be created: no entity can be called so."""
    return f"{path}#{entity_id}"


def plans_of(queue: Queue) -> list[FragmentPlan]:
    """What the stores of a queue have to know of its fragments."""
    settings = queue.settings()
    return [FragmentPlan(handle, settings) for handle in queue.fragments]


async def create_queues(
    unit: EntityHost,
    home: Namespace,
    wanted: Sequence[QueueDescription],
    refused: Callable[[QueueDescription, ServiceBusError], None],
) -> None:
    """Create queues before there is any client: what they forward to need not be there.

    ``refused`` is told of each that was not created, and why; the others are.
    """
    for start in range(0, len(wanted), BATCH_ENTITIES):
        await _create_batch(unit, home, wanted[start : start + BATCH_ENTITIES], refused)


async def _create_batch(
    unit: EntityHost,
    home: Namespace,
    wanted: Sequence[QueueDescription],
    refused: Callable[[QueueDescription, ServiceBusError], None],
) -> None:
    made: list[tuple[Queue, QueueDescription]] = []
    with unit.catalog.together():
        for about in wanted:
            try:
                queue = _begin(unit, home, about)
            except ServiceBusError as error:
                refused(about, error)
                continue
            # Where the next ones go, and whether there is room for them, depends on how many there are.
            home.queues[about.name.lower()] = queue
            made.append((queue, about))
    whole = made
    try:
        await create_fragments([plan for queue, _ in made for plan in plans_of(queue)])
    except (StoreFailed, ServiceBusError):
        # What lives in other stores than the one that is away need not do without.
        whole = [(queue, about) for queue, about in made if await _create_singly(unit, queue, about, refused)]
    with unit.catalog.together():
        for queue, _ in whole:
            unit.catalog.mark_live(queue.entity_id)
    for queue, _ in whole:
        unit.report_left_out(queue)
        unit.idle_watch.begin(queue)
        unit.forwarding.begin(queue)


def _begin(unit: EntityHost, home: Namespace, about: QueueDescription) -> Queue:
    if home.is_taken(about.name):
        raise EntityAlreadyExists(f"The entity '{about.name}' exists already. Choose another name.")
    slots = unit.place(home, about.name, is_partitioned=about.enable_partitioning)
    encoded = to_json(about)
    entity_id = unit.catalog.begin_create(home.name, QUEUE, about.name, encoded, slots)
    return unit.make_queue(EntityRow(entity_id, home.name, QUEUE, about.name, encoded, INTENT, len(slots), slots))


async def _create_singly(
    unit: EntityHost,
    queue: Queue,
    about: QueueDescription,
    refused: Callable[[QueueDescription, ServiceBusError], None],
) -> bool:
    """Create the fragments of one queue, or all of it elsewhere; return whether it still has to be begun."""
    try:
        await create_fragments(plans_of(queue))
    except RowsExist as error:
        # To undo it would delete what is another's: the intent stays, and holds the name.
        del unit.namespace(queue.namespace).queues[about.name.lower()]
        refused(about, error)
        return False
    except (StoreFailed, ServiceBusError):
        del unit.namespace(queue.namespace).queues[about.name.lower()]
        unit.withdraw(queue)
    else:
        return True
    try:
        await unit.create_queue(queue.namespace, about, demand_targets=False)
    except ServiceBusError as error:
        refused(about, error)
    return False


# In what the description of an entity that exists differs from what a configuration asks for.


def differences(kept: msgspec.Struct, asked: msgspec.Struct) -> list[str]:
    """Names of the properties in which two descriptions differ, times of change excepted."""
    ignored = {"name", "created_at_ms", "updated_at_ms", "accessed_at_ms"}
    names: Iterable[str] = kept.__struct_fields__
    return [name for name in names if name not in ignored and getattr(kept, name) != getattr(asked, name)]
