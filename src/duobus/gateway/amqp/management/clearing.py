"""The operations of ``$management`` that remove messages without receiving them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.broker import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from duobus.codec import Int, Timestamp
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, NotAllowed
from duobus.model.metering import SETTLE

if TYPE_CHECKING:
    from duobus.gateway.amqp.management.node import ManagementNode

#: Messages that one request may delete: Premium's limit (contract 10.9).
DELETED_MAX = 4000
#: A purge answers after this long and says whether more is left: sooner than any client gives up.
PURGE_MS = 5_000


async def batch_delete(node: ManagementNode, body: dict[Any, Any]) -> tuple[int, Any]:
    """Delete available messages that were enqueued before a time (contract 10.9)."""
    limit = body.get("message-count")
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise ArgumentInvalid("'message-count' must be an integer.")
    if not 1 <= limit <= DELETED_MAX:
        raise ArgumentOutOfRange(f"'message-count' is {limit}; it must be from 1 to {DELETED_MAX}.")
    before = body.get("enqueued-time-utc")
    if not isinstance(before, Timestamp):
        raise ArgumentInvalid("'enqueued-time-utc' must be a timestamp.")
    session_id = body.get("session-id")
    if session_id is not None:
        if not node.queue.description.requires_session or node.address.sub_queue:
            # Taking no notice of it would delete the messages of other sessions.
            raise NotAllowed("There are no sessions here. Leave 'session-id' out.")
        if not isinstance(session_id, str):
            raise ArgumentInvalid("'session-id' must be a string.")
    removed = await node.queue.batch_delete(node.address.sub_queue, int(limit), int(before), session_id)
    node.peer.meter(node.queue, SETTLE, removed, 0, removed, node.address.sub_queue)
    return (200, {"message-count": Int(removed)}) if removed else (204, None)


async def purge(node: ManagementNode, body: dict[Any, Any]) -> tuple[int, Any]:
    """Remove everything that nobody holds: an extension, for the service has none.

    Listen is enough, as for a batch delete and over HTTP: who may receive and remove one message after the other may do
    so at once. At an entity's own node its dead letters go too; at a sub-queue's node only what is there.
    """
    if body.get("session-id") is not None:
        # Taking no notice of it would delete the messages of other sessions.
        raise NotAllowed("A purge removes the messages of all sessions. Leave 'session-id' out, or use batch delete.")
    sub_queue = node.address.sub_queue
    sub_queues = (sub_queue,) if sub_queue else (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)
    clock = node.peer.door.clock
    end_ms = clock.monotonic_ms() + PURGE_MS
    cleared = await node.queue.purge(sub_queues, lambda: clock.monotonic_ms() >= end_ms)
    node.peer.meter(node.queue, SETTLE, cleared.removed, 0, cleared.removed, sub_queue)
    return 200, {
        "message-count": int(cleared.removed),
        "locked-count": int(cleared.locked),
        "is-complete": cleared.is_complete,
    }
