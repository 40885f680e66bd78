"""A namespace of a broker in this process, whose time a test moves, and a frame-level client of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from duobus.amqp import Coordinator, Declared, DeliveryState, Dispositions, Link, Rejected, Source
from duobus.codec import Described, Symbol, ULong, build_message, scan
from duobus.model.descriptions import QueueDescription, to_json
from duobus.testing.namespace import Broker, FoundMessage, Namespace
from kits.raw_client import RawClient, tags

SESSION_FILTER = Symbol("com.microsoft:session-filter")
SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")


class Reply(NamedTuple):
    """What a management node answered."""

    status: int
    condition: str
    body: Any
    properties: dict[str, Any]


class Held(NamedTuple):
    """A message that a client holds."""

    link: Link
    delivery_id: int
    payload: bytes
    token: uuid.UUID

    @property
    def number(self) -> int:
        """Its sequence number."""
        return number_of(self.payload)


class Place:
    """One namespace with a queue ``q``, and what tests ask of it."""

    def __init__(self, broker: Broker, namespace: Namespace) -> None:
        self._broker = broker
        self._namespace = namespace
        self._members = dict(part.split("=", 1) for part in namespace.connection_string.strip(";").split(";"))
        self.advance = namespace.advance
        self.update = namespace.update_queue

    def create(self, name: str = "q", **properties: Any) -> str:
        """Create a queue."""
        return self._namespace.create_queue(name, **properties)

    def create_topic(self, name: str = "t", **properties: Any) -> str:
        """Create a topic."""
        return self._namespace.create_topic(name, **properties)

    def create_unchecked(self, name: str = "q", **properties: Any) -> str:
        """Create a queue with values that no client may ask for, such as a quota that can be filled."""
        made = QueueDescription(name=name, **properties)
        self._broker.call("create_queue", self._namespace.name, to_json(made).decode())
        return name

    def delete(self, name: str = "q") -> None:
        """Delete a queue."""
        self._broker.call("delete_queue", self._namespace.name, name)

    @contextmanager
    def client(self) -> Iterator[RawClient]:
        """A connection with all rights."""
        login = f"\0{self._members['SharedAccessKeyName']}\0{self._members['SharedAccessKey']}".encode()
        port = int(self._members["Endpoint"].rpartition(":")[2])
        with RawClient(port, mechanism="PLAIN", response=login) as client:
            yield client

    def messages(self, queue: str = "q") -> list[FoundMessage]:
        """Everything that lies in a queue."""
        return self._namespace.messages(queue)

    def bodies(self, queue: str = "q") -> list[bytes]:
        """The contents of everything that lies in a queue."""
        return [message.body for message in self.messages(queue)]


def ask(
    client: RawClient, operation: str, body: Any, *, queue: str = "q", link: Link | None = None, **more: Any
) -> Reply:
    """Ask a queue's management node, on behalf of a link if one is given."""
    properties = {"operation": f"com.microsoft:{operation}", **more}
    if link is not None:
        properties["associated-link-name"] = link.name
    found, answer, _ = client.request(f"{queue}/$management", properties, body)
    return Reply(int(found["statusCode"]), str(found.get("errorCondition", "")), answer, found)


def outcome(client: RawClient, delivery_id: int, *, role: bool = True) -> DeliveryState | None:
    """What the broker says of one delivery of the client's main session; ``role`` is True for what the client sent."""

    def is_it(event: Dispositions) -> bool:
        is_here = event.session is client.session and event.role is role
        return is_here and any(first <= delivery_id <= last for first, last, _, _ in event.ranges)

    event = client.wait(Dispositions, where=is_it)
    index, (first, last, settled, state) = next(
        (index, found) for index, found in enumerate(event.ranges) if found[0] <= delivery_id <= found[1]
    )
    # What it says of others is for whoever asks for them.
    around = [(first, delivery_id - 1, settled, state), (delivery_id + 1, last, settled, state)]
    event.ranges[index : index + 1] = [found for found in around if found[0] <= found[1]]
    client.events.insert(0, event)
    return state


def put(client: RawClient, link: Link, payload: bytes, state: DeliveryState | None = None) -> int:
    """Write a delivery without waiting for its answer; its id."""
    return client.credited(link).send_one(uuid.uuid4().bytes, payload, False, state=state)


def coordinator(client: RawClient) -> Link:
    """Attach a link to the coordinator of transactions."""
    return client.sender("", target=Coordinator(capabilities=["amqp:local-transactions"]))


def declare(client: RawClient, link: Link) -> bytes:
    """Declare a transaction; its id."""
    state = outcome(client, put(client, link, _coordination(ULong(0x31), None)))
    assert isinstance(state, Declared), state
    return state.txn_id


def discharge(client: RawClient, link: Link, txn_id: bytes, *, fail: bool = False) -> DeliveryState | None:
    """Commit a transaction, or roll it back."""
    return outcome(client, put(client, link, _coordination(ULong(0x32), txn_id, fail)))


def _coordination(what: ULong, *fields: object) -> bytes:
    return build_message(None, body_value=Described(what, list(fields)))


def refusal(state: DeliveryState | None) -> str:
    """The condition of a refusal; empty when it is none."""
    if not isinstance(state, Rejected):
        return ""
    assert state.error is not None
    return str(state.error.condition)


def message(body: bytes, *, session_id: str | None = None, **annotations: Any) -> bytes:
    """An encoded message; ``partition_key`` and ``scheduled_enqueue_time`` become the annotations of that name."""
    marks = {Symbol("x-opt-" + name.replace("_", "-")): value for name, value in annotations.items()}
    properties = [uuid.uuid4().hex, *[None] * 9, session_id]
    return build_message(properties, data=body, annotations=marks or None)


def send(client: RawClient, *bodies: bytes, queue: str = "q", session_id: str | None = None) -> None:
    """Send messages and see them accepted."""
    link = client.sender(queue)
    for body in bodies:
        assert refusal(outcome(client, client.send(link, message(body, session_id=session_id)))) == ""
    link.detach()
    client.flush()


def accept(client: RawClient, session_id: str, *, queue: str = "q") -> Link:
    """Accept a session by name; its link has no credit yet."""
    return client.receiver(queue, source=Source(address=queue, filter={SESSION_FILTER: session_id}))


def hold(client: RawClient, number: int = 1, *, queue: str = "q", link: Link | None = None) -> list[Held]:
    """Lock messages, over a link of their own if none is given."""
    link = link or client.receiver(queue)
    link.grant(number)
    return [
        Held(link, delivery_id, payload, uuid.UUID(bytes_le=tag))
        for (delivery_id, payload), tag in zip(client.receive(link, number), tags(client)[-number:], strict=True)
    ]


def settle(client: RawClient, held: Held, state: DeliveryState) -> DeliveryState | None:
    """Settle a message over its link and return the answer."""
    held.link.session.disposition(True, held.delivery_id, held.delivery_id, state, False)
    return outcome(client, held.delivery_id, role=False)


def number_of(payload: bytes) -> int:
    """The sequence number of an encoded message."""
    annotations = scan(payload).annotations
    assert annotations is not None
    return int(annotations[SEQUENCE_NUMBER])
