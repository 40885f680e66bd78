"""``POST /{entity}/$desk``: one chunk of work on the messages of a sub-queue, in one commit.

The request says all that the work depends on, and the answer where to go on from: the server remembers nothing between
two chunks, and a chunk that was begun is finished though whoever asked goes away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec
from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import (
    DEAD_LETTER,
    MAIN,
    FragmentHandle,
    Namespace,
    Queue,
    QueuedCopy,
    QueuedMessage,
    ScaleUnit,
    kind_of,
    string_key,
)
from duobus.broker.dead_letters import (
    DeadLetterQuery,
    DeadLetterRestore,
    DeadLetterService,
    MoveResult,
    Selection,
    number_of,
    restore,
    search,
)
from duobus.errors import ArgumentInvalid, EntityDisabled, NotAllowed, ServerBusy
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.dead_letters.orders import Order, PendingOrders, Result
from duobus.gateway.rest.request_bodies import BodyBudget, read_body
from duobus.gateway.rest.request_target import Target
from duobus.gateway.waits import ResultWaiter
from duobus.model import metering
from duobus.model.address import Address, parse_address
from duobus.model.batches import SendBatch, is_ping
from duobus.model.descriptions import ACTIVE, RECEIVE_DISABLED, Right
from duobus.model.json.messages import form_of
from duobus.model.json.plan import LIST, PURGE, RESTORE, SEND, DeadLetterPlan, Item, read_plan
from duobus.model.json.repair import resendable
from duobus.model.json.values import time_text
from duobus.model.metadata import MessageMetadata
from duobus.model.metering import PEEK, SETTLE, operations_of

# What an order to the dead-letter service costs: what it shows is handed out, and what it moves is sent
# to its new place.
#
# A client that moves dead letters by receiving and sending them pays for both; here the server moves them, and no
# message is handed out unless the answer contains it.

#: ``meter(namespace, entity, kind, messages, bytes, operations, key)``.
Meter = Callable[[str, str, str, int, int, int, str], None]

#: What of an order that finds nothing is left to pay: that somebody looked.
_LOOK: Final = 1


class DeadLetterMeter:
    """Counts the operations of one order.

    Args:
        meter: Where they are counted.
        queue: The entity of the order.
        key: Whom its token speaks for.
    """

    __slots__ = ("_key", "_meter", "_queue")

    def __init__(self, meter: Meter, queue: Queue, key: str) -> None:
        self._meter = meter
        self._queue = queue
        self._key = key

    def shown(self, sizes: Sequence[int], *, looks_only: bool) -> None:
        """An answer tells messages of these sizes; ``looks_only``: and that was all."""
        operations = sum(map(operations_of, sizes)) or (_LOOK if looks_only else 0)
        if operations:
            self._count(self._queue.path, PEEK, len(sizes), sum(sizes), operations)

    def removed(self, number: int) -> None:
        """Messages are gone from where they were."""
        if number:
            self._count(self._queue.path, SETTLE, number, 0, number)

    def sent(self, sizes: Sequence[int], path: str | None = None) -> None:
        """Messages of these sizes were accepted, by the entity of the order or that of another path."""
        if sizes:
            self._count(path or self._queue.path, metering.SEND, len(sizes), sum(sizes), sum(map(operations_of, sizes)))

    def _count(self, path: str, kind: str, number: int, size: int, operations: int) -> None:
        self._meter(self._queue.namespace, path, kind, number, size, operations, self._key)


#: Last segment of the address.
SEGMENT: Final = "$desk"
#: Bytes of one request: a chunk's messages in JSON.
ORDER_BYTES_MAX: Final = 8 << 20
#: Requests that are worked on at a time; more are told to come again.
ORDERS_MAX: Final = 16

_STATES: Final = ("active", "deferred", "scheduled")
#: Where the token of another resource stands, as for forwarding (Azure: autoforwarding).
_OTHER_TOKEN: Final = "ServiceBusSupplementaryAuthorization"


def is_dead_letter_request(method: str, target: Target) -> bool:
    """Whether a request is for the dead-letter service; as the name of a subscription or rule the segment is a name."""
    lower = target.lower
    return method == "POST" and len(lower) > 1 and lower[-1] == SEGMENT and lower[-2] not in ("subscriptions", "rules")


class DeadLetterEndpoint:
    """Answers requests to the dead-letter service."""

    def __init__(self, unit: ScaleUnit, guard: Guard, room: BodyBudget, meter: Meter) -> None:
        self._meter = meter
        self._unit = unit
        self._guard = guard
        self._room = room
        self._service = DeadLetterService(unit)
        self._orders = PendingOrders()

    async def close(self) -> None:
        """Let what is under way come to its end, for a while."""
        await self._orders.close()

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response:
        """Answer one request.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        # What else it needs depends on its body, which strangers may not even send.
        self._guard.demand(request, target, namespace, None)
        if len(self._orders) >= ORDERS_MAX:
            raise ServerBusy("Too many requests to the desk are under way. Try again in a few seconds.")
        address = parse_address("/".join(target.segments[:-1]))
        body = await read_body(request, ORDER_BYTES_MAX, self._room)
        try:
            plan = read_plan(body)
            key = self._demand(request, target, namespace, plan)
            home = self._unit.namespace(namespace.name)
            if address.is_management or address.is_cbs:
                raise NotAllowed("Messages have no such address. Use the address of an entity.")
            queue = home.resolve(address)
            if queue.kind == "topic" and plan.action != SEND:
                raise NotAllowed(f"The topic '{queue.path}' has no messages. Name a subscription.")
            found = await self._orders.finished(
                _digest(namespace.name, target, body),
                lambda order: self._work(order, plan, queue, address, home, DeadLetterMeter(self._meter, queue, key)),
            )
        finally:
            self._room.give(len(body))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    def _demand(self, request: web.Request, target: Target, namespace: NamespaceRules, plan: DeadLetterPlan) -> str:
        """Listen to look and to remove; to move, Send for where it goes as well; Manage to make dead letters.

        Returns:
            Whom the token speaks for.
        """
        if plan.action == RESTORE:
            return self._guard.demand(request, target, namespace, Right.MANAGE)
        if plan.action == SEND:
            return self._guard.demand(request, target, namespace, Right.SEND)
        key = self._guard.demand(request, target, namespace, Right.LISTEN)
        if plan.action in (LIST, PURGE):
            return key
        if plan.to is None:
            return self._guard.demand(request, target, namespace, Right.SEND)
        text = request.headers.get(_OTHER_TOKEN) or request.headers.get("Authorization") or ""
        self._guard.demand_for(text, tuple(plan.to.lower().split("/")), namespace, Right.SEND)
        return key

    async def _work(
        self,
        order: Order,
        plan: DeadLetterPlan,
        queue: Queue,
        address: Address,
        home: Namespace,
        meter: DeadLetterMeter,
    ) -> Result:
        if plan.action == RESTORE:
            return await self._restore(order, plan, queue, address, home, meter)
        if plan.action == SEND:
            return await self._send(plan, queue, address, home, meter)
        query = _query_of(plan, self._unit.now_ms())
        query.limit = min(query.limit, self._service.limit_of(queue, plan.to))
        is_chunk = plan.action != LIST
        looked = await search(queue, address.sub_queue, query, one_fragment=is_chunk)
        answer: Result = {
            "action": plan.action,
            "examined": looked.examined,
            "matched": len(looked.found),
            "next": looked.following,
            "before": query.before_ms,
        }
        if plan.is_partial:
            answer["unavailable"] = looked.unavailable
        looks_only = plan.is_dry or plan.action == LIST
        sizes = {number_of(handle, message): len(message.payload) for handle, message in looked.found}
        meter.shown(list(sizes.values()) if plan.shows else [], looks_only=looks_only)
        if plan.shows:
            answer["messages"] = [_shown(handle, message, plan) for handle, message in looked.found]
        if looks_only:
            return answer
        order.begin_changes()
        if plan.action == PURGE:
            moved = await self._service.purge(queue, address.sub_queue, looked.found)
        else:
            moved = await self._service.move(
                queue, address.sub_queue, looked.found, plan.to, plan.repair, keeps_reason=plan.keeps_reason
            )
            meter.sent([sizes[number] for number in moved.moved], _spelled(plan.to, home))
        meter.removed(len(moved.moved))
        return answer | _told(moved)

    async def _restore(
        self,
        order: Order,
        plan: DeadLetterPlan,
        queue: Queue,
        address: Address,
        home: Namespace,
        meter: DeadLetterMeter,
    ) -> Result:
        if address.sub_queue != DEAD_LETTER:
            raise ArgumentInvalid("Messages are buried in a dead-letter queue. Name it in the address.")
        burials = [
            DeadLetterRestore(
                self._unit.message_ids.named(item.payload),
                _lasting(item.metadata),
                number=item.number,
                where=None if item.where is None else home.resolve(item.where),
                now=item.now,
            )
            for item in plan.items
        ]
        answer = {"action": RESTORE, "matched": len(burials)}
        if plan.is_dry:
            return answer
        order.begin_changes()
        done = await restore(queue, burials)
        meter.sent([len(burials[index].payload) for index in done.moved])
        numbers = [item.number for item in plan.items]
        return answer | {
            "moved": [{"index": index, "sequenceNumber": numbers[index]} for index in sorted(done.moved)],
            "skipped": [
                {"index": index, "sequenceNumber": numbers[index], "reason": reason}
                for index, reason in sorted(done.skipped.items())
            ],
        }

    async def _send(
        self, plan: DeadLetterPlan, queue: Queue, address: Address, home: Namespace, meter: DeadLetterMeter
    ) -> Result:
        """Each message for itself; all are in one commit of each store."""
        if address.sub_queue != MAIN or queue.kind == "subscription":
            raise NotAllowed("Messages are sent to a queue or topic.")
        if queue.description.status not in (ACTIVE, RECEIVE_DISABLED):
            raise EntityDisabled(f"'{queue.path}' has the status {queue.description.status}. Enable it, then send.")
        if home.throttle is not None and not home.throttle.admit_whole(len(plan.items)):
            raise home.throttle.refusal()
        answer: Result = {"action": SEND, "matched": len(plan.items)}
        if plan.is_dry:
            return answer
        waiting = ResultWaiter()
        batches: dict[int, int] = {}
        refused: dict[int, str] = {}
        for index, item in enumerate(plan.items):
            try:
                payload = self._payload(queue, item)
            except (ArgumentInvalid, NotAllowed) as error:
                refused[index] = str(error)
                continue
            batch = SendBatch(index, [payload], True, waiting)
            batch.ping = is_ping(item.payload)
            batch.extra = None if item.metadata == MessageMetadata() else {0: item.metadata}
            key = item.metadata.session_id or item.metadata.partition_key
            if queue.is_partitioned and key is not None:
                batch.keys = [string_key(key)]
            batches[id(batch)] = index
            queue.send(batch)
        for result in await waiting.results(len(batches)):
            if result.error is not None:
                refused[batches[id(result.batch)]] = str(result.error)
        meter.sent([len(item.payload) for index, item in enumerate(plan.items) if index not in refused])
        answer["sent"] = len(plan.items) - len(refused)
        answer["refused"] = [{"index": index, "reason": reason} for index, reason in sorted(refused.items())]
        return answer

    def _payload(self, queue: Queue, item: Item) -> bytes:
        """What is sent of one message, which gets an id if it has none.

        Raises:
            ArgumentInvalid: It is too large.
            NotAllowed: It belongs to no session, where every message must.
        """
        limit = queue.description.max_message_size_bytes
        if len(item.payload) > limit:
            raise ArgumentInvalid(f"It has {len(item.payload)} bytes; '{queue.path}' takes {limit} at most.")
        queue.demand_session(item.metadata, is_ping=is_ping(item.payload))
        return self._unit.message_ids.named(item.payload)


