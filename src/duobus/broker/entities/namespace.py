"""Namespace: entities by name. It resolves an address once, when a link attaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from duobus.broker.admission import Throttle
from duobus.broker.entities.queue import Queue
from duobus.broker.entities.topic import Topic
from duobus.errors import NotAllowed, NotImplementedYet
from duobus.model.address import Address, not_found
from duobus.model.descriptions import AccessRule

if TYPE_CHECKING:
    from duobus.broker.entities.destination import Destination
    from duobus.broker.entities.relay import HybridConnection
    from duobus.fragment.forward_dedup import Origin


class RemoteEntities(Protocol):
    """What a server knows of entities that others have, and how it gets there; see ``cluster/forwarding/sender.py``."""

    def find(self, namespace: str, path: str) -> Destination | None:
        """An entity of another server as a destination; None when there is none of this name for certain.

        Raises:
            StoreUnavailable: It is not known at present.
        """

    def knows(self, namespace: str, path: str) -> bool:
        """Whether the catalog names such an entity."""

    async def refresh(self) -> None:
        """Read anew what the catalog names."""

    def arrived(self, origin: Origin, epoch: int) -> None:
        """An origin is here now: what a former owner of it still has on its way here does not count any more."""

    def gone(self, origin: Origin, counts: list[int]) -> list[int]:
        """Which messages their origin, elsewhere, does not have any more, as far as that is known by now."""


class Namespace:
    """The entities of one namespace.

    Attributes:
        name: Its name, as configured.
        queues: Lower-case path to queue.
        topics: Lower-case path to topic.
        relays: Lower-case path to relay.
        unbuilt: Lower-case path to what this version stores and does not serve (a topic, say).
        throttle: Its rate, or None when it has no bound.
        is_shared: Other servers have entities of it, too.
        remote_entities: Finds these, where there are any.
    """

    __slots__ = ("is_shared", "name", "queues", "relays", "remote_entities", "throttle", "topics", "unbuilt")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}
        self.relays: dict[str, HybridConnection] = {}
        self.unbuilt: dict[str, str] = {}
        self.throttle: Throttle | None = None
        self.is_shared = False
        self.remote_entities: RemoteEntities | None = None

    def access_rules(self, segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
        """The access rules of the entities on the way to a resource, each with its entity's lower-case segments."""
        for length in range(1, len(segments) + 1):
            path = tuple(segments[:length])
            key = "/".join(path)
            entity = self.queues.get(key) or self.topics.get(key) or self.relays.get(key)
            for rule in () if entity is None else entity.description.authorization_rules:
                yield path, rule

    def rules_of_entities(self) -> Iterator[tuple[str, tuple[AccessRule, ...]]]:
        """Path and access rules of each queue, topic and relay that has any."""
        entities: list[Queue | HybridConnection] = [
            *self.queues.values(),
            *self.topics.values(),
            *self.relays.values(),
        ]
        for entity in entities:
            if entity.description.authorization_rules:
                yield entity.path, entity.description.authorization_rules

    def resolve(self, address: Address) -> Queue:
        """The queue, topic or subscription of an address, whichever of its nodes is meant.

        Raises:
            EntityNotFound: There is none.
            NotAllowed: A relay has this address.
            NotImplementedYet: The entity is stored, but this version cannot serve it.
        """
        queue = self._find(address)
        if queue is None:
            if address.key in self.relays:
                raise NotAllowed(f"'{address.path}' is a relay: it is reached by HTTP and WebSocket, and not by AMQP.")
            kind = self.unbuilt.get(address.key)
            if kind is not None:
                raise NotImplementedYet(f"'{address.path}' is a {kind}, which this version of duobus stores only.")
            raise not_found(f"sb://{self.name}/{address.path}")
        return queue

    def is_there(self, address: Address) -> bool:
        """Whether a queue, topic or subscription of this server has this address; stored ones that are not served, too.

        It does not tell whether a topic has the sub-queue of an address.
        """
        return self._find(address) is not None or (address.subscription is None and address.key in self.unbuilt)

    def is_taken(self, path: str) -> bool:
        """Whether an entity has this name; queues, topics and relays share one name space."""
        key = path.lower()
        return key in self.queues or key in self.topics or key in self.relays or key in self.unbuilt

    def has(self, path: str) -> bool:
        """Whether there is an entity of this name, here or at another server."""
        return self.is_taken(path) or (self.remote_entities is not None and self.remote_entities.knows(self.name, path))

    def relay_of(self, segments: Sequence[str]) -> HybridConnection | None:
        """The relay that serves a path: its name begins the path, and that of no entity does so with more segments."""
        if not self.relays:
            return None
        lower = [segment.lower() for segment in segments]
        for length in range(len(lower), 0, -1):
            key = "/".join(lower[:length])
            if key in self.queues or key in self.topics:
                return None
            if key in self.relays:
                return self.relays[key]
        return None

    def topic(self, path: str) -> Topic:
        """The topic of this name.

        Raises:
            EntityNotFound: There is none.
        """
        topic = self.topics.get(path.lower())
        if topic is None:
            raise not_found(f"sb://{self.name}/{path}")
        return topic

    def entities(self) -> Iterator[Queue]:
        """Everything that can be used by itself: a topic's subscriptions come before the topic."""
        yield from self.queues.values()
        for topic in self.topics.values():
            yield from topic.subscriptions.values()
            yield topic

    def serves(self, entity: Queue) -> bool:
        """Whether something that ``entities`` gave earlier is still there."""
        top = entity.top.path.lower()
        if entity.top is entity:
            return self.queues.get(top) is entity or self.topics.get(top) is entity
        topic = self.topics.get(top)
        return topic is not None and topic.subscriptions.get(entity.path.rpartition("/")[2].lower()) is entity

    def _find(self, address: Address) -> Queue | None:
        topic = self.topics.get(address.key)
        if address.subscription is None:
            # A topic has no dead letters of its own: they are its subscriptions'.
            return self.queues.get(address.key) or (None if address.sub_queue else topic)
        return None if topic is None else topic.subscriptions.get(address.subscription.lower())
