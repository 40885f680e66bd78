"""The scope of an outage, by its error: an entity as a whole, or the keys of some of its fragments (PN3, PE17, IN2).

duobus marks the errors of a messaging store that is away (docs/reference/errors.md); Azure says only "busy". A
partitioned entity has fragments in several stores. With one store away, messages without a key are still accepted, and
messages whose key belongs to that store are refused; so the state of an entity is kept by *key group* as well. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from zlib import crc32

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from duobus.ha.sdk import listed

#: Groups of keys that a pair knows to be away. An entity has 16 fragments, of which one store has 4; each group has
#: pings of its own. A failed send of a further group is raised to its caller.
AWAY_GROUPS_MAX: Final = 256
#: Keys whose group is known only because they were refused. When there are more, the oldest is forgotten, and is
#: refused once more.
AWAY_KEYS_MAX: Final = 10_000
#: As ``duobus.errors.StoreUnavailable`` writes it.
_MARK: Final = re.compile(
    r"\bStoreUnavailable:([\w.~/$-]{1,512})(?:, Fragment:(\d{1,5})(?:-(\d{1,5}))?/([1-9]\d{0,4}))?(?!\S)", re.ASCII
)
_PARTITION_KEY: Final = "x-opt-partition-key"
#: Keys that are tried for each slot to find a key for a ping: none of them fits once in e^64 times.
_TRIES_A_SLOT: Final = 64


class Away(NamedTuple):
    """The entity and the fragments that a mark names.

    Attributes:
        entity: The entity, or a shard of it that has a path of its own.
        first, last: The first and the last slot that is away.
        slots: Number of slots of the entity; 0 when all of the entity is away.
    """

    entity: str
    first: int
    last: int
    slots: int


class KeyGroup(NamedTuple):
    """Keys of an entity whose messages are away together.

    Attributes:
        entity: Path of the entity, as its senders write it.
        fragment: Name of the group in the error: ``13/16`` is slot 13 of 16.
    """

    entity: str
    fragment: str


class _Slots(NamedTuple):
    """The keys of a group, where they can be computed."""

    first: int
    last: int
    slots: int

    def has(self, key: str) -> bool:
        return self.first <= slot_of(key, self.slots) <= self.last


def store_away(error: BaseException) -> Away | None:
    """Return the scope of an outage that an error of the SDK names; None when the error names none."""
    if not isinstance(error, ServiceBusServerBusyError):
        return None
    # The one thing that the SDK lets through everywhere is the text: of a refused message, a link that was ended, and
    # an answer of the management node, which loses the error's map.
    found = _MARK.search(str(error))
    if found is None:
        return None
    entity, first, last, slots = found.groups()
    if slots is None:
        return Away(entity, 0, 0, 0)
    return Away(entity, int(first), int(last or first), int(slots))


def slot_of(key: str, slots: int) -> int:
    """The slot of a session id or partition key, as a duobus broker places it; it is the same in all versions."""
    return crc32(b"s" + key.encode("utf-8", "replace")) % slots


def keys_of(message: Any) -> set[str]:
    """The session ids, else the partition keys, of anything that ``send_messages`` takes."""
    return {key for one in listed(message) if (key := _key_of(one)) is not None}


def _key_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str | None:
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    key = None if raw.properties is None else raw.properties.group_id
    if key is None and raw.annotations:
        key = raw.annotations.get(_PARTITION_KEY, raw.annotations.get(_PARTITION_KEY.encode()))
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else None if key is None else str(key)


class KeyGroups:
    """The key groups that are away, and whether a key is in one of them. Bounded.

    The keys of a fragment are computed. This is impossible where the error names another path than the sender does, as
    for the shards of a sharded queue; such a group has only those keys that were refused.
    """

    __slots__ = ("_groups", "_keys", "_number")

    def __init__(self) -> None:
        #: Entity to its groups, each with its slots if they are known.
        self._groups: dict[str, dict[KeyGroup, _Slots | None]] = {}
        self._number = 0
        #: (entity, key) to the group that it was seen in, oldest first.
        self._keys: dict[tuple[str, str], KeyGroup] = {}

    def has(self, entity: str) -> bool:
        """Whether a key group of the entity is away."""
        return entity in self._groups

    def of_entity(self, entity: str) -> list[KeyGroup]:
        """All key groups of an entity that are away."""
        return list(self._groups.get(entity, ()))

    def of_keys(self, entity: str, keys: Iterable[str]) -> list[KeyGroup]:
        """The key groups that are away and have any of the keys."""
        found: dict[KeyGroup, None] = {}
        groups = self._groups.get(entity)
        if groups:
            for key in keys:
                seen = self._keys.get((entity, key))
                if seen is not None:
                    found[seen] = None
                found.update((group, None) for group, slots in groups.items() if slots is not None and slots.has(key))
        return list(found)

    def note(self, entity: str, away: Away, keys: set[str]) -> str | KeyGroup | None:
        """Record the scope of an outage that the error of a send named.

        Args:
            entity: Path of the entity, as the sender writes it.
            away: The scope that the error named.
            keys: Keys of the messages that were refused.

        Returns:
            That which is away: the entity, or a group of its keys; None when there are more groups than are kept.
        """
        is_own = away.entity.strip("/").casefold() == entity.strip("/").casefold()
        if not away.slots and (is_own or not keys):
            return entity
        fragment = "" if not away.slots else f"{_range(away)}/{away.slots}"
        group = KeyGroup(entity, fragment if is_own else f"{away.entity} {fragment}".rstrip())
        groups = self._groups.get(entity)
        if groups is None or group not in groups:
            if self._number >= AWAY_GROUPS_MAX:
                return None
            self._number += 1
            slots = _Slots(away.first, away.last, away.slots) if is_own else None
            groups = self._groups.setdefault(entity, {})
            groups[group] = slots
        slots = groups[group]
        for key in keys:
            if slots is None or not slots.has(key):
                self._keys.pop((entity, key), None)
                if len(self._keys) >= AWAY_KEYS_MAX:
                    del self._keys[next(iter(self._keys))]
                self._keys[entity, key] = group
        return group

    def forget(self, group: KeyGroup) -> None:
        """Note that a group is there again."""
        groups = self._groups.get(group.entity)
        if groups is None or group not in groups:
            return
        del groups[group]
        self._number -= 1
        if not groups:
            del self._groups[group.entity]
        for place in [place for place, seen in self._keys.items() if seen == group]:
            del self._keys[place]

    def any_key(self, group: KeyGroup, fresh: str) -> str | None:
        """Return a key of a group: a new one that begins with ``fresh``, or one that was refused; None without any."""
        slots = self._groups.get(group.entity, {}).get(group)
        if slots is not None:
            tries = (f"{fresh}-{number}" for number in range(_TRIES_A_SLOT * slots.slots))
            return next(filter(slots.has, tries), None)
        return next((key for (entity, key), seen in self._keys.items() if seen == group), None)


def _range(away: Away) -> str:
    return str(away.first) if away.first == away.last else f"{away.first}-{away.last}"
