"""The operations of ``$management`` that schedule messages and cancel them, in a transaction or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from duobus.broker import COUNT_BITS
from duobus.codec import Array
from duobus.errors import ArgumentInvalid, MessageTooLarge, NotAllowed
from duobus.gateway.amqp.arguments import demand, is_integer, items_of, map_of
from duobus.gateway.amqp.mapping import take_apart
from duobus.gateway.waits import ResultWaiter
from duobus.model.batches import SendBatch
from duobus.model.metering import PING, SEND, operations_of

if TYPE_CHECKING:
    from duobus.gateway.amqp.management.node import ManagementNode

Answer = tuple[int, Any]

#: Numbers that one request may name.
NUMBERS_MAX: Final = 1000
_NO_MESSAGES: Final = "'messages' must be a list of at least one map."
_NO_MESSAGE: Final = "Each of 'messages' must be a map with the encoded message under 'message'."
#: The count of no message: those of a fragment begin with 1.
NOTHING: Final = 0


async def schedule(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Store messages that come out at their time, and tell their sequence numbers."""
    waiting = ResultWaiter()
    batch, places = _batch(node, body, waiting)
    queue = node.queue
    queue.send(batch)
    (run,) = await waiting.results(1)
    if run.error is not None:
        raise run.error
    operations = sum(operations_of(len(payload)) for payload in batch.payloads)
    node.peer.meter(queue, PING if batch.ping else SEND, batch.n, batch.bytes_total, operations)
    return _numbered(run.handle.number, [] if batch.ping else run.counts(), places)


def join_schedule(node: ManagementNode, body: dict[Any, Any], txn_id: bytes) -> Callable[[], Awaitable[Answer]]:
    """Make the same part of a transaction: the numbers are told at once, the messages are there with its commit.

    Returns:
        What waits until the numbers are reserved, durably, and answers.

    Raises:
        ServiceBusError: It cannot be part of it.
    """
    waiting = ResultWaiter()
    batch, places = _batch(node, body, waiting)
    if batch.ping:
        node.peer.transactions.find(txn_id)  # There has to be one, although nothing becomes part of it.

        async def nothing() -> Answer:
            return _numbered(0, [], places)

        return nothing
    reserve = node.peer.transactions.schedule(txn_id, node.queue, batch)

    async def answer() -> Answer:
        await waiting.results(1)
        if reserve.error is not None:
            raise reserve.error
        counts = range(reserve.first_count, reserve.first_count + reserve.number)
        return _numbered(reserve.handle.number, counts, places)

    return answer


def _numbered(fragment_number: int, counts: range | list[int], places: list[int | None]) -> Answer:
    base = fragment_number << COUNT_BITS
    numbers = [base | (NOTHING if place is None else counts[place]) for place in places]
    return 200, {"sequence-numbers": Array(int, numbers)}


def _batch(node: ManagementNode, body: dict[Any, Any], reply: ResultWaiter) -> tuple[SendBatch, list[int | None]]:
    """The messages of a request, all or none of them, and where in that each of them stands.

    Pings stand nowhere, as they are never kept (PN13); when there is nothing else they prove that the entity can store.
    """
    entries: list[Any] = demand(body.get("messages"), list, _NO_MESSAGES)
    if not entries:
        raise ArgumentInvalid(_NO_MESSAGES)
    if node.address.sub_queue:
        raise NotAllowed("Messages cannot be sent to a dead-letter queue.")
    queue = node.queue
    parts = []
    limit = queue.description.max_message_size_bytes
    for entry in entries:
        message = demand(map_of(entry).get("message"), bytes, _NO_MESSAGE)
        if len(message) > limit:
            raise MessageTooLarge(f"A message has {len(message)} bytes; '{queue.path}' allows {limit}.")
        part = take_apart(message, node.peer.server.unit.message_ids)
        queue.demand_session(part.metadata, is_ping=part.is_ping)
        if part.metadata is None or part.metadata.scheduled_ms is None:
            raise ArgumentInvalid("Each message needs the annotation x-opt-scheduled-enqueue-time.")
        parts.append(part)
    kept = [part for part in parts if not part.is_ping]
    if not kept:
        pings = SendBatch(0, [part.bare for part in parts], True, reply)
        pings.ping = pings.atomic = True
        return pings, [None] * len(parts)
    where = iter(range(len(kept)))
    places = [None if part.is_ping else next(where) for part in parts]
    parts = kept
    batch = SendBatch(0, [part.bare for part in parts], True, reply)
    batch.atomic = True
    batch.extra = {index: part.metadata for index, part in enumerate(parts) if part.metadata is not None}
    if queue.is_partitioned and any(part.key is not None for part in parts):
        batch.keys = [part.key for part in parts]
    return batch, places


async def cancel(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Remove scheduled messages by number, all of a fragment or none."""
    waiting = ResultWaiter()
    expected = node.queue.cancel_scheduled(numbers_of(body), waiting)
    for command in await waiting.results(expected):
        if command.error is not None:
            raise command.error
    return 200, None


def join_cancel(node: ManagementNode, body: dict[Any, Any], txn_id: bytes) -> None:
    """Make the same part of a transaction: they stay scheduled until its commit.

    Raises:
        ServiceBusError: It cannot be part of it; one of them is not there, perhaps.
    """
    node.peer.transactions.cancel(txn_id, node.queue, numbers_of(body))


def numbers_of(body: dict[Any, Any]) -> list[int]:
    """The sequence numbers that a request names.

    Raises:
        ArgumentInvalid: None, too many, or no numbers.
    """
    items = items_of(body.get("sequence-numbers"))
    if not 0 < len(items) <= NUMBERS_MAX:
        raise ArgumentInvalid(f"'sequence-numbers' must be an array of 1 to {NUMBERS_MAX} longs.")
    if not all(map(is_integer, items)):
        raise ArgumentInvalid("'sequence-numbers' must hold longs.")
    return [int(item) for item in items]
