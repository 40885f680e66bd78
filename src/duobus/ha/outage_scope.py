"""What an error says is away: an entity as a whole, or the keys of some of its fragments (PN3, PE17, IN2).

duobus marks the errors of a messaging store that is away (docs/reference/errors.md); Azure says "busy" and no more. A
partitioned entity has fragments in several stores. With one of them away its messages without a key go on, and those
with a key that belongs there are refused; so what is known of an entity is kept by *key group* as well. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from duobus.ha.sdk import listed

if TYPE_CHECKING:
    pass

#: Groups of keys that a pair knows to be away. An entity has 16 fragments, of which one store has 4; each group is
#: pinged by itself. Sends of a group beyond them are raised to their callers.
AWAY_GROUPS_MAX: Final = 256
#: Keys that are kept because nothing but their refusal tells to which group they belong; the oldest is forgotten, and
#: refused once more.
AWAY_KEYS_MAX: Final = 10_000
#: As ``duobus.errors.StoreUnavailable`` writes it.
_MARK: Final = re.compile(
    r"\bStoreUnavailable:([\w.~/$-]{1,512})(?:, Fragment:(\d{1,5})(?:-(\d{1,5}))?/([1-9]\d{0,4}))?(?!\S)", re.ASCII
)
_PARTITION_KEY: Final = "x-opt-partition-key"
#: A key for a ping is looked for among so many for each slot: it is not among them once in e^64 times.
_TRIES_A_SLOT: Final = 64


class Away(NamedTuple):
    """The entity and the fragments that a mark names.

    Attributes:
        entity: The entity, or the part of it that has a path of its own.
        first, last: Slots of it that are away.
        slots: How many it has; 0 when all of it is away.
    """

    entity: str
    first: int
    last: int
    slots: int


class KeyGroup(NamedTuple):
    """Keys of an entity whose messages are away together.

    Attributes:
        entity: Its path, as its senders call it.
        fragment: What the error called it: ``13/16`` is slot 13 of 16.
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
    """Return what an error of the SDK says is away; None when it says no such thing."""
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
    """Session ids, else partition keys, of whatever ``send_messages`` takes; messages with neither have none."""
    return {key for one in listed(message) if (key := _key_of(one)) is not None}


def _key_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str | None:
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    key = None if raw.properties is None else raw.properties.group_id
    if key is None and raw.annotations:
        key = raw.annotations.get(_PARTITION_KEY, raw.annotations.get(_PARTITION_KEY.encode()))
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else None if key is None else str(key)


class KeyGroups:
    """The key groups that are away, and how to tell that a key is in one of them. Bounded.

    Which keys belong to a fragment of an entity is computed. Of what the error calls by another path than the sender
    does, as the shards of a sharded queue, it is known of keys that were refused only.
    """

    __slots__ = ("_groups", "_keys", "_number")

    def __init__(self) -> None:
        #: Entity to its groups, each with its slots if they are known.
        self._groups: dict[str, dict[KeyGroup, _Slots | None]] = {}
        self._number = 0
        #: (entity, key) to the group that it was seen in, oldest first.
        self._keys: dict[tuple[str, str], KeyGroup] = {}

    def has(self, entity: str) -> bool:
        """Whether the entity has any."""
        return entity in self._groups

    def of_entity(self, entity: str) -> list[KeyGroup]:
        """All of an entity."""
        return list(self._groups.get(entity, ()))

    def of_keys(self, entity: str, keys: Iterable[str]) -> list[KeyGroup]:
        """Those that any of the keys belongs to."""
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
        """Keep what an error said of a send.

        Args:
            entity: Path of the sender.
            away: What the error said.
            keys: Of the messages that were refused.

        Returns:
            What is away: the entity, or a group of its keys; None when there are more groups than are kept.
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
        """A group is there again."""
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
