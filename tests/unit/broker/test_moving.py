"""A fragment moves to another store while its entity is in use: nothing is lost, doubled or numbered anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from duobus.broker import ABANDON, DEAD_LETTER, DEFER, MAIN, Queue
from duobus.errors import ArgumentInvalid, EntityNotFound, MessageNotFound, ServerBusy
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from duobus.storage.interface import StoredMessage
from kits.broker import Hall, answers, batch, payloads, receiver, settlement, simulated, turns
from kits.fragment import Box

#: Bare message with the id "one" and nothing else.
_WITH_ID = b"\x00\x53\x73\xc0\x06\x01\xa1\x03one"


async def moved(hall: Hall, to: int, path: str = "q", fragment: int = 0) -> dict[str, Any]:
    """Move a fragment, and tell how that ended."""
    hall.unit.moves.start("n", path, fragment, to)
    await hall.unit.moves.wait()
    return hall.unit.moves.status()[0]


def rows_of(hall: Hall, store: int, entity_id: int) -> dict[int, list[StoredMessage]]:
    """All that a store has of an entity, by source number."""
    disk = hall.disks[store]
    fragments = {row.fragment_key for row in disk._fragments.values() if row.entity_id == entity_id}
    sources = {row.source_no: row.source_key for row in disk._sources.values() if row.fragment_key in fragments}
    return {number: disk.load(key, 1, 10_000) for number, key in sorted(sources.items())}


def place(queue: Queue, fragment: int = 0) -> int:
    return queue.fragments[fragment].store.store_id


async def received(queue: Queue) -> list[bytes]:
    """Receive and complete everything."""
    found: list[bytes] = []
    taker, box = receiver(queue, 100)
    while True:
        await asyncio.sleep(0.1)
        got, box.ready = box.ready, []
        if not got:
            taker.close()
            return found
        for delivered in got:
            found += [message.payload for message in delivered.messages]
            if delivered.messages:
                command = settlement(delivered, number=len(delivered.messages))
                command.source_no = queue.source_no
                delivered.fragment.submit(command)
        taker.request(100)


@simulated
async def test_everything_is_in_the_other_store_and_nothing_is_left_behind(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    home, other = place(queue), place(queue) % 4 + 1
    sent = [b"m%d" % number for number in range(1_300)]
    for start in range(0, len(sent), 100):
        queue.send(batch(*sent[start : start + 100]))
    await turns(50)
    status = await moved(hall, other)
    assert (status["state"], status["reason"], status["messages"]) == ("done", None, 1_300)
    assert place(queue) == other
    assert rows_of(hall, home, queue.entity_id) == {}
    assert [row.payload for row in rows_of(hall, other, queue.entity_id)[0]] == sent
    assert hall.catalog.read().moves == ()
    assert await received(queue) == sent


@simulated
async def test_numbers_go_on_where_they_were(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(b"1", b"2", b"3"))
    await turns()
    assert await received(queue) == [b"1", b"2", b"3"]
    await moved(hall, place(queue) % 4 + 1)
    queue.send(batch(b"4"))
    await turns()
    ((_, message),) = await queue.peek(MAIN, 0, 10)
    assert message.count == 4


@simulated
async def test_messages_of_every_state_keep_it(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    remote = hall.clock.now_ms() + 50_000
    queue.send(batch(b"plain"))
    queue.send(batch(b"scheduled", scheduled_ms=remote))
    queue.send(batch(b"lives", ttl_ms=30_000))
    await turns()
    taker, box = receiver(queue, 1)
    await turns()
    (delivered,) = box.ready
    command = settlement(delivered)
    command.outcome = DEFER
    delivered.fragment.submit(command)
    taker.close()
    await turns()
    numbers = queue.numbers()
    before = rows_of(hall, place(queue), queue.entity_id)
    assert (await moved(hall, place(queue) % 4 + 1))["state"] == "done"
    assert queue.numbers() == numbers
    after = rows_of(hall, place(queue), queue.entity_id)
    assert [(m.count, m.state, m.metadata, m.payload) for m in after[0]] == [
        (m.count, m.state, m.metadata, m.payload) for m in before[0]
    ]
    await asyncio.sleep(60)
    assert await received(queue) == [b"scheduled"]
    (deferred,) = queue.lock_deferred(MAIN, [1])
    assert [message.payload for message in deferred.messages] == [b"plain"]


@simulated
async def test_a_lock_is_lost_and_the_message_comes_again_with_a_higher_count(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(b"m"))
    await turns()
    _, box = receiver(queue, 1)
    await turns()
    (delivered,) = box.ready
    await moved(hall, place(queue) % 4 + 1)
    late = settlement(delivered, strict=True, reply=Box())
    delivered.fragment.submit(late)
    await turns()
    assert late.error is not None
    _, again = receiver(queue, 1)
    await turns()
    ((message,),) = (delivered.messages for delivered in again.ready)
    assert (message.payload, message.deliveries) == (b"m", 1)


@simulated
async def test_a_deferred_message_that_is_locked_for_the_last_time_is_dead_lettered(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(max_delivery_count=2)
    queue.send(batch(b"m"))
    await turns()
    taker, box = receiver(queue, 2)
    for outcome in (ABANDON, DEFER):
        await turns()
        (delivered,), box.ready = box.ready, []
        command = settlement(delivered)
        command.outcome = outcome
        delivered.fragment.submit(command)
        await turns()
    taker.close()
    # The second of two deliveries, and its lock is lost (I6).
    assert len(queue.lock_deferred(MAIN, [1])) == 1
    assert (await moved(hall, place(queue) % 4 + 1))["state"] == "done"
    await asyncio.sleep(1)
    with pytest.raises(MessageNotFound):
        queue.lock_deferred(MAIN, [1])
    dead = Box()
    queue.open_receiver(DEAD_LETTER, dead, removing=False).request(1)
    await turns()
    assert payloads(dead) == [b"m"]


@simulated
async def test_what_duplicate_detection_knows_goes_along(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=60_000)
    first = batch(_WITH_ID)
    queue.send(first)
    await turns()
    assert await received(queue) == [_WITH_ID]
    await moved(hall, place(queue) % 4 + 1)
    again = batch(_WITH_ID)
    queue.send(again)
    await turns()
    assert answers(again) == [None]
    assert await received(queue) == []


@simulated
async def test_sends_and_receives_go_on_while_it_moves(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    home, other = place(queue), place(queue) % 4 + 1
    accepted: list[bytes] = []
    for start in range(0, 3_000, 100):
        queue.send(batch(*[b"old%d" % number for number in range(start, start + 100)]))
    accepted += [b"old%d" % number for number in range(3_000)]
    await turns(80)
    got: list[bytes] = []
    hall.unit.moves.start("n", "q", 0, other)
    number = 0
    taker, box = receiver(queue, 7)
    while hall.unit.moves.status()[0]["state"] == "running":
        number += 1
        one = batch(b"new%d" % number)
        queue.send(one)
        await turns(3)
        for delivered in box.ready:
            command = settlement(delivered, number=len(delivered.messages), strict=True, reply=Box())
            delivered.fragment.submit(command)
            await turns(6)
            if command.error is None:
                got += [message.payload for message in delivered.messages]
        box.ready = []
        taker.request(7)
        if answers(one) == [None]:
            accepted.append(b"new%d" % number)
    taker.close()
    assert hall.unit.moves.status()[0]["state"] == "done"
    assert (place(queue), rows_of(hall, home, queue.entity_id)) == (other, {})
    assert number > 5
    assert got
    await asyncio.sleep(61)
    got += await received(queue)
    assert sorted(set(got)) == sorted(got)
    assert set(accepted) <= set(got)


@simulated
async def test_a_keyless_send_finds_another_fragment_meanwhile(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    handle = queue.fragments[0]
    plan = handle.broker.plans[queue.entity_id, 0]
    handle.broker.host.export_fragment(plan)
    sent = batch(b"m")
    queue.send(sent)
    await turns()
    assert answers(sent) == [None]


@simulated
async def test_copies_of_a_topic_share_their_bodies_there_too(hall: Hall) -> None:
    await hall.start()
    about = TopicDescription(
        name="t",
        subscriptions=tuple(
            SubscriptionDescription(name=name, rules=(RuleDescription(name="all"),)) for name in ("a", "b", "c")
        ),
    )
    topic = await hall.unit.topics.create_topic("n", about)
    for number in range(40):
        topic.send(batch(b"%d" % number * 100))
        await turns(3)
    await turns(30)
    home, other = place(topic), place(topic) % 4 + 1
    before = hall.disks[home].usage()
    rows = rows_of(hall, home, topic.entity_id)
    assert sum(len(found) for found in rows.values()) == 120
    assert (await moved(hall, other, "t"))["state"] == "done"
    assert hall.disks[other].usage().bytes_used == before.bytes_used
    after = rows_of(hall, other, topic.entity_id)
    assert [[(m.count, m.origin, m.payload) for m in found] for found in after.values()] == [
        [(m.count, m.origin, m.payload) for m in found] for found in rows.values()
    ]
    assert rows_of(hall, home, topic.entity_id) == {}
    for subscription in topic.subscriptions.values():
        assert len(await received(subscription)) == 40
    assert hall.disks[other].usage().bytes_used == 0


@simulated
async def test_a_session_is_lost_and_can_be_accepted_there_with_its_state(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(requires_session=True)
    queue.send(batch(b"1", b"2", session_id="s"))
    await turns()
    assert (await moved(hall, place(queue) % 4 + 1))["state"] == "done"
    assert list(queue.sessions_in_use()) == ["s"]


@simulated
async def test_a_move_that_makes_no_sense_is_refused(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    moves = hall.unit.moves
    with pytest.raises(EntityNotFound, match="no queue or topic 'x'"):
        moves.start("n", "x", 0, 2)
    with pytest.raises(EntityNotFound, match="has no fragment 3; it has 0"):
        moves.start("n", "q", 3, 2)
    with pytest.raises(ArgumentInvalid, match="no messaging store 9"):
        moves.start("n", "q", 0, 9)
    with pytest.raises(ArgumentInvalid, match="already"):
        moves.start("n", "q", 0, place(queue))
    moves.start("n", "q", 0, place(queue) % 4 + 1)
    with pytest.raises(ServerBusy, match="Another fragment"):
        moves.start("n", "q", 0, place(queue) % 4 + 1)
    await moves.wait()


@simulated
async def test_a_store_that_fails_leaves_the_fragment_where_it_was(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    home, other = place(queue), place(queue) % 4 + 1
    sent = [b"m%d" % number for number in range(30)]
    queue.send(batch(*sent))
    await turns()
    for call in range(1, 15):
        for how in ("before", "after"):
            hall.unit.moves.start("n", "q", 0, other)
            for _ in range(call):
                await turns(2)
            hall.writers[other].fail_next = how
            await hall.unit.moves.wait()
            hall.writers[other].fail_next = ""
            await asyncio.sleep(8)
            if place(queue) == other:
                home, other = other, home
            assert queue.fragments[0].online
            assert rows_of(hall, other, queue.entity_id) == {}
            assert len(rows_of(hall, home, queue.entity_id)[0]) == 30
            assert hall.catalog.read().moves == ()
    assert await received(queue) == sent


@simulated
async def test_a_crash_at_any_point_leaves_it_in_one_store(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    sent = [b"m%d" % number for number in range(30)]
    queue.send(batch(*sent))
    await turns()
    places = set()
    dead: list[Any] = []
    for steps in range(40):
        home, other = place(queue), place(queue) % 4 + 1
        hall.unit.moves.start("n", "q", 0, other)
        await turns(steps)
        for writer in hall.writers.values():
            writer.is_held = True
            writer.waiting.clear()
        # Whatever the dead process still wants of its stores, it waits for it for ever.
        dead.append(hall.unit.moves._task)
        dead[-1].cancel()
        await hall.again()
        queue = hall.queue()
        places.add(place(queue) == other)
        assert hall.catalog.read().moves == ()
        assert [row.payload for row in rows_of(hall, place(queue), queue.entity_id)[0]] == sent
        assert rows_of(hall, other if place(queue) == home else home, queue.entity_id) == {}
    assert places == {True, False}
    assert payloads(receiver(queue, 30)[1]) == sent
    for task in dead:
        while not task.done():
            task.cancel()
            await turns(1)


@simulated
async def test_an_entity_that_is_deleted_meanwhile_leaves_nothing_behind(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(*[b"m%d" % number for number in range(600)]))
    await turns()
    for steps in (1, 5, 15):
        home, other = place(queue), place(queue) % 4 + 1
        hall.unit.moves.start("n", "q", 0, other)
        await turns(steps)
        while not queue.is_deleted:
            with suppress(ServerBusy):
                await hall.unit.delete_queue("n", "q")
            await turns(1)
        await hall.unit.moves.wait()
        assert rows_of(hall, home, queue.entity_id) == rows_of(hall, other, queue.entity_id) == {}
        assert hall.catalog.read().moves == ()
        queue = await hall.create()


@simulated
async def test_a_server_that_stops_gives_the_move_up(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(*[b"m%d" % number for number in range(2_000)]))
    await turns()
    home, other = place(queue), place(queue) % 4 + 1
    hall.unit.moves.start("n", "q", 0, other)
    await turns(6)
    await hall.unit.stop()
    assert hall.unit.moves.status()[0]["reason"] == "the server was stopped"
    hall.disks[home].open()
    assert len(rows_of(hall, home, queue.entity_id)[0]) == 2_000