def _digest(namespace: str, target: Target, body: bytes) -> bytes:
    """What is equal for requests that ask for the same."""
    digest = blake2b(digest_size=32)
    for part in (namespace, *target.lower, ""):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(body)
    return digest.digest()


def _query_of(plan: DeadLetterPlan, now_ms: int) -> DeadLetterQuery:
    """Which messages are meant.

    Raises:
        ArgumentInvalid, ArgumentOutOfRange: A filter is wrong.
    """
    # What came in this very millisecond is there, too.
    latest_ms = now_ms + 1
    return DeadLetterQuery(
        Selection(plan.sql, plan.condition),
        first=plan.first,
        before_ms=latest_ms if plan.before_ms is None else min(plan.before_ms, latest_ms),
        limit=plan.limit,
        numbers=None if plan.numbers is None else frozenset(plan.numbers),
        is_partial=plan.is_partial,
    )


def _spelled(path: str | None, home: Namespace) -> str | None:
    """The path of an entity as its creator spelled it; as it was asked for when it has gone meanwhile."""
    if path is None:
        return None
    found = home.queues.get(path.lower()) or home.topics.get(path.lower())
    return path if found is None else found.path


def _lasting(metadata: MessageMetadata) -> MessageMetadata:
    """A dead letter does not expire, and is not scheduled (Azure: dead-letter queues)."""
    metadata.scheduled_ms = None
    return metadata


