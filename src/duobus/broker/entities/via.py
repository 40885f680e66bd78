"""Sending via an entity to another (contract 12.4): the message is stored here, and goes there when it is durable.

So a transaction commits in one store, whatever the stores of those to which it sends, and a message to another entity
is as safe as one to its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.broker.entities.placement import string_key
from duobus.model.metadata import Special, Way

if TYPE_CHECKING:
    from duobus.broker.entities.queue import Queue
    from duobus.model.batches import SendBatch


def address(batch: SendBatch, via: Queue, destination: str) -> None:
    """Mark messages that are sent via a queue: none of its receivers sees them, and its sessions do not matter.

    They are placed by the key that is meant for it; session id and partition key are the destination's, and so is the
    time for which they are scheduled.
    """
    extra = batch.extra or {}
    keys: list[bytes | None] = []
    for index in range(batch.n):
        special = extra.setdefault(index, Special())
        special.way = Way(to=destination, scheduled_ms=special.scheduled_ms)
        special.scheduled_ms = None
        key = special.via_partition_key
        keys.append(None if key is None else string_key(key))
    batch.extra = extra
    batch.ids = None
    batch.keys = keys if via.is_partitioned and any(key is not None for key in keys) else None
