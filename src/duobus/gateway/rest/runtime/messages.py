"""The runtime API: what each request for messages is answered (HTTP contract, part B)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import ABANDON, MAIN, Queue, ScaleUnit, SettleBatch, lock_lost
from duobus.broker import COMPLETE as COMPLETED
from duobus.broker.namespace import Namespace
from duobus.clock import Clock, Entropy
from duobus.codec import scan
from duobus.errors import (
    ArgumentInvalid,
    EntityDisabled,
    EntityNotFound,
    MessageTooLarge,
    NotAllowed,
)
from duobus.gateway.rest.answers import Answers
from duobus.gateway.rest.atom.place import Place
from duobus.gateway.rest.bodies import BodyRoom, read_body
from duobus.gateway.rest.guard import Guard
from duobus.gateway.rest.runtime import routes
from duobus.gateway.rest.runtime.broker_properties import BrokerProperties, read_header
from duobus.gateway.rest.runtime.from_amqp import altered, message_id_text, sequence_number, show
from duobus.gateway.rest.runtime.header_values import read_properties
from duobus.gateway.rest.runtime.receiving import TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S, give_back, take_one
from duobus.gateway.rest.runtime.routes import Call
from duobus.gateway.rest.runtime.to_amqp import Outgoing, make_message, read_batch
from duobus.gateway.rest.target import Target
from duobus.gateway.waiting import Waiting
from duobus.model.address import Address, parse_address
from duobus.model.columns import DeliveryBatch, SendBatch
from duobus.model.description import ACTIVE, RECEIVE_DISABLED, SEND_DISABLED, TOPIC, Right
from duobus.model.http_options import HttpOptions
from duobus.model.metering import EMPTY_RECEIVE, RECEIVE, RENEW, SEND, SETTLE, operations_of

#: The most that one request sends, in bytes (HTTP contract A.6.2), whatever the entity would take over AMQP.
SEND_BYTES_MAX: Final = 1 << 20
BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"

#: ``meter(namespace, entity, kind, messages, bytes, operations, key)``.
Meter = Callable[[str, str, str, int, int, int, str], None]


class Messages:
    """Answers requests about messages.

    Args:
        unit: Where the entities are.
        guard: Who may.
        answers: Makes refusals.
        clock: Time.
        entropy: For message ids.
        options: What the operator chose.
        meter: Counts operations.
        room: Memory for bodies.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        guard: Guard,
        answers: Answers,
        *,
        clock: Clock,
        entropy: Entropy,
        options: HttpOptions,
        meter: Meter,
        room: BodyRoom,
    ) -> None:
        self._unit = unit
        self._guard = guard
        self._answers = answers
        self._clock = clock
        self._entropy = entropy
        self._options = options
        self._meter = meter
        self._room = room

    async def answer(
        self, call: Call, request: web.Request, target: Target, place: Place, namespace: NamespaceRules
    ) -> web.StreamResponse:
        """Answer one request; checks in the contract's order: token, right, entity, status, then the rest.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        right = Right.SEND if call.kind == routes.SEND else Right.LISTEN
        key = self._guard.demand(request, target, namespace, right)
        home = self._unit.namespace(namespace.name)
        try:
            address = parse_address(call.entity)
            if address.is_management or address.is_cbs:
                raise NotAllowed("Messages have no such address over HTTP. Use the address of an entity.")
            queue = home.resolve(address)
        except EntityNotFound as error:
            # 410 on sending and receiving: 404 is for a lock that is lost (B.1).
            return self._answers.refusal(error, home.name, call.entity, 410, 41000)
        self._options.demand_version(target.query, queue.is_partitioned)
        if call.kind == routes.SEND:
            return await self._send(request, queue, address, home, key)
        if call.kind in (routes.PEEK_LOCK, routes.RECEIVE):
            return await self._receive(call, request, target, place, queue, address, home, key)
        return await self._locked(call, queue, key)

    # -- sending ------------------------------------------------------------------------------------------------

    async def _send(
        self, request: web.Request, queue: Queue, address: Address, home: Namespace, key: str
    ) -> web.Response:
        if address.sub_queue != MAIN:
            raise NotAllowed("Messages cannot be sent to a dead-letter queue.")
        if address.subscription is not None:
            raise NotAllowed("Messages cannot be sent to a subscription. Send to its topic.")
        _demand_status(queue, (ACTIVE, RECEIVE_DISABLED))
        is_batch = request.headers.get("Content-Type", "").partition(";")[0].strip().lower() == BATCH_TYPE
        limit = min(queue.description.max_message_size_bytes, SEND_BYTES_MAX)
        body = await read_body(request, SEND_BYTES_MAX if is_batch else limit, self._room)
        try:
            messages = read_batch(body, self._entropy) if is_batch else [self._single(request, body)]
            await self._store(messages, queue, home, limit, key, is_batch=is_batch)
        finally:
            self._room.give(len(body))
        return web.Response(status=201)

    def _single(self, request: web.Request, body: bytes) -> Outgoing:
        text = request.headers.get("BrokerProperties")
        about = BrokerProperties() if text is None else read_header(text)
        content_type = request.headers.get("Content-Type")
        return make_message(body, about, read_properties(request.raw_headers), content_type, self._entropy)

    async def _store(
        self, messages: list[Outgoing], queue: Queue, home: Namespace, limit: int, key: str, *, is_batch: bool
    ) -> None:
        for message in messages:
            if len(message.bare) > limit:
                raise MessageTooLarge(f"A message has {len(message.bare)} bytes; '{queue.path}' allows {limit} here.")
            queue.demand_session(message.special, is_ping=False)
        if home.throttle is not None and not home.throttle.admit_whole(len(messages)):
            raise home.throttle.refusal()
        waiting = Waiting()
        batch = SendBatch(0, [message.bare for message in messages], True, waiting)
        batch.atomic = is_batch
        batch.extra = {
            index: message.special for index, message in enumerate(messages) if message.special is not None
        } or None
        if queue.is_partitioned and any(message.key is not None for message in messages):
            batch.keys = [message.key for message in messages]
        queue.send(batch)
        (result,) = await waiting.results(1)
        if result.error is not None:
            raise result.error
        operations = sum(operations_of(len(payload)) for payload in batch.payloads)
        self._meter(queue.namespace, queue.path, SEND, batch.n, batch.bytes_total, operations, key)

    # -- receiving ----------------------------------------------------------------------------------------------

    async def _receive(
        self,
        call: Call,
        request: web.Request,
        target: Target,
        place: Place,
        queue: Queue,
        address: Address,
        home: Namespace,
        key: str,
    ) -> web.Response:
        _demand_status(queue, (ACTIVE, SEND_DISABLED))
        if queue.description.requires_session and address.sub_queue == MAIN:
            raise NotAllowed(f"'{queue.path}' requires sessions, which cannot be received over HTTP. Use AMQP.")
        if queue.kind == TOPIC:
            raise NotAllowed(f"Nothing is received from the topic '{queue.path}'. Receive from a subscription of it.")
        limit_s = _timeout(target.query)
        if not any(handle.online for handle in queue.fragments):
            raise queue.fragments[0].broker.unavailable()
        removing = call.kind == routes.RECEIVE
        batch = await take_one(
            queue,
            address.sub_queue,
            limit_s,
            removing=removing,
            receivers_max=self._unit.quotas.receivers,
            throttle=home.throttle,
        )
        if batch is None:
            self._meter(queue.namespace, queue.path, EMPTY_RECEIVE, 1, 0, 1, key)
            return web.Response(status=204)
        if (request.transport is None or request.transport.is_closing()) and not removing:
            give_back(queue, batch)
            # Nobody reads it.
            return web.Response(status=204)
        slot = batch.slots[0]
        size = len(slot.payload)
        self._meter(queue.namespace, queue.path, RECEIVE, 1, size, operations_of(size), key)
        return _shown(batch, queue, address, place, removing=removing)

    # -- settling -----------------------------------------------------------------------------------------------

    async def _locked(self, call: Call, queue: Queue, key: str) -> web.Response:
        try:
            token = uuid.UUID(call.token)
        except ValueError:
            raise ArgumentInvalid("The lock token in the address is no GUID.") from None
        handle, prefix, lock = queue.find_lock(token.bytes_le)
        fragment, _ = handle.broker.present(handle)
        slot = fragment.sources[queue.source_no].locks.get(lock) if fragment.prefix == prefix else None
        if slot is None or not _is_named(call.message, sequence_number(handle, slot), altered(slot)):
            raise lock_lost()
        if call.kind == routes.RENEW:
            if queue.description.requires_session:
                raise NotAllowed("The lock of a session's message lasts as long as the session's. Renew that one.")
            if handle.broker.renew(handle, queue.source_no, prefix, [lock]) is None:
                raise lock_lost()
            self._meter(queue.namespace, queue.path, RENEW, 1, 0, 1, key)
            return web.Response(status=200)
        waiting = Waiting()
        outcome = COMPLETED if call.kind == routes.COMPLETE else ABANDON
        command = SettleBatch(handle, queue.source_no, waiting, prefix=prefix, outcome=outcome, ranges=[(lock, 1)])
        command.strict = True
        queue.settle(command)
        (done,) = await waiting.results(1)
        if done.error is not None:
            raise done.error
        self._meter(queue.namespace, queue.path, SETTLE, 1, 0, 1, key)
        return web.Response(status=200)


def _is_named(text: str, number: int, payload: bytes) -> bool:
    """Whether the message in an address is the one that the lock is of: by sequence number or by message id."""
    return text == str(number) or text == message_id_text(scan(payload))


def _demand_status(queue: Queue, allowed: tuple[str, ...]) -> None:
    status = queue.description.status
    if status not in allowed:
        raise EntityDisabled(f"The {queue.kind} '{queue.path}' has the status {status}. Enable it, then try again.")


def _timeout(query: Mapping[str, str]) -> float:
    text = query.get("timeout", "").strip()
    if not text:
        return TIMEOUT_DEFAULT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not math.isfinite(seconds) or seconds < 0:
        raise ArgumentInvalid(f"timeout is {text[:32]!r}; it must be a number of seconds.")
    return min(seconds, TIMEOUT_MAX_S)


def _shown(batch: DeliveryBatch, queue: Queue, address: Address, place: Place, *, removing: bool) -> web.Response:
    slot, handle = batch.slots[0], batch.fragment
    token = None
    if not removing:
        token = uuid.UUID(bytes_le=batch.prefix + batch.first_lock.to_bytes(8, "big"))
    # What is dead lives as long as it takes.
    default_ttl_ms = None if address.sub_queue else queue.description.default_message_time_to_live_ms
    received = show(
        handle, slot, default_ttl_ms=default_ttl_ms, lock_token=token, locked_until_ms=batch.locked_until_ms
    )
    response = web.Response(status=200 if removing else 201, body=received.body)
    for name, value in received.headers:
        response.headers.add(name, value)
    if received.content_type and received.content_type.isascii() and received.content_type.isprintable():
        response.headers["Content-Type"] = received.content_type
    if token is not None:
        path = quote("/".join(address.segments()), safe="/$")
        number = sequence_number(handle, slot)
        response.headers["Location"] = place.url(f"{path}/messages/{number}/{token}")
    return response