def _told(moved: MoveResult) -> dict[str, Any]:
    return {
        "moved": [{"sequenceNumber": number, "movedTo": new} for number, new in moved.moved.items()],
        "skipped": [{"sequenceNumber": number, "reason": reason} for number, reason in moved.skipped.items()],
    }


def _shown(handle: FragmentHandle, message: QueuedMessage, plan: DeadLetterPlan) -> dict[str, Any]:
    metadata = message.metadata
    origin = message.origin if isinstance(message, QueuedCopy) else message.count
    number = number_of(handle, message)
    first = None if metadata is None else metadata.enqueued_sequence_number
    found: dict[str, Any] = {
        "sequenceNumber": number,
        "enqueuedSequenceNumber": first or number - message.count + origin,
        "enqueuedTime": time_text(message.enqueued_ms),
        "deliveryCount": message.deliveries,
        "state": _STATES[kind_of(message.state)],
        "isHeld": message.lock != 0,
        "reason": None if metadata is None else metadata.reason,
        "description": None if metadata is None else metadata.description,
        "deadLetterSource": None if metadata is None else metadata.dead_letter_source,
    }
    if not plan.only_heads:
        found["message"] = form_of(message.payload, metadata)
    if plan.is_dry and plan.action not in (LIST, PURGE):
        try:
            bare, after = resendable(message.payload, metadata, plan.repair, keeps_reason=plan.keeps_reason)
            found["repaired"] = form_of(bare, after)
        except ArgumentInvalid as error:
            found["refused"] = str(error)
    return found


__all__ = ["ORDERS_MAX", "ORDER_BYTES_MAX", "SEGMENT", "DeadLetterEndpoint", "is_dead_letter_request"]
