"""HTTP requests about a sharded queue: the shard to which each goes."""

from __future__ import annotations

import json
import uuid

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from duobus.cluster.http.shards import HttpShardRouter, summed
from duobus.cluster.shards import SHARDED, ShardedEntityMap, assign_shards
from duobus.errors import ArgumentInvalid, MessageLockLost, StoreUnavailable
from duobus.gateway.rest.atom.xml.writer import time_text
from duobus.gateway.rest.request_target import parse_target
from duobus.gateway.rest.runtime.routes import call_of
from duobus.model.address import shard_path
from duobus.model.descriptions import QueueDescription, to_json
from duobus.storage.catalog_rows import LIVE, EntityRow
from kits.gateway import in_loop

SPREAD_QUEUE = ShardedEntityMap(
    EntityRow(1, "ns", SHARDED, "a/q", to_json(QueueDescription(name="a/q")), LIVE, 1, ()),
    [
        EntityRow(2 + i, "ns", "queue", shard_path("a/q", i + 1), b"", LIVE, 4, slots)
        for i, slots in enumerate(assign_shards(8, [1, 2]))
    ],
)


class Owners:
    """Answers for shares: the status of each, None when it has no server."""

    def __init__(self, *statuses: int | None) -> None:
        self.statuses = statuses
        self.asked: list[tuple[int, str]] = []
        self.bodies: list[bytes | None] = []
        self.body = b""
        self.router = HttpShardRouter()

    async def send(self, index: int, path: str, body: bytes | None) -> web.Response | None:
        self.asked.append((index, path))
        self.bodies.append(body)
        status = self.statuses[index]
        return None if status is None else web.Response(status=status)

    async def read(self, limit: int) -> bytes:
        assert len(self.body) <= limit
        return self.body

    async def ask(self, method: str, path: str, **headers: str) -> int:
        request = make_mocked_request(method, path, headers=headers)
        target = parse_target(path)
        call = call_of(method, target)
        assert call is not None
        return (await self.router.answer(call, request, target, SPREAD_QUEUE, self.send, self.read)).status


def _key(share: int) -> str:
    return next(key for key in map(str, range(100)) if SPREAD_QUEUE.of_key(b"s" + key.encode()) == share)


@in_loop
async def test_sends_go_by_turns_and_past_shares_without_a_server() -> None:
    owners = Owners(201, 201)
    for _ in range(4):
        assert await owners.ask("POST", "/a/q/messages") == 201
    assert sorted(owners.asked) == [(0, "/a/q/~share/1/messages")] * 2 + [(1, "/a/q/~share/2/messages")] * 2
    owners = Owners(None, 201)
    assert [await owners.ask("POST", "/a/q/messages") for _ in range(4)] == [201] * 4
    with pytest.raises(StoreUnavailable):
        await Owners(None, None).ask("POST", "/a/q/messages")


@in_loop
async def test_a_send_with_a_key_goes_where_the_key_belongs_and_nowhere_else() -> None:
    owners = Owners(201, None)
    for name in ("PartitionKey", "SessionId"):
        assert await owners.ask("POST", "/a/q/messages", BrokerProperties=json.dumps({name: _key(0)})) == 201
    with pytest.raises(StoreUnavailable):
        await owners.ask("POST", "/a/q/messages", BrokerProperties=json.dumps({"PartitionKey": _key(1)}))
    assert {index for index, _ in owners.asked[:2]} == {0}


def _batch(*keys: str | None, name: str = "PartitionKey") -> bytes:
    return json.dumps([{"Body": "m", "BrokerProperties": {} if key is None else {name: key}} for key in keys]).encode()


@in_loop
async def test_a_batch_goes_as_a_whole_to_the_share_of_its_keys() -> None:
    json_batch = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    owners = Owners(201, 201)
    owners.body = _batch(_key(1), _key(1))
    assert await owners.ask("POST", "/a/q/messages", **json_batch) == 201
    assert owners.asked == [(1, "/a/q/~share/2/messages")]
    assert owners.bodies == [owners.body]
    owners.body = _batch(None, None)
    assert await owners.ask("POST", "/a/q/messages", **json_batch) == 201
    owners.body = _batch(_key(0), _key(1))
    with pytest.raises(ArgumentInvalid, match="different fragments"):
        await owners.ask("POST", "/a/q/messages", **json_batch)
    owners.body = b"[1]"
    with pytest.raises(ArgumentInvalid, match="Message 0"):
        await owners.ask("POST", "/a/q/messages", **json_batch)


@in_loop
async def test_a_receive_asks_every_share_and_waits_as_long_as_the_client() -> None:
    owners = Owners(204, 201)
    assert [await owners.ask("POST", "/a/q/messages/head?timeout=5") for _ in range(2)] == [201, 201]
    assert all(path.endswith("/messages/head?timeout=0") for _, path in owners.asked)
    owners = Owners(204, None)
    assert await owners.ask("DELETE", "/a/q/$deadletterqueue/messages/head?timeout=0.4") == 204
    assert owners.asked[0][1].startswith("/a/q/~share/")
    assert "/$deadletterqueue/messages/head" in owners.asked[0][1].replace("%24", "$")
    assert len(owners.asked) == 4


@in_loop
async def test_a_lock_names_its_share() -> None:
    owners = Owners(200, 200)
    token = uuid.UUID(bytes_le=(5).to_bytes(2, "big") + bytes(14))
    assert await owners.ask("DELETE", f"/a/q/messages/7/{token}") == 200
    assert owners.asked == [(1, f"/a/q/~share/2/messages/7/{token}")]
    with pytest.raises(MessageLockLost):
        await owners.ask("DELETE", f"/a/q/messages/7/{uuid.UUID(bytes_le=bytes([0, 99]) + bytes(14))}")


def test_numbers_of_all_shares_are_added_up() -> None:
    def entry(size: int, active: int) -> str:
        return (
            f"<SizeInBytes>{size}</SizeInBytes><MessageCount>{active}</MessageCount><MaxDeliveryCount>10"
            f"</MaxDeliveryCount><d2p1:ActiveMessageCount>{active}</d2p1:ActiveMessageCount>"
        )

    assert summed(entry(0, 0), [entry(10, 1), entry(20, 2)]) == entry(30, 3)


def test_an_entity_was_used_last_when_its_part_was_that_was_used_last() -> None:
    parts = [f"<AccessedAt>{time_text(at_ms)}</AccessedAt>" for at_ms in (0, 1_700_000_000_000, 1_700_000_000_007)]
    assert summed(parts[0], [parts[2], parts[1]]) == parts[2]
    assert summed(parts[1], [parts[0]]) == parts[1]
    assert summed(parts[0], []) == parts[0]
    assert summed("<CreatedAt>x</CreatedAt>", parts) == "<CreatedAt>x</CreatedAt>"


@in_loop
async def test_an_entry_says_when_a_part_of_its_queue_has_no_server() -> None:
    owners = Owners(200, None)
    own = web.Response(text="<S>Available</S>", headers={"Content-Type": "application/atom+xml;type=entry"})
    answer = await owners.router.entry(own, parse_target("/a/q"), SPREAD_QUEUE, owners.send)
    assert isinstance(answer, web.Response)
    assert answer.body == b"<S>Limited</S>"
