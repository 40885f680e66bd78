"""Sending: what is asked of the messages of one request, and how they get to the broker (Azure: Service Bus REST API).

A send comes by one of two ways, which check the same: as a request of the general HTTP server (``messages``), or as an
plain one by the fast path, which reads it straight from the connection (``heads``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from duobus.broker import MAIN, Queue, ScaleUnit
from duobus.broker.entities.namespace import Namespace
from duobus.clock import Entropy
from duobus.errors import EntityDisabled, EntityNotFound, MessageTooLarge, NotAllowed, ServiceBusError
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.error_responses import Answers
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.runtime.broker_properties import BrokerProperties, read_header
from duobus.gateway.rest.runtime.header_values import read_properties
from duobus.gateway.rest.runtime.requests import Outgoing, make_message, read_batch
from duobus.gateway.rest.runtime.send_head import Head
from duobus.model.address import Address
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.descriptions import ACTIVE, RECEIVE_DISABLED, Right
from duobus.model.metering import PING, SEND, operations_of
from duobus.model.options import HttpOptions

#: The most that one request sends, in bytes (Azure: quotas), whatever the entity would take over AMQP.
SEND_BYTES_MAX: Final = 1 << 20
BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"

#: ``meter(namespace, entity, kind, messages, bytes, operations, key)``.
Meter = Callable[[str, str, str, int, int, int, str], None]


class Sent:
    """One request on its way: what is known of it until its messages are durable.

    Attributes:
        queue: Where it sends to.
        batch: Its messages.
        key: Whom its token speaks for.
        size: Bytes of its body, for which there is room.
    """

    __slots__ = ("batch", "key", "queue", "size")

    def __init__(self, queue: Queue, batch: SendBatch, key: str, size: int) -> None:
        self.queue = queue
        self.batch = batch
        self.key = key
        self.size = size


class Sends:
    """Takes in what requests send.

    Args:
        unit: Where the entities are.
        guard: Who may.
        answers: Makes refusals.
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
        entropy: Entropy,
        options: HttpOptions,
        meter: Meter,
        room: BodyBudget,
    ) -> None:
        self._unit = unit
        self._guard = guard
        self._answers = answers
        self._entropy = entropy
        self._options = options
        self._meter = meter
        self._room = room

    # -- for both ways ------------------------------------------------------------------------------------------

    def demand_target(self, queue: Queue, address: Address) -> int:
        """Raise unless messages can be sent to an address; returns the most bytes of one."""
        if address.sub_queue != MAIN:
            raise NotAllowed("Messages cannot be sent to a dead-letter queue.")
        if address.subscription is not None:
            raise NotAllowed("Messages cannot be sent to a subscription. Send to its topic.")
        demand_status(queue, (ACTIVE, RECEIVE_DISABLED))
        return min(queue.description.max_message_size_bytes, SEND_BYTES_MAX)

    def batch(
        self,
        body: bytes,
        content_type: str | None,
        properties: str | None,
        others: Any,
        queue: Queue,
        home: Namespace,
        limit: int,
        reply: Mailbox,
    ) -> SendBatch:
        """Make of a request what the broker takes.

        Args:
            body: Its body.
            content_type: The header of this name, or None.
            properties: The header BrokerProperties, or None.
            others: Name and value of all headers that may be properties.
            queue: Where it goes.
            home: The namespace of that.
            limit: See ``demand_target``.
            reply: Gets the result.

        Raises:
            ServiceBusError: It is refused; nothing has happened.
        """
        is_batch = is_batch_type(content_type)
        messages: list[Outgoing]
        if is_batch:
            messages = read_batch(body, self._entropy)
        else:
            about = BrokerProperties() if properties is None else read_header(properties)
            messages = [make_message(body, about, read_properties(others), content_type, self._entropy)]
        pings = 0
        for message in messages:
            if len(message.bare) > limit:
                raise MessageTooLarge(f"A message has {len(message.bare)} bytes; '{queue.path}' allows {limit} here.")
            queue.demand_session(message.metadata, is_ping=message.is_ping)
            pings += message.is_ping
        if home.throttle is not None and not home.throttle.admit_whole(len(messages)):
            raise home.throttle.refusal()
        if pings == len(messages):
            # They prove that the entity can store, and are not kept.
            proof = SendBatch(0, [message.bare for message in messages], True, reply)
            proof.ping = proof.atomic = True
            return proof
        if pings:
            messages = [message for message in messages if not message.is_ping]
        batch = SendBatch(0, [message.bare for message in messages], True, reply)
        batch.atomic = is_batch
        batch.extra = {
            index: message.metadata for index, message in enumerate(messages) if message.metadata is not None
        } or None
        if queue.is_partitioned and any(message.key is not None for message in messages):
            batch.keys = [message.key for message in messages]
        return batch

    def count(self, queue: Queue, batch: SendBatch, key: str) -> None:
        """Meter messages that are durable."""
        operations = sum(map(operations_of, map(len, batch.payloads)))
        kind = PING if batch.ping else SEND
        self._meter(queue.namespace, queue.path, kind, batch.n, batch.bytes_total, operations, key)

    # -- for the fast path -----------------------------------------------------------------------------------

    def prepare(self, head: Head, body: bytes, reply: Mailbox) -> Sent:
        """Check a plain send, in the order of ``Messages.answer``, and make of it what the queue takes.

        Raises:
            ServiceBusError: It is refused, for whatever reason; nothing has happened.
        """
        address, target = head.address, head.target
        rules = self._guard.namespace_of(head.host)
        key = self._guard.demand_text(head.authorization, target, rules, Right.SEND)
        home = self._unit.namespace(rules.name)
        if address.is_management or address.is_cbs:
            raise NotAllowed("Messages have no such address over HTTP. Use the address of an entity.")
        queue = home.resolve(address)
        self._options.demand_version(target.query, queue.is_partitioned)
        limit = self.demand_target(queue, address)
        if len(body) > limit and not is_batch_type(head.content_type):
            raise MessageTooLarge(f"The body is larger than {limit} bytes, which is the most that is allowed here.")
        batch = self.batch(body, head.content_type, head.broker_properties, head.others, queue, home, limit, reply)
        self._room.take(len(body))
        return Sent(queue, batch, key, len(body))

    def refusal(self, head: Head, error: ServiceBusError) -> web.Response:
        """The answer to a request that ``prepare`` has refused."""
        name = self._guard.namespace_of(head.host).name
        if isinstance(error, EntityNotFound):
            return self._answers.missing(error, name, "/".join(head.target.segments[:-1]))
        return self._answers.refusal(error, name, head.path)

    def done(self, sent: Sent, error: ServiceBusError | None) -> web.Response | None:
        """A request has come to its end: the answer to it where it was refused, None where it is durable."""
        self._room.give(sent.size)
        if error is not None:
            queue = sent.queue
            return self._answers.refusal(error, queue.namespace, f"/{queue.path}/messages")
        self.count(sent.queue, sent.batch, sent.key)
        return None

    def fault(self, sent: Sent, error: BaseException) -> web.Response:
        """The same for one that met a fault of ours."""
        self._room.give(sent.size)
        return self._answers.fault(error, sent.queue.namespace, f"/{sent.queue.path}/messages")


def is_batch_type(content_type: str | None) -> bool:
    """Whether a body is a list of messages."""
    return content_type is not None and content_type.partition(";")[0].strip().lower() == BATCH_TYPE


def demand_status(queue: Queue, allowed: tuple[str, ...]) -> None:
    """Raise EntityDisabled unless an entity has one of the statuses."""
    status = queue.description.status
    if status not in allowed:
        raise EntityDisabled(f"The {queue.kind} '{queue.path}' has the status {status}. Enable it, then try again.")
