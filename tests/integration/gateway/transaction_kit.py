"""A client that works in transactions, over the frame client of ``kits.gateway``."""

from __future__ import annotations

import uuid
from typing import Any

from duobus.amqp import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    Dispositions,
    Link,
    LinkAttached,
    Rejected,
    Source,
    TransactionalState,
)
from duobus.codec import Described, Symbol, ULong, application_properties, build_message, decode, scan
from duobus.codec.sections import VALUE, find_section
from kits.gateway import Client, message

CAPABILITY = "amqp:local-transactions"


async def coordinator(client: Client) -> Link:
    """Attach a link to the coordinator."""
    target = Coordinator(capabilities=[CAPABILITY])
    link = client.session.attach_sender(uuid.uuid4().hex, Source(address="c"), target)
    await client.wait(LinkAttached, lambda event: event.link is link)
    while not link.sendable():
        await client.pump()
    return link


async def outcome(client: Client, delivery_id: int, *, role: bool = True) -> DeliveryState | None:
    """What the server says of one delivery."""
    while True:
        for event in client.events:
            if isinstance(event, Dispositions) and event.role is role:
                for first, last, settled, state in event.ranges:
                    if first <= delivery_id <= last:
                        assert settled
                        return state
        await client.pump()


def declare_message() -> bytes:
    """What asks for a transaction."""
    return build_message(None, None, body_value=Described(ULong(0x31), [None]))


def discharge_message(txn_id: Any, fail: Any = False) -> bytes:
    """What ends a transaction."""
    return build_message(None, None, body_value=Described(ULong(0x32), [txn_id, fail]))


def put(link: Link, payload: bytes, state: DeliveryState | None = None, *, settled: bool = False) -> int:
    """Write one delivery; its id."""
    return link.send_one(uuid.uuid4().bytes, payload, settled, state=state)


async def declare(client: Client, link: Link) -> bytes:
    """Declare a transaction; its id."""
    state = await outcome(client, put(link, declare_message()))
    assert isinstance(state, Declared), state
    return state.txn_id


async def discharge(client: Client, link: Link, txn_id: bytes, *, fail: bool = False) -> DeliveryState | None:
    """Commit a transaction, or roll it back."""
    return await outcome(client, put(link, discharge_message(txn_id, fail)))


async def send(client: Client, link: Link, txn_id: bytes, body: bytes, **about: Any) -> DeliveryState | None:
    """Send a message in a transaction."""
    return await outcome(client, put(link, keyed(body, **about), TransactionalState(txn_id)))


async def settle(client: Client, txn_id: bytes, delivery_id: int, what: DeliveryState) -> DeliveryState | None:
    """Settle a delivery in a transaction."""
    forget(client, delivery_id)
    client.session.disposition(True, delivery_id, delivery_id, TransactionalState(txn_id, what), False)
    return await outcome(client, delivery_id, role=False)


async def settle_plainly(client: Client, delivery_id: int, what: DeliveryState) -> DeliveryState | None:
    """Settle a delivery outside of any transaction."""
    forget(client, delivery_id)
    client.session.disposition(True, delivery_id, delivery_id, what, False)
    return await outcome(client, delivery_id, role=False)


def forget(client: Client, delivery_id: int) -> None:
    """Drop what the server said of a delivery of its own before."""
    client.events = [
        event
        for event in client.events
        if not (isinstance(event, Dispositions) and not event.role and event.ranges[0][0] == delivery_id)
    ]


def keyed(body: bytes, *, key: str | None = None, session: str | None = None) -> bytes:
    """An encoded message with a partition key or a session id."""
    if key is None and session is None:
        return message(body)
    properties: list[Any] = [uuid.uuid4().hex, *[None] * 9, session]
    annotations = {Symbol("x-opt-partition-key"): key} if key is not None else None
    return build_message(properties, data=body, annotations=annotations)


def condition(state: DeliveryState | None) -> str:
    """The condition of a refusal."""
    assert isinstance(state, Rejected), state
    assert state.error is not None
    return str(state.error.condition)


async def bodies(client: Client, queue: str = "q", *, at_most: int = 100) -> list[bytes]:
    """Everything that a queue has to give now, received and completed."""
    link = await client.receiver(queue)
    link.grant(at_most, drain=True)
    found: list[bytes] = []
    while link.drain:
        await client.pump()
        for event in list(client.events):
            if getattr(event, "link", None) is link and hasattr(event, "payloads"):
                client.events.remove(event)
                for offset, payload in enumerate(event.payloads):
                    found.append(payload[payload.rfind(b"\x53\x75") + 4 :])
                    await settle_plainly(client, event.first_delivery_id + offset, ACCEPTED)
    link.detach()
    await client.flush()
    return found


class Manager:
    """A pair of links to the management node of a queue."""

    def __init__(self, client: Client, requests: Link, replies: Link, node: str) -> None:
        self._client, self._requests, self._replies, self._node = client, requests, replies, node
        #: Of the last answer.
        self.body: Any = None

    @classmethod
    async def attach(cls, client: Client, queue: str = "q") -> Manager:
        node = f"{queue}/$management"
        replies = await client.receiver(node, credit=50)
        return cls(client, await client.sender(node), replies, node)

    async def ask(self, operation: str, body: Any, txn_id: bytes | None = None) -> tuple[int, str | None, Any]:
        """(status, condition, outcome of the request's delivery)."""
        properties = {"operation": f"com.microsoft:{operation}"}
        payload = build_message([uuid.uuid4().hex], properties, body_value=body)
        number = put(self._requests, payload, TransactionalState(txn_id) if txn_id is not None else None)
        _, reply = await self._client.receive(self._replies)
        bare = reply[scan(reply).bare :]
        found = application_properties(bare)
        start, value, _ = find_section(bare, VALUE)
        self.body = None if start == value else decode(bare, value)[0]
        return int(found["statusCode"]), found.get("errorCondition"), await outcome(self._client, number)


class AllRemote:
    """Says that other servers have what is not here; see ``RemoteEntities``."""

    def find(self, namespace: str, path: str) -> Any:
        raise AssertionError("nothing is carried in these tests")

    def knows(self, namespace: str, path: str) -> bool:
        return path in ("own", "q", "near", "p")

    async def refresh(self) -> None:
        return

    def gone(self, origin: Any, counts: list[int]) -> list[int]:
        return []
