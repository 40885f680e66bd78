"""Which shard of a sharded queue a message belongs in: by its session id, its partition key, or its message id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duobus.broker import string_key
from duobus.broker.entities.message_ids import message_id
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.gateway.amqp.links.incoming_link import runs_of
from duobus.gateway.amqp.mapping import Incoming, plain_offset, take_apart

#: Beside the number of a shard: a message that may go to any.
ANY: Final = -1


def shard_of(sharded: ShardedEntityMap, payload: bytes) -> int:
    """The shard of a message as a client has sent it; ANY when nothing decides."""
    identifies = sharded.about.requires_duplicate_detection
    if not identifies and plain_offset(payload, True) != -1:
        return ANY
    try:
        taken = take_apart(payload)
    except ServiceBusError:
        # Whichever owner gets it says what is wrong with it.
        return ANY
    return _shard_of(sharded, taken)


def shard_of_batch(sharded: ShardedEntityMap, payload: bytes) -> int:
    """The one shard of all of a batch transfer; it is stored as a whole (I40).

    Raises:
        ArgumentInvalid: Its messages belong to different ones.
    """
    try:
        parts = runs_of(payload, take_apart)
    except ServiceBusError:
        return ANY
    return the_one(_shard_of(sharded, part) for part in parts)


def shard_via(sharded: ShardedEntityMap, payload: bytes) -> int:
    """The shard by way of which a message is sent to another entity; ANY when nothing decides."""
    try:
        return _shard_via(sharded, take_apart(payload))
    except ServiceBusError:
        return ANY


def shard_via_of_batch(sharded: ShardedEntityMap, payload: bytes) -> int:
    """The one shard by way of which all of a batch transfer is sent; raises as ``shard_of_batch``."""
    try:
        parts = runs_of(payload, take_apart)
    except ServiceBusError:
        return ANY
    return the_one(_shard_via(sharded, part) for part in parts)


def _shard_via(sharded: ShardedEntityMap, taken: Incoming) -> int:
    key = None if taken.metadata is None else taken.metadata.via_partition_key
    return shard_of_key(sharded, None if key is None else string_key(key))


def shard_of_key(sharded: ShardedEntityMap, key: bytes | None) -> int:
    """The shard of a key; ANY for none."""
    return ANY if key is None else sharded.of_key(key)


def the_one(shards: Iterable[int], what: str = "batch") -> int:
    """The shard in which all of these messages belong; ANY when there are none, or none has a key.

    Raises:
        ArgumentInvalid: There are several.
    """
    wanted = set(shards)
    if len(wanted) > 1:
        raise ArgumentInvalid(
            f"The messages of this {what} have session ids, partition keys or message ids that belong to different "
            "fragments of a partitioned entity. Send them singly, or those of one key at a time."
        )
    return wanted.pop() if wanted else ANY


def _shard_of(sharded: ShardedEntityMap, taken: Incoming) -> int:
    key = taken.key
    if key is None and sharded.about.requires_duplicate_detection and not taken.is_ping:
        # All duplicates of a message meet in one fragment (PE10).
        key = message_id(taken.bare)
    return shard_of_key(sharded, key)
