"""``$management`` of a sharded queue over the stores of several servers."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from sharding_kit import ShardedRoom, sharded_entities
from transaction_kit import condition, coordinator, declare, discharge_message, outcome, put, send

from duobus.amqp import ACCEPTED, LinkAttached, Modified, Source, Target, TransactionalState, Transfers
from duobus.codec import Array, Symbol, Timestamp, UInt, application_properties, build_message, decode, scan
from duobus.codec.sections import VALUE, find_section
from duobus.gateway.amqp.management.node import ManagementNode
from kits.gateway import in_loop, settled


class Asking:
    """A pair of links to the node."""

    def __init__(self, room: ShardedRoom) -> None:
        self.room = room
        self.name = uuid.uuid4().hex

    async def begin(self, node: str = "q/$management") -> Asking:
        session = self.room.client.session
        self.replies = session.attach_receiver(self.name, Source(address=node), Target(address=self.name))
        self.requests = session.attach_sender(f"r{self.name}", Source(address="c"), Target(address=node))
        for link in (self.replies, self.requests):
            await self.room.client.wait(LinkAttached, lambda event, link=link: event.link is link)
        self.replies.grant(100)
        while not self.requests.sendable():
            await self.room.client.pump()
        return self

    async def ask(self, operation: str, body: dict[str, Any], **about: Any) -> tuple[int, Any]:
        number = uuid.uuid4()
        name = operation if ":" in operation else f"com.microsoft:{operation}"
        properties = {"operation": name, **about}
        payload = build_message([number, None, None, None, self.name], properties, body_value=body)
        self.requests.send_one(number.bytes, payload, True)
        event = await self.room.client.wait(Transfers, lambda event: event.link is self.replies)
        (reply,) = event.payloads
        found = scan(reply)
        assert found.correlation_id == number
        bare = reply[found.bare :]
        start, value, _ = find_section(bare, VALUE)
        return int(application_properties(bare)["statusCode"]), None if start == value else decode(bare, value)[0]


async def _filled(room: ShardedRoom, number: int) -> None:
    sender = await room.client.sender("q")
    for index in range(number):
        assert await room.client.send(sender, b"%d" % index) == ACCEPTED


async def _locked(room: ShardedRoom, number: int) -> tuple[list[int], list[uuid.UUID]]:
    """Delivery ids and lock tokens of so many messages."""
    receiver = await room.client.receiver("q", credit=number)
    receiver.tags = []
    ids: list[int] = []
    while len(ids) < number:
        event = await room.client.wait(Transfers, lambda event: event.link is receiver)
        ids += [event.first_delivery_id + index for index in range(len(event.payloads))]
    return ids, [uuid.UUID(bytes_le=tag) for tag in receiver.tags]


def _numbers(body: Any) -> list[int]:
    found = [scan(entry["message"]).annotations or {} for entry in body["messages"]]
    return [int(one[Symbol("x-opt-sequence-number")]) for one in found]


@in_loop
async def test_a_peek_sees_what_every_share_has_in_order() -> None:
    async with sharded_entities() as room:
        node = await Asking(room).begin()
        assert (await node.ask("peek-message", {"from-sequence-number": 0, "message-count": 5}))[0] == 204
        await _filled(room, 10)
        status, body = await node.ask("peek-message", {"from-sequence-number": 0, "message-count": 100})
        numbers = _numbers(body)
        assert status == 200
        assert len(numbers) == 10
        assert numbers == sorted(numbers)
        assert {number >> 48 < 8 for number in numbers} == {True, False}
        _, body = await node.ask("peek-message", {"from-sequence-number": numbers[4] + 1, "message-count": 3})
        assert _numbers(body) == numbers[5:8]


@in_loop
async def test_a_peek_passes_over_a_share_without_an_owner() -> None:
    async with sharded_entities() as room:
        await _filled(room, 6)
        node = await Asking(room).begin()
        room.about.away = {1}
        _, body = await node.ask("peek-message", {"from-sequence-number": 0, "message-count": 100})
        assert len(_numbers(body)) == 3
        room.about.away = {1, 2}
        assert (await node.ask("peek-message", {"from-sequence-number": 0, "message-count": 100}))[0] == 503


@in_loop
async def test_locks_are_renewed_and_settled_by_token_wherever_they_are() -> None:
    async with sharded_entities() as room:
        await _filled(room, 6)
        _, tokens = await _locked(room, 6)
        node = await Asking(room).begin()
        status, body = await node.ask("renew-lock", {"lock-tokens": Array(uuid.UUID, tokens)})
        assert status == 200
        assert body["expirations"].kind is Timestamp
        assert len(body["expirations"].items) == 6
        settle = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, tokens[:5])}
        assert (await node.ask("update-disposition", settle))[0] == 200
        await settled(lambda: sum(room.numbers()) == 1)
        assert (await node.ask("update-disposition", {**settle, "lock-tokens": Array(uuid.UUID, tokens[:1])}))[0] == 410
        unknown = uuid.UUID(bytes_le=b"\x01\x00" + tokens[0].bytes_le[2:])
        assert (await node.ask("renew-lock", {"lock-tokens": Array(uuid.UUID, [unknown])}))[0] == 410
        one = await node.ask("renew-lock", {"lock-tokens": Array(uuid.UUID, tokens[5:])})
        assert one[0] == 200
        assert one[1]["expirations"].kind is Timestamp


@in_loop
async def test_deferred_messages_are_received_by_number_wherever_they_are() -> None:
    async with sharded_entities() as room:
        await _filled(room, 4)
        receiver = await room.client.receiver("q", credit=4)
        numbers: list[int] = []
        while len(numbers) < 4:
            event = await room.client.wait(Transfers, lambda event: event.link is receiver)
            for index, payload in enumerate(event.payloads):
                numbers.append(int((scan(payload).annotations or {})[Symbol("x-opt-sequence-number")]))
                delivery_id = event.first_delivery_id + index
                receiver.settle(delivery_id, delivery_id, Modified(None, True, None))
        await room.client.flush()
        await settled(lambda: sum(room.numbers(3)) == 4)
        node = await Asking(room).begin()
        asked = {"sequence-numbers": Array(int, numbers), "receiver-settle-mode": UInt(1)}
        status, body = await node.ask("receive-by-sequence-number", asked)
        assert status == 200
        assert _numbers(body) == numbers
        tokens = [entry["lock-token"] for entry in body["messages"]]
        settle = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, tokens)}
        assert (await node.ask("update-disposition", settle))[0] == 200
        assert (await node.ask("receive-by-sequence-number", asked))[0] == 404


def _later(key: str | None = None) -> dict[str, Any]:
    at = Timestamp(int(datetime.now(UTC).timestamp() * 1000) + 3_600_000)
    annotations: dict[Any, Any] = {Symbol("x-opt-scheduled-enqueue-time"): at}
    if key is not None:
        annotations[Symbol("x-opt-partition-key")] = key
    message = build_message([uuid.uuid4().hex], data=b"later", annotations=annotations)
    return {"message-id": uuid.uuid4().hex, "message": message}


@in_loop
async def test_messages_are_scheduled_and_cancelled_wherever_they_belong() -> None:
    async with sharded_entities() as room:
        node = await Asking(room).begin()
        numbers: list[int] = []
        for _ in range(4):
            status, body = await node.ask("schedule-message", {"messages": [_later(), _later()]})
            assert status == 200
            numbers += body["sequence-numbers"].items
        assert room.numbers(4) == [4, 4]
        status, body = await node.ask("schedule-message", {"messages": [_later("k")]})
        fragment = body["sequence-numbers"].items[0] >> 48
        assert room.about.sharded_entity is not None
        assert room.about.sharded_entity.of_number(fragment) == room.about.sharded_entity.of_key(b"sk")
        cancel = {"sequence-numbers": Array(int, numbers)}
        assert (await node.ask("cancel-scheduled-message", cancel))[0] == 200
        await settled(lambda: sum(room.numbers(4)) == 1)
        keys = [key for key in map(str, range(40)) if room.about.sharded_entity.of_key(b"s" + key.encode()) == 0]
        other = next(key for key in map(str, range(40)) if key not in keys)
        assert (await node.ask("schedule-message", {"messages": [_later(keys[0]), _later(other)]}))[0] == 400


@in_loop
async def test_messages_are_deleted_in_all_shares() -> None:
    async with sharded_entities() as room:
        await _filled(room, 8)
        node = await Asking(room).begin()
        before = Timestamp(int(datetime.now(UTC).timestamp() * 1000) + 60_000)
        status, body = await node.ask("batch-delete-messages", {"message-count": UInt(6), "enqueued-time-utc": before})
        assert (status, body["message-count"]) == (200, 6)
        assert sum(room.numbers()) == 2
        status, body = await node.ask("duobus:purge-messages", {})
        assert (status, body["message-count"], body["is-complete"]) == (200, 2, True)


@in_loop
async def test_what_is_no_operation_is_refused_by_a_share() -> None:
    async with sharded_entities() as room:
        node = await Asking(room).begin()
        assert (await node.ask("nonsense", {}))[0] == 501
        assert (await node.ask("get-message-sessions", {}))[0] == 400


@in_loop
async def test_the_node_outlives_the_owner_of_a_share() -> None:
    async with sharded_entities() as room:
        await _filled(room, 4)
        node = await Asking(room).begin()
        ask = {"from-sequence-number": 0, "message-count": 100}
        assert len(_numbers((await node.ask("peek-message", ask))[1])) == 4
        for peer in list(room.owners[1].amqp.peers):
            peer.abort()
        await settled(lambda: not room.owners[1].amqp.peers)
        assert len(_numbers((await node.ask("peek-message", ask))[1])) == 4


@in_loop
async def test_a_request_that_a_lost_owner_was_told_of_is_answered_as_unknown() -> None:
    """An owner that is lost may have done it: a client that hears "refused" would believe that it was not (I38)."""
    async with sharded_entities() as room:
        node = await Asking(room).begin()
        assert (await node.ask("peek-message", {"from-sequence-number": 0, "message-count": 1}))[0] == 204
        told: list[Any] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ManagementNode, "handle", lambda *request: told.append(request))
            asked = asyncio.ensure_future(node.ask("schedule-message", {"messages": [_later()]}))
            await settled(lambda: bool(told))
            for server in room.owners.values():
                for peer in list(server.amqp.peers):
                    peer.abort()
            assert (await asked)[0] == 408


@in_loop
async def test_a_request_in_a_transaction_is_refused_before_the_discharge_that_follows_it() -> None:
    async with sharded_entities() as room:
        client = room.client
        controller = await coordinator(client)
        sender = await client.sender("own")
        asking = await Asking(room).begin()
        txn = await declare(client, controller)
        await send(client, sender, txn, b"kept")
        # In one write, before anything is answered.
        properties = {"operation": "com.microsoft:cancel-scheduled-message"}
        payload = build_message(["request"], properties, body_value={"sequence-numbers": Array(int, [1])})
        put(asking.requests, payload, TransactionalState(txn), settled=True)
        end = put(controller, discharge_message(txn))
        assert condition(await outcome(client, end)) == "amqp:transaction:rollback"
        assert room.front.unit.namespace("ns").queues["own"].numbers()[0][0] == 0
