"""Sessions, duplicate detection, transactions and claims of a queue over the stores of several servers."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from sharding_kit import ShardedRoom, names_in, sharded_entities
from test_shard_management import Asking
from transaction_kit import Manager, condition, coordinator, declare, discharge, keyed, outcome, put, send, settle

from duobus.amqp import (
    ACCEPTED,
    Link,
    LinkAttached,
    LinkDetached,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfers,
)
from duobus.codec import Array, Symbol, Timestamp, UInt, build_message
from duobus.gateway.amqp.links.session_link import TIMEOUT
from kits.gateway import Client, in_loop, settled

FILTER = Symbol("com.microsoft:session-filter")


async def _fill(room: ShardedRoom, *sessions: str, each: int = 1) -> None:
    sender = await room.client.sender("q")
    for session in sessions:
        for number in range(each):
            assert await outcome(room.client, put(sender, keyed(b"%d" % number, session=session))) == ACCEPTED


def _ask_for(client: Client, session: str | None, wait_ms: int = 60_000) -> Link:
    return client.session.attach_receiver(
        uuid.uuid4().hex,
        Source(address="q", filter={FILTER: session}),
        Target(address="c"),
        properties={Symbol(TIMEOUT): UInt(wait_ms)},
    )


async def _answer(client: Client, link: Link) -> str:
    """The session that a link got, or the condition of its refusal."""
    await client.flush()
    await client.wait(LinkAttached, lambda event: event.link is link)
    remote: Any = link.remote
    if remote.source is None:
        event = await client.wait(LinkDetached, lambda event: event.link is link)
        assert event.error is not None
        return str(event.error.condition)
    assert remote.source.address == "q"
    return str(remote.source.filter[FILTER])


@in_loop
async def test_a_named_session_is_given_by_its_shard_to_one_client_at_a_time() -> None:
    async with sharded_entities(requires_session=True) as room:
        names = [*names_in(room, 0), *names_in(room, 1)]
        await _fill(room, *names, each=2)
        other = await room.again()
        for name in names:
            link = _ask_for(room.client, name)
            assert await _answer(room.client, link) == name
            assert await _answer(other, _ask_for(other, name)) == "com.microsoft:session-cannot-be-locked"
            for number in range(2):
                link.grant(1)
                await room.client.flush()
                delivery, payload = await room.client.receive(link)
                assert payload.endswith(b"%d" % number)
                link.settle(delivery, delivery, ACCEPTED)
            await room.client.flush()
        await settled(lambda: room.numbers() == [0, 0])


@in_loop
async def test_the_next_available_session_comes_from_all_shards_and_locks_no_other() -> None:
    async with sharded_entities(requires_session=True) as room:
        names = [*names_in(room, 0, 2), *names_in(room, 1, 2)]
        await _fill(room, *names)
        found = [await _answer(room.client, _ask_for(room.client, None)) for _ in range(2)]
        other = await room.again()
        for name in set(names) - set(found):
            assert await _answer(other, _ask_for(other, name)) == name


@in_loop
async def test_who_waits_for_a_session_gets_the_first_of_any_shard_and_leaves_the_others_free() -> None:
    async with sharded_entities(requires_session=True) as room:
        for index in (0, 1):
            link = _ask_for(room.client, None)
            await room.client.flush()
            await settled(lambda: [len(room.share(number).acceptor or ()) for number in room.owners] == [1, 1])
            (name,) = names_in(room, index, 1)
            await _fill(room, name)
            assert await _answer(room.client, link) == name
            await settled(lambda: [len(room.share(number).acceptor or ()) for number in room.owners] == [0, 0])


@in_loop
async def test_a_client_that_gives_up_waits_nowhere_and_one_whose_time_is_over_is_told() -> None:
    async with sharded_entities(requires_session=True) as room:
        assert await _answer(room.client, _ask_for(room.client, None, 100)) == "com.microsoft:timeout"
        link = _ask_for(room.client, None)
        await room.client.flush()
        await settled(lambda: [len(room.share(number).acceptor or ()) for number in room.owners] == [1, 1])
        link.detach()
        await room.client.flush()
        await settled(lambda: [len(room.share(number).acceptor or ()) for number in room.owners] == [0, 0])


@in_loop
async def test_shards_without_a_server_are_left_out_of_the_search_for_a_session() -> None:
    async with sharded_entities(requires_session=True) as room:
        names = [*names_in(room, 0, 1), *names_in(room, 1, 1)]
        await _fill(room, *names)
        room.about.away = {1}
        other = await room.again()
        assert await _answer(other, _ask_for(other, None)) == names[1]
        link = _ask_for(other, None)
        await other.flush()
        room.about.away = set()
        # It is found within a tick of its server's.
        assert await _answer(other, link) == names[0]


@in_loop
async def test_a_receiver_without_a_session_is_refused_and_dead_letters_need_none() -> None:
    async with sharded_entities(requires_session=True) as room:
        link = room.client.session.attach_receiver("r", Source(address="q"), Target(address="c"))
        await room.client.wait(LinkAttached, lambda event: event.link is link)
        event = await room.client.wait(LinkDetached, lambda event: event.link is link)
        assert event.error is not None
        assert event.error.condition == "amqp:not-allowed"
        await room.client.receiver("q/$deadletterqueue")


@in_loop
async def test_the_state_of_a_session_is_kept_by_its_shard_and_named_by_id_or_link() -> None:
    async with sharded_entities(requires_session=True) as room:
        node = await Asking(room).begin()
        for index in (0, 1):
            (name,) = names_in(room, index, 1)
            link = _ask_for(room.client, name)
            assert await _answer(room.client, link) == name
            assert (await node.ask("set-session-state", {"session-id": name, "session-state": b"kept"}))[0] == 200
            assert (await node.ask("get-session-state", {"session-id": name}))[1] == {"session-state": b"kept"}
            by_link = await node.ask("renew-session-lock", {}, **{"associated-link-name": link.name})
            assert by_link[0] == 200
        assert (await node.ask("get-session-state", {"session-id": names_in(room, 0)[2]}))[0] == 410
        assert (await node.ask("renew-session-lock", {}))[0] == 410


@in_loop
async def test_sessions_are_listed_over_all_shards_page_by_page() -> None:
    async with sharded_entities(requires_session=True) as room:
        names = [*names_in(room, 0, 4), *names_in(room, 1, 4)]
        await _fill(room, *names)
        node = await Asking(room).begin()
        found: list[str] = []
        while True:
            asked = {"last-updated-time": 253_402_300_799_000, "skip": len(found), "top": 3}
            status, body = await node.ask("get-message-sessions", asked)
            if status == 204:
                break
            assert len(body["sessions-ids"].items) <= 3
            found += body["sessions-ids"].items
            assert int(body["skip"]) == len(found)
        assert sorted(found) == sorted(names)


@in_loop
async def test_duplicates_meet_in_the_shard_of_their_id_and_key() -> None:
    async with sharded_entities(requires_duplicate_detection=True) as room:
        first = await room.client.sender("q")
        for _ in range(2):
            for number in range(24):
                payload = build_message([f"id {number}"], data=b"m")
                assert await outcome(room.client, put(first, payload)) == ACCEPTED
                both = build_message([f"id {number}"], data=b"k", annotations={Symbol("x-opt-partition-key"): "k"})
                assert await outcome(room.client, put(first, both)) == ACCEPTED
        # An id with a key is another one than without.
        assert sum(room.numbers()) == 48
        assert min(room.numbers()) > 0


@in_loop
async def test_a_transaction_on_one_key_is_done_by_the_server_of_its_shard() -> None:
    async with sharded_entities(requires_session=True) as room:
        client = room.client
        link, sender = await coordinator(client), await client.sender("q")
        for index in (0, 1):
            (name,) = names_in(room, index, 1)
            assert await outcome(client, put(sender, keyed(b"input", session=name))) == ACCEPTED
            receiver = _ask_for(client, name)
            assert await _answer(client, receiver) == name
            receiver.grant(1)
            await client.flush()
            delivery, _ = await client.receive(receiver)
            txn = await declare(client, link)
            assert await send(client, sender, txn, b"output", session=name) == TransactionalState(txn, ACCEPTED)
            assert await settle(client, txn, delivery, ACCEPTED) == TransactionalState(txn, ACCEPTED)
            assert room.numbers()[index] == 1
            assert await discharge(client, link, txn) == ACCEPTED
            receiver.grant(1)
            await client.flush()
            _, payload = await client.receive(receiver)
            assert payload.endswith(b"output")


@in_loop
async def test_a_transaction_on_keys_of_two_shards_is_rolled_back() -> None:
    async with sharded_entities() as room:
        client = room.client
        link, sender = await coordinator(client), await client.sender("q")
        txn = await declare(client, link)
        keys = [names_in(room, index, 1)[0] for index in (0, 1)]
        assert await send(client, sender, txn, b"m", key=keys[0]) == TransactionalState(txn, ACCEPTED)
        assert isinstance(await send(client, sender, txn, b"m", key=keys[1]), Rejected)
        assert isinstance(await discharge(client, link, txn), Rejected)
        assert room.numbers() == [0, 0]


@in_loop
async def test_a_transaction_needs_a_key_as_on_one_server() -> None:
    """PE15."""
    async with sharded_entities() as room:
        client = room.client
        link, sender = await coordinator(client), await client.sender("q")
        txn = await declare(client, link)
        assert condition(await send(client, sender, txn, b"m")) == "amqp:not-allowed"
        assert isinstance(await discharge(client, link, txn), Rejected)
        assert room.numbers() == [0, 0]


@in_loop
async def test_a_claim_takes_of_all_shards_is_told_again_and_settled() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        for number in range(10):
            assert await room.client.send(sender, b"%d" % number) == ACCEPTED
        node = await Asking(room).begin()
        asked = {"claim-id": "c", "max-count": 6}
        status, body = await node.ask("duobus:claim", asked)
        assert status == 200
        assert body["message-count"] == 6
        assert body["available-count"] == 4
        assert {int(part["fragment"]) < 8 for part in body["fragments"]} == {True, False}
        again = await node.ask("duobus:claim", {**asked, "max-count": 10})
        assert again[1]["message-count"] == 6
        listed = await node.ask("duobus:list-claims", {})
        assert [(one["claim-id"], one["message-count"]) for one in listed[1]["claims"]] == [("c", 6)]
        assert (await node.ask("duobus:settle-claim", {"claim-id": "c"}))[1]["message-count"] == 6
        assert sum(room.numbers()) == 4
        assert (await node.ask("duobus:claim", {"claim-id": "d", "max-count": 10}))[1]["message-count"] == 4
        assert (await node.ask("duobus:release-claim", {"claim-id": "d"}))[1]["message-count"] == 4
        await settled(lambda: sum(room.numbers()) == 4)
        long = await node.ask("duobus:claim", {"claim-id": "i" * 200, "max-count": 1})
        assert long[0] == 400


@in_loop
async def test_what_the_management_node_does_in_a_transaction_is_done_by_the_shard_of_it() -> None:
    async with sharded_entities() as room:
        client = room.client
        link, sender = await coordinator(client), await client.sender("q")
        manager = await Manager.attach(client)
        keys = [names_in(room, index, 1)[0] for index in (0, 1)]
        for index, key in enumerate(keys):
            assert await outcome(client, put(sender, keyed(b"input", key=key))) == ACCEPTED
            txn = await declare(client, link)
            at = Timestamp(int(datetime.now(UTC).timestamp() * 1000) + 3_600_000)
            about: dict[Any, Any] = {
                Symbol("x-opt-scheduled-enqueue-time"): at,
                Symbol("x-opt-partition-key"): key,
            }
            later = build_message([uuid.uuid4().hex], data=b"later", annotations=about)
            asked = {"messages": [{"message-id": "later", "message": later}]}
            assert (await manager.ask("schedule-message", asked, txn))[0] == 200
            assert room.numbers(4)[index] == 0
            assert await send(client, sender, txn, b"output", key=key) == TransactionalState(txn, ACCEPTED)
            assert await discharge(client, link, txn) == ACCEPTED
            assert room.numbers(4)[index] == 1
            assert room.numbers()[index] == 2


@in_loop
async def test_the_management_node_takes_no_two_shards_into_one_transaction() -> None:
    async with sharded_entities() as room:
        client = room.client
        link, sender = await coordinator(client), await client.sender("q")
        manager = await Manager.attach(client)
        for index in (0, 1):
            assert await outcome(client, put(sender, keyed(b"m", key=names_in(room, index, 1)[0]))) == ACCEPTED
        receiver = await client.receiver("q", credit=2)
        receiver.tags = []
        while len(receiver.tags) < 2:
            await client.wait(Transfers, lambda event: event.link is receiver)
        tokens = [uuid.UUID(bytes_le=tag) for tag in receiver.tags]
        txn = await declare(client, link)
        body = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, tokens)}
        assert (await manager.ask("update-disposition", body, txn))[0] == 400
        assert isinstance(await discharge(client, link, txn), Rejected)
        txn = await declare(client, link)
        assert (await manager.ask("peek-message", {}, txn))[0] == 501
        assert isinstance(await discharge(client, link, txn), Rejected)
        assert sum(room.numbers()) == 2
