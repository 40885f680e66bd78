"""The runtime API: what each request for messages is answered (Azure: Service Bus REST API)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import quote

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import ABANDON, MAIN, Queue, ScaleUnit, SettleBatch, lock_lost
from duobus.broker import COMPLETE as COMPLETED
from duobus.broker.entities.namespace import Namespace
from duobus.codec import scan, tag_of
from duobus.errors import (
    ArgumentInvalid,
    EntityNotFound,
    NotAllowed,
)
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.error_responses import Answers
from duobus.gateway.rest.request_bodies import BodyBudget, read_body
from duobus.gateway.rest.request_target import Target
from duobus.gateway.rest.runtime import routes
from duobus.gateway.rest.runtime.receive import TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S, give_back, take_one
from duobus.gateway.rest.runtime.responses import altered, message_id_text, sequence_number, show
from duobus.gateway.rest.runtime.routes import Call
from duobus.gateway.rest.runtime.sends import SEND_BYTES_MAX, Meter, Sends, demand_status, is_batch_type
from duobus.gateway.waits import ResultWaiter
from duobus.model.address import Address, parse_address
from duobus.model.batches import DeliveryBatch
from duobus.model.descriptions import ACTIVE, SEND_DISABLED, TOPIC, Right
from duobus.model.metering import EMPTY_RECEIVE, RECEIVE, RENEW, SETTLE, operations_of
from duobus.model.options import HttpOptions


class Messages:
    """Answers requests about messages.

    Args:
        unit: Where the entities are.
        guard: Who may.
        answers: Makes refusals.
        sends: Takes what is sent.
        options: What the operator chose.
        meter: Counts operations.
        room: Memory for bodies.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        guard: Guard,
        answers: Answers,
        sends: Sends,
        *,
        options: HttpOptions,
        meter: Meter,
        room: BodyBudget,
    ) -> None:
        self._unit = unit
        self._guard = guard
        self._answers = answers
        self._sends = sends
        self._options = options
        self._meter = meter
        self._room = room

    async def answer(
        self, call: Call, request: web.Request, target: Target, place: RequestOrigin, namespace: NamespaceRules
    ) -> web.StreamResponse:
        """Answer one request; checks in the service's order: token, right, entity, status, then the rest.

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
            return self._answers.missing(error, home.name, call.entity)
        self._options.demand_version(target.query, queue.is_partitioned)
        if call.kind == routes.SEND:
            return await self._send(request, queue, address, home, key)
        if call.kind in (routes.PEEK_LOCK, routes.RECEIVE):

            def check() -> None:
                self._guard.demand(request, target, namespace, right)

            return await self._receive(call, request, target, place, queue, address, home, key, check)
        return await self._locked(call, queue, key)

    # -- sending ------------------------------------------------------------------------------------------------

    async def _send(
        self, request: web.Request, queue: Queue, address: Address, home: Namespace, key: str
    ) -> web.Response:
        limit = self._sends.demand_target(queue, address)
        content_type, properties = request.headers.get("Content-Type"), request.headers.get("BrokerProperties")
        body = await read_body(request, SEND_BYTES_MAX if is_batch_type(content_type) else limit, self._room)
        try:
            waiting = ResultWaiter()
            others = request.raw_headers
            batch = self._sends.batch(body, content_type, properties, others, queue, home, limit, waiting)
            queue.send(batch)
            (result,) = await waiting.results(1)
            if result.error is not None:
                raise result.error
            self._sends.count(queue, batch, key)
        finally:
            self._room.give(len(body))
        return web.Response(status=201)

    # -- receiving ----------------------------------------------------------------------------------------------

    async def _receive(
        self,
        call: Call,
        request: web.Request,
        target: Target,
        place: RequestOrigin,
        queue: Queue,
        address: Address,
        home: Namespace,
        key: str,
        check: Callable[[], None],
    ) -> web.Response:
        demand_status(queue, (ACTIVE, SEND_DISABLED))
        if queue.description.requires_session and address.sub_queue == MAIN:
            raise NotAllowed(f"'{queue.path}' requires sessions, which cannot be received over HTTP. Use AMQP.")
        if queue.kind == TOPIC:
            raise NotAllowed(f"Nothing is received from the topic '{queue.path}'. Receive from a subscription of it.")
        limit_s = timeout_of(target.query)
        if not any(handle.online for handle in queue.fragments):
            raise queue.fragments[0].store.unavailable()
        removing = call.kind == routes.RECEIVE
        batch = await take_one(
            queue,
            address.sub_queue,
            limit_s,
            removing=removing,
            receivers_max=self._unit.quotas.receivers,
            throttle=home.throttle,
            check=check,
        )
        if batch is None:
            self._meter(queue.namespace, queue.path, EMPTY_RECEIVE, 1, 0, 1, key)
            return web.Response(status=204)
        if (request.transport is None or request.transport.is_closing()) and not removing:
            give_back(queue, batch)
            # Nobody reads it.
            return web.Response(status=204)
        message = batch.messages[0]
        size = len(message.payload)
        self._meter(queue.namespace, queue.path, RECEIVE, 1, size, operations_of(size), key)
        return _shown(batch, queue, address, place, removing=removing)

    # -- settling -----------------------------------------------------------------------------------------------

    async def _locked(self, call: Call, queue: Queue, key: str) -> web.Response:
        try:
            token = uuid.UUID(call.token)
        except ValueError:
            raise ArgumentInvalid("The lock token in the address is no GUID.") from None
        handle, prefix, lock = queue.find_lock(token.bytes_le)
        fragment, _ = handle.present()
        message = fragment.sources[queue.source_no].locks.get(lock) if fragment.prefix == prefix else None
        if message is None or not _is_named(call.message, sequence_number(handle, message), altered(message)):
            raise lock_lost()
        if call.kind == routes.RENEW:
            if queue.description.requires_session:
                raise NotAllowed("The lock of a session's message lasts as long as the session's. Renew that one.")
            if handle.renew(queue.source_no, prefix, [lock]) is None:
                raise lock_lost()
            self._meter(queue.namespace, queue.path, RENEW, 1, 0, 1, key)
            return web.Response(status=200)
        waiting = ResultWaiter()
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


def timeout_of(query: Mapping[str, str]) -> float:
    """How long a receive waits, in seconds; ArgumentInvalid when that cannot be."""
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


def _shown(
    batch: DeliveryBatch, queue: Queue, address: Address, place: RequestOrigin, *, removing: bool
) -> web.Response:
    message, handle = batch.messages[0], batch.fragment
    token = None
    if not removing:
        token = uuid.UUID(bytes_le=tag_of(batch.prefix, batch.first_lock))
    # What is dead lives as long as it takes.
    default_ttl_ms = None if address.sub_queue else queue.description.default_message_time_to_live_ms
    received = show(
        handle, message, default_ttl_ms=default_ttl_ms, lock_token=token, locked_until_ms=batch.locked_until_ms
    )
    response = web.Response(status=200 if removing else 201, body=received.body)
    for name, value in received.headers:
        response.headers.add(name, value)
    if received.content_type and received.content_type.isascii() and received.content_type.isprintable():
        response.headers["Content-Type"] = received.content_type
    if token is not None:
        path = quote("/".join(address.segments()), safe="/$")
        number = sequence_number(handle, message)
        response.headers["Location"] = place.url(f"{path}/messages/{number}/{token}")
    return response
