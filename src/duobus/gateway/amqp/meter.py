"""Counts what one connection does, in the name of the key that allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.model.address import MAIN, SUB_QUEUE_SEGMENTS, whole_path
from duobus.model.descriptions import Right
from duobus.model.metering import PING, SEND

if TYPE_CHECKING:
    from duobus.auth.authorizer import Grants
    from duobus.broker import Queue
    from duobus.gateway.amqp.server import AmqpServer
    from duobus.telemetry.metering_log import Count

#: Entities and kinds whose counts one connection remembers; past them it begins again, so that entities that come and
#: go are not kept alive by it.
KEYS_MAX: Final = 256


class Meter:
    """Finds the key once a minute for each entity and kind; a token that is put or that ends makes it look again."""

    __slots__ = ("_clock", "_counts", "_grants", "_metering", "_minutes", "_seen")

    def __init__(self, server: AmqpServer, grants: Grants) -> None:
        self._metering = server.metering
        self._clock = server.clock
        self._grants = grants
        # By entity, kind and, for dead letters, sub-queue: where they are counted in this minute.
        self._counts: dict[tuple[Queue, str] | tuple[Queue, str, int], Count] = {}
        self._seen = grants.changes
        self._minutes = server.metering.minutes

    def count(self, queue: Queue, kind: str, messages: int, size: int, operations: int, sub_queue: int = MAIN) -> None:
        """Count operations of one batch.

        ``sub_queue``: what they were done on. It is counted at its entity, and a token may have been put for it alone.
        """
        metering = self._metering
        if self._minutes != metering.minutes or self._seen != self._grants.changes or len(self._counts) > KEYS_MAX:
            self._counts.clear()
            self._seen, self._minutes = self._grants.changes, metering.minutes
        place = (queue, kind, sub_queue) if sub_queue else (queue, kind)
        found = self._counts.get(place)
        if found is None:
            # What is done in a share of an entity is done in the entity.
            path = whole_path(queue.path)
            key = self._key(queue, kind, sub_queue)
            found = self._counts[place] = metering.count_of(queue.namespace, path, kind, key)
        metering.add_to(found, messages, size, operations)

    def _key(self, queue: Queue, kind: str, sub_queue: int) -> str:
        right = Right.SEND if kind in (SEND, PING) else Right.LISTEN
        segments = (*queue.path.lower().split("/"), *SUB_QUEUE_SEGMENTS[sub_queue])
        return self._grants.who(segments, right, self._clock.now_ms())
