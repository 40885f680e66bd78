"""Queues behind the management API: create, update, delete, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable

from duobus.broker import ScaleUnit
from duobus.broker.entities.namespace import Namespace
from duobus.broker.entities.queue import Queue
from duobus.clock import Clock
from duobus.errors import ArgumentInvalid, NotImplementedYet, ServerBusy, StoreFailed, StoreUnavailable
from duobus.gateway.rest.atom.last_known_counts import LastKnownCounts
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.topics import demand_all
from duobus.gateway.rest.atom.xml.entity import read_queue, write_queue
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.model.address import check_entity_name, not_found, whole_path
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, check_new, check_queue, check_tier
from duobus.model.tiers import Tier


class Queues:
    """The queues of all namespaces."""

    def __init__(
        self, unit: ScaleUnit, clock: Clock, tier: Tier, numbers: LastKnownCounts, new_key: Callable[[], str]
    ) -> None:
        self._unit = unit
        self._clock = clock
        self._new_key = new_key
        self._tier = tier
        self._numbers = numbers

    def find(self, home: Namespace, name: str) -> Queue:
        """The queue of a name.

        Raises:
            ArgumentInvalid: The name cannot be one.
            EntityNotFound: There is none.
            NotImplementedYet: It names something that this version keeps and does not serve.
        """
        # Servers ask each other for what they make of a queue among themselves; nobody can create such a name.
        check_entity_name(whole_path(name.lower()))
        queue = home.queues.get(name.lower())
        if queue is None:
            kind = home.unbuilt.get(name.lower())
            if kind is not None:
                raise NotImplementedYet(f"'{name}' is a {kind}, which this version of duobus stores only.")
            raise not_found(f"sb://{home.name}/{name}")
        return queue

    def wanted(self, node: Element, name: str, kept: Queue | None, place: RequestOrigin) -> QueueDescription:
        """The queue that a request describes, checked; nothing is done.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: Something of it is wrong.
        """
        old = None if kept is None else kept.description
        now_ms = self._clock.now_ms()
        count = None if kept is None else kept.partitions
        queue = read_queue(node, check_entity_name(name), old, place, self._new_key, now_ms, self._tier, count)
        check_queue(queue, self._tier.profile)
        check_tier(queue, self._tier)
        if kept is None:
            check_new(queue, self._tier)
        return queue

    async def create(self, home: Namespace, queue: QueueDescription) -> Queue:
        """Create a queue; see ``ScaleUnit.create_queue``.

        Raises:
            ServerBusy: The catalog is lost; nothing was created.
        """
        try:
            return await self._unit.create_queue(home.name, queue)
        except StoreFailed as error:
            raise ServerBusy(f"The queue '{queue.name}' cannot be created now: {error}") from error

    async def update(self, home: Namespace, queue: QueueDescription) -> Queue:
        """Change a queue; see ``ScaleUnit.update_queue``.

        Raises:
            StoreUnavailable: One of its fragments is away; nothing was changed.
        """
        demand_all(self.find(home, queue.name))
        return await self._unit.update_queue(home.name, queue, profile=self._tier.profile)

    async def delete(self, home: Namespace, name: str) -> None:
        """Delete a queue; see ``ScaleUnit.delete_queue``.

        Raises:
            StoreUnavailable: One of its fragments is away; nothing was done.
        """
        demand_all(self.find(home, check_entity_name(name)))
        try:
            await self._unit.delete_queue(home.name, name)
        except StoreFailed as error:
            raise StoreUnavailable(f"The queue '{name}' is gone, but not all of its messages yet: {error}") from error

    def inside(self, queue: Queue, place: RequestOrigin, *, is_answer: bool) -> str:
        """The elements of a queue; ``is_answer``: to a request that has created or changed it."""
        return write_queue(queue.description, self._numbers.of(queue), place, queue.partitions, is_answer=is_answer)


def demand_target(home: Namespace, name: str, wanted: QueueDescription | SubscriptionDescription) -> None:
    """Raise ArgumentInvalid when an entity called ``name`` is to forward to what does not exist."""
    for target in (wanted.forward_to, wanted.forward_dead_lettered_messages_to):
        if target is not None and target.lower() != name.lower() and not home.has(target):
            raise ArgumentInvalid(f"SubCode=40400. The forwarding target '{target}' does not exist. Create it first.")
