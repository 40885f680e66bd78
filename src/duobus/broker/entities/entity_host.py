"""EntityHost: what the work on entities needs of the scale unit that hosts them.

Topics, the creation of many entities at once and moves of fragments are parts of a scale unit, in modules of their own.
They know this protocol and not the scale unit itself, which is made of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from duobus.broker.entities.idle_tracking import IdleDeletion
    from duobus.broker.entities.namespace import Namespace
    from duobus.broker.entities.queue import Queue
    from duobus.broker.forwarding.service import ForwardingService
    from duobus.broker.message_broker import MessageBroker
    from duobus.model.descriptions import QueueDescription
    from duobus.model.quotas import Quotas
    from duobus.storage.catalog.interface import Catalog
    from duobus.storage.catalog_rows import EntityRow, SlotRow


class EntityHost(Protocol):
    """A scale unit, as far as work on its entities goes; the attributes and methods are those of ``ScaleUnit``."""

    brokers: dict[int, MessageBroker]
    catalog: Catalog
    namespaces: dict[str, Namespace]
    quotas: Quotas
    forwarding: ForwardingService
    idle_watch: IdleDeletion
    new_id: Callable[[], uuid.UUID]
    store_events: Callable[[int, str, str], None]
    strays: dict[int, set[tuple[int, int]]]

    def namespace(self, name: str) -> Namespace:
        """The namespace of this name, made when there is none."""

    def now_ms(self) -> int:
        """Broker time."""

    def place(self, home: Namespace, name: str, *, is_partitioned: bool) -> tuple[SlotRow, ...]:
        """Where the fragments of a new queue or topic belong."""

    def make_queue(self, row: EntityRow) -> Queue:
        """The queue of a row of the catalog; its fragments are not there yet."""

    async def create_queue(
        self, namespace: str, description: QueueDescription, *, demand_targets: bool = True
    ) -> Queue:
        """Create a queue and return it once it is live."""

    def report_left_out(self, entity: Queue) -> None:
        """Log the stores that have nothing of a new entity only because they are away."""

    def withdraw(self, entity: Queue) -> None:
        """Undo a creation that a store has failed."""

    async def clear(self, entity: Queue) -> None:
        """Delete what the stores hold of an entity that was taken away."""

    def notify(self, queue: Queue) -> None:
        """An entity has other properties, or is gone."""
