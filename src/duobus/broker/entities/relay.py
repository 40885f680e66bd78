"""Relays: hybrid connections as entities. They have a name, properties and access rules, and nothing in any store.

Who listens on one, and who is connected through it, the gateway knows. Where several servers share a catalog, every one
of them has all relays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from duobus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded, ServerBusy, StoreFailed
from duobus.model.descriptions import ACTIVE, from_json, to_json
from duobus.model.relay.description import RELAY, HybridConnectionDescription, check_relay, check_relay_update
from duobus.storage.catalog_rows import DELETING, INTENT, EntityRow

if TYPE_CHECKING:
    from duobus.broker.entities.entity_host import EntityHost


class HybridConnection:
    """A relay as an entity.

    Attributes:
        entity_id: Its number in the catalog.
        namespace: Name of its namespace.
        description: Its properties.
        is_deleted: It is gone.
    """

    __slots__ = ("description", "entity_id", "is_deleted", "namespace")

    kind = RELAY

    def __init__(self, entity_id: int, namespace: str, description: HybridConnectionDescription) -> None:
        self.entity_id = entity_id
        self.namespace = namespace
        self.description = description
        self.is_deleted = False

    @property
    def path(self) -> str:
        """Its name."""
        return self.description.name

    @property
    def is_active(self) -> bool:
        """Whether it may be used."""
        return not self.is_deleted and self.description.status == ACTIVE

    def segments(self) -> tuple[str, ...]:
        """The lower-case segments of its path."""
        return tuple(self.path.lower().split("/"))


class RelayLife:
    """The relays of a scale unit: makes, changes and deletes them while clients are at work."""

    __slots__ = ("_followers", "_unit")

    def __init__(self, unit: EntityHost) -> None:
        self._unit = unit
        self._followers: list[Callable[[HybridConnection], None]] = []

    def follow(self, follower: Callable[[HybridConnection], None]) -> None:
        """Have ``follower`` called with every relay that has changed or is deleted, at once."""
        self._followers.append(follower)

    def found(self, rows: Sequence[EntityRow]) -> None:
        """Take in what the catalog holds, and finish what a crash has left half done.

        Raises:
            StoreFailed: The catalog has refused the change.
        """
        for row in rows:
            if row.kind == RELAY and row.state == DELETING:
                self._unit.catalog.finish_delete(row.entity_id)
            elif row.kind == RELAY and row.state == INTENT:
                self._unit.catalog.mark_live(row.entity_id)
        self.refresh(row for row in rows if row.state != DELETING)

    def refresh(self, rows: Iterable[EntityRow]) -> None:
        """Make the relays those of the catalog: other servers that share it may have changed them."""
        wanted = {(row.namespace.lower(), row.path.lower()): row for row in rows if row.kind == RELAY}
        for space in list(self._unit.namespaces.values()):
            for key, relay in list(space.relays.items()):
                if (space.name.lower(), key) not in wanted:
                    self._forget(relay)
        for (namespace, key), row in wanted.items():
            description = from_json(row.description, HybridConnectionDescription)
            known = self._unit.namespace(namespace).relays.get(key)
            if known is not None and known.entity_id != row.entity_id:
                self._forget(known)
                known = None
            if known is None:
                made = HybridConnection(row.entity_id, row.namespace, description)
                self._unit.namespace(namespace).relays[key] = made
            elif known.description != description:
                known.description = description
                self._notify(known)

    def create(self, namespace: str, about: HybridConnectionDescription) -> HybridConnection:
        """Create a relay; it is durable on return.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong.
            EntityAlreadyExists: The name is taken.
            QuotaExceeded: The namespace has as many entities as it may.
            ServerBusy: The catalog is lost.
        """
        home = self._unit.namespace(namespace)
        check_relay(about)
        if home.has(about.name):
            raise EntityAlreadyExists(f"The entity '{about.name}' exists already. Choose another name.")
        number = len(home.queues) + len(home.topics) + len(home.relays) + len(home.unbuilt)
        if number >= self._unit.quotas.entities:
            raise QuotaExceeded(
                f"The namespace '{home.name}' has {number} entities of at most {self._unit.quotas.entities}, so "
                f"'{about.name}' cannot be created. Delete some, or raise the quota (--quota)."
            )
        now_ms = self._unit.now_ms()
        about = msgspec.structs.replace(about, created_at_ms=now_ms, updated_at_ms=now_ms)
        catalog = self._unit.catalog
        try:
            with catalog.together():
                entity_id = catalog.begin_create(home.name, RELAY, about.name, to_json(about), ())
                catalog.mark_live(entity_id)
        except StoreFailed as error:
            raise ServerBusy(f"The relay '{about.name}' cannot be created now: {error}") from error
        made = home.relays[about.name.lower()] = HybridConnection(entity_id, home.name, about)
        return made

    def update(self, namespace: str, about: HybridConnectionDescription) -> HybridConnection:
        """Change the properties of a relay; durable on return, and in force everywhere.

        Raises:
            EntityNotFound: There is none of this name.
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong, or cannot be changed.
            ServerBusy: The catalog is lost.
        """
        relay = self.find(namespace, about.name)
        wanted = check_relay_update(relay.description, about)
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self._unit.now_ms())
        try:
            self._unit.catalog.update_description(relay.entity_id, to_json(wanted))
        except StoreFailed as error:
            raise ServerBusy(f"The properties of '{relay.path}' cannot be changed now: {error}") from error
        relay.description = wanted
        self._notify(relay)
        return relay

    def delete(self, namespace: str, path: str) -> None:
        """Delete a relay; who is connected through it is told.

        Raises:
            EntityNotFound: There is none of this name.
            ServerBusy: The catalog is lost.
        """
        relay = self.find(namespace, path)
        catalog = self._unit.catalog
        try:
            with catalog.together():
                catalog.begin_delete(relay.entity_id)
                catalog.finish_delete(relay.entity_id)
        except StoreFailed as error:
            raise ServerBusy(f"The relay '{relay.path}' cannot be deleted now: {error}") from error
        self._forget(relay)

    def find(self, namespace: str, path: str) -> HybridConnection:
        """The relay of this name.

        Raises:
            EntityNotFound: There is none.
        """
        relay = self._unit.namespace(namespace).relays.get(path.lower())
        if relay is None:
            raise EntityNotFound(f"There is no relay '{path}' in the namespace '{namespace}'. Create it first.")
        return relay

    def put(self, namespace: str, about: HybridConnectionDescription) -> HybridConnection:
        """Create a relay, or change one that is there; see ``create`` and ``update``."""
        if about.name.lower() in self._unit.namespace(namespace).relays:
            return self.update(namespace, about)
        return self.create(namespace, about)

    def _forget(self, relay: HybridConnection) -> None:
        self._unit.namespace(relay.namespace).relays.pop(relay.path.lower(), None)
        relay.is_deleted = True
        self._notify(relay)

    def _notify(self, relay: HybridConnection) -> None:
        for follower in list(self._followers):
            follower(relay)
