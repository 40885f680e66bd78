"""The dead-letter desk: what is moved is on exactly one side, whoever holds, kills or fails meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.broker import DEAD_LETTER, MAIN, Queue, QueuedMessage
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
from duobus.broker.fragment_handle import FragmentHandle
from duobus.codec import build_message
from duobus.codec.sections import application_properties
from duobus.errors import EntityDisabled, EntityNotFound, NotAllowed, QuotaExceeded, ServiceBusError
from duobus.fragment.settlement import DEAD_LETTER_OUTCOME, SettleBatch, SettleDetail
from duobus.model.address import parse_address
from duobus.model.descriptions import SubscriptionDescription, TopicDescription
from duobus.model.json.messages import form_of
from duobus.model.json.repair import parse_repair
from duobus.model.metadata import MessageMetadata
from kits.broker import Hall, answers, batch
from kits.fragment import Box
from simulation.world.loop import SimulationLoop

NOTHING = parse_repair(None)


def play(story: Any, stores: int = 1) -> None:
    """Run a story in virtual time."""
    loop = SimulationLoop(7)

    async def whole() -> None:
        hall = Hall(loop, stores)
        await hall.start()
        await story(hall)

    try:
        loop.run(whole(), time_limit_s=10_000.0)
    finally:
        loop.close()


def message(number: int, **properties: Any) -> bytes:
    return build_message([str(number)], properties or {"n": number}, data=b'{"n": %d}' % number)


class CountedQuery(DeadLetterQuery):
    """Tells how many messages were compared with it."""

    compared = 0

    def takes(self, handle: FragmentHandle, message: QueuedMessage) -> bool:
        self.compared += 1
        return super().takes(handle, message)


async def queued_messages(queue: Queue, sub_queue: int = MAIN) -> list[QueuedMessage]:
    return [message for _, message in await queue.peek(sub_queue, 1, 10_000)]


async def ids(queue: Queue, sub_queue: int = MAIN) -> list[int]:
    return sorted(application_properties(message.payload)["n"] for message in await queued_messages(queue, sub_queue))


async def locked(queue: Queue, sub_queue: int = MAIN) -> list[Any]:
    box = Box()
    receiver = queue.open_receiver(sub_queue, box, removing=False)
    receiver.request(1000)
    await asyncio.sleep(0.05)
    receiver.close()
    return box.taken()


async def dead(queue: Queue, *payloads: bytes, by: Queue | None = None, **metadata: Any) -> None:
    """Send messages and dead-letter them; ``by``: the topic to send to."""
    made = batch(*payloads, **metadata)
    (by or queue).send(made)
    await asyncio.sleep(0.05)
    assert not any(answers(made))
    for found in await locked(queue):
        ranges = [(found.first_lock, len(found.messages))]
        command = SettleBatch(
            found.fragment, queue.source_no, Box(), prefix=found.prefix, outcome=DEAD_LETTER_OUTCOME, ranges=ranges
        )
        command.detail = SettleDetail({"seen": True}, "why", "because")
        queue.settle(command)
    await asyncio.sleep(0.05)


async def run_through(
    hall: Hall, queue: Queue, target: str | None = None, *, sql: str | None = None, repair: Any = None, limit: int = 3
) -> list[MoveResult]:
    """Move all there is, chunk after chunk, as a client does."""
    service, first, before_ms = DeadLetterService(hall.unit), 0, hall.unit.now_ms()
    results = []
    while True:
        query = DeadLetterQuery(Selection(sql), first=first, before_ms=before_ms, limit=limit)
        looked = await search(queue, DEAD_LETTER, query, one_fragment=True)
        changes = parse_repair(repair)
        keeps = target is not None
        results.append(await service.move(queue, DEAD_LETTER, looked.found, target, changes, keeps_reason=keeps))
        if looked.following is None:
            return results
        first = looked.following


def test_resubmitted_messages_are_whole_and_have_no_reasons_any_more() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create(requires_duplicate_detection=True)
        await dead(queue, *map(message, range(8)), priority=7, ttl_ms=60_000)
        before = [
            (queued.count, form_of(queued.payload, queued.metadata))
            for queued in await queued_messages(queue, DEAD_LETTER)
        ]
        await asyncio.sleep(30)
        results = await run_through(hall, queue)
        assert [len(one.moved) for one in results] == [3, 3, 2]
        after = await queued_messages(queue)
        # The ids are in the history of duplicate detection, and are none of the desk's business.
        assert [form_of(queued.payload, queued.metadata) for queued in after] == [form for _, form in before]
        all_metadata = [queued.metadata or MessageMetadata() for queued in after]
        assert {(one.reason, one.description, one.priority) for one in all_metadata} == {(None, None, 7)}
        assert [one.enqueued_sequence_number for one in all_metadata] == [count for count, _ in before]
        assert [queued.deliveries for queued in after] == [0] * 8
        assert [number for one in results for number in one.moved.values()] == [queued.count for queued in after]
        assert queue.numbers()[0][:2] == [8, 0]
        # Their life begins anew.
        await asyncio.sleep(45)
        assert len(await queued_messages(queue)) == 8

    play(story)


def test_what_dies_again_at_once_is_not_gone_through_again() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        await dead(queue, message(0))
        await asyncio.sleep(1)
        query = DeadLetterQuery(Selection(), first=0, before_ms=hall.unit.now_ms(), limit=10)
        looked = await search(queue, DEAD_LETTER, query)
        await DeadLetterService(hall.unit).move(queue, DEAD_LETTER, looked.found, None, NOTHING, keeps_reason=False)
        await dead(queue)
        assert await ids(queue, DEAD_LETTER) == [0]
        assert not (await search(queue, DEAD_LETTER, query)).found

    play(story)


def test_only_those_that_the_filter_takes_are_moved_and_repaired() -> None:
    async def story(hall: Hall) -> None:
        queue, other = await hall.create(), await hall.create("other")
        await dead(queue, *map(message, range(9)))
        await asyncio.sleep(1)
        repair = {
            "set": {"fixed": True},
            "remove": ["SEEN"],
            "properties": {"subject": "again"},
            "patch": [{"op": "replace", "path": "/n", "value": -1}],
        }
        await run_through(hall, queue, "OTHER", sql="n >= 6 AND DeadLetterReason = 'why'", repair=repair)
        assert await ids(queue, DEAD_LETTER) == [0, 1, 2, 3, 4, 5]
        moved = await queued_messages(other)
        forms = [form_of(queued.payload, queued.metadata) for queued in moved]
        assert [form["applicationProperties"] for form in forms] == [
            {"n": n, "fixed": True, "DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
            for n in (6, 7, 8)
        ]
        assert {form["body"]["data"][0] for form in forms} == {'{"n":-1}'}
        assert {form["properties"]["subject"] for form in forms} == {"again"}

    play(story)


def test_a_message_that_the_repair_does_not_fit_stays_as_it_was() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        await dead(queue, message(0), build_message(None, {"n": 1}, data=b"no json"))
        await asyncio.sleep(1)
        patch = {"patch": [{"op": "remove", "path": "/n"}]}
        (result,) = await run_through(hall, queue, repair=patch)
        assert len(result.moved) == 1
        assert "no JSON" in next(iter(result.skipped.values()))
        assert (await ids(queue), await ids(queue, DEAD_LETTER)) == ([0], [1])
        await dead(queue)
        # And it can be received.
        assert sum(len(found.messages) for found in await locked(queue, DEAD_LETTER)) == 2

    play(story)


def test_what_a_receiver_holds_is_left_to_it() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        await dead(queue, message(0), message(1))
        (held,) = await locked(queue, DEAD_LETTER)
        queue.settle(_completion(held, 1))
        await asyncio.sleep(0.05)
        (result,) = await run_through(hall, queue)
        assert (result.moved, list(result.skipped.values())) == ({}, ["A receiver holds it, or it is gone."])

    def _completion(held: Any, number: int) -> SettleBatch:
        return SettleBatch(held.fragment, 0, Box(), prefix=held.prefix, outcome=0, ranges=[(held.first_lock, number)])

    play(story)


def test_a_dead_letter_of_a_subscription_goes_back_to_that_one_alone() -> None:
    async def story(hall: Hall) -> None:
        subscriptions = (SubscriptionDescription(name="a"), SubscriptionDescription(name="b"))
        topic = await hall.unit.topics.create_topic("n", TopicDescription(name="t", subscriptions=subscriptions))
        one, other = topic.subscriptions["a"], topic.subscriptions["b"]
        await dead(one, *map(message, range(4)), by=topic)
        await asyncio.sleep(1)
        await run_through(hall, one)
        assert await ids(one) == await ids(other) == [0, 1, 2, 3]
        await hall.again()
        again = hall.unit.namespace("n").topic("t").subscriptions["a"]
        assert await ids(again) == [0, 1, 2, 3]
        assert again.numbers()[0][:2] == [4, 0]
        # And from there it is received like any other.
        assert sum(len(found.messages) for found in await locked(again)) == 4

    play(story)


def test_a_subscriptions_dead_letters_go_to_every_subscription_when_sent_to_the_topic() -> None:
    async def story(hall: Hall) -> None:
        subscriptions = (SubscriptionDescription(name="a"), SubscriptionDescription(name="b"))
        topic = await hall.unit.topics.create_topic("n", TopicDescription(name="t", subscriptions=subscriptions))
        await dead(topic.subscriptions["a"], message(5), by=topic)
        await asyncio.sleep(1)
        (result,) = await run_through(hall, topic.subscriptions["a"], "t")
        assert list(result.moved.values()) == [None]
        assert (await ids(topic.subscriptions["a"]), await ids(topic.subscriptions["b"])) == ([5], [5, 5])

    play(story)


def test_messages_of_a_partitioned_queue_stay_in_their_fragments_and_sessions() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create(enable_partitioning=True)
        for number in range(20):
            made = batch(message(number), key=b"s%d" % number, partition_key=str(number))
            queue.send(made)
        await asyncio.sleep(0.05)
        await dead(queue)
        places = {queued.payload: handle for handle, queued in await queue.peek(DEAD_LETTER, 0, 100)}
        await asyncio.sleep(1)
        results = await run_through(hall, queue, limit=2)
        assert sum(len(one.moved) for one in results) == 20
        assert {queued.payload for _, queued in await queue.peek(MAIN, 0, 100)} == {
            build_message([str(n)], {"n": n, "seen": True}, data=b'{"n": %d}' % n) for n in range(20)
        }
        assert {handle for handle, _ in await queue.peek(MAIN, 0, 100)} == set(places.values())

    play(story, stores=4)


def test_a_queue_that_requires_sessions_takes_what_a_repair_gives_one() -> None:
    async def story(hall: Hall) -> None:
        queue, target = await hall.create(), await hall.create("s", requires_session=True)
        await dead(queue, message(0))
        await asyncio.sleep(1)
        (refused,) = await run_through(hall, queue, "s")
        assert "requires sessions" in next(iter(refused.skipped.values()))
        (result,) = await run_through(hall, queue, "s", repair={"properties": {"groupId": "one"}})
        assert len(result.moved) == 1
        assert list(target.sessions_in_use()) == ["one"]

    play(story)


def test_a_move_to_another_store_survives_a_crash_between_its_two_halves() -> None:
    async def story(hall: Hall) -> None:
        queue, target = await hall.create("from"), await hall.create("to")
        assert queue.fragments[0].broker is not target.fragments[0].broker
        await dead(queue, message(0), message(1))
        await asyncio.sleep(1)
        here = hall.writers[queue.fragments[0].store.store_id]
        here.is_held = True
        task = asyncio.ensure_future(run_through(hall, queue, "to"))
        await asyncio.sleep(0.1)
        assert await ids(target) == [0, 1]
        # The removal is not written, and never will be.
        task.cancel()
        await asyncio.sleep(0)
        await hall.again()
        queue, target = hall.queue("from"), hall.queue("to")
        assert await ids(queue, DEAD_LETTER) == [0, 1]
        (result,) = await run_through(hall, queue, "to")
        assert len(result.moved) == 2
        assert (await ids(queue, DEAD_LETTER), await ids(target)) == ([], [0, 1])
        # Nor back to where it was, once the other store has it.
        (nothing,) = await run_through(hall, queue)
        assert not nothing.moved

    play(story, stores=2)


def test_a_commit_that_fails_leaves_every_message_on_one_side() -> None:
    async def story(hall: Hall) -> None:
        for how in ("before", "after"):
            queue, target = await hall.create(f"from-{how}"), await hall.create(f"to-{how}")
            await dead(queue, message(0), message(1))
            await asyncio.sleep(1)
            hall.writers[1].fail_next = how
            try:
                await run_through(hall, queue, target.path)
            except ServiceBusError:
                assert how == "before"
            await asyncio.sleep(10)
            left, arrived = await ids(queue, DEAD_LETTER), await ids(target)
            assert (left, arrived) == (([0, 1], []) if how == "before" else ([], [0, 1]))

    play(story)


def test_a_full_target_leaves_all_where_it_was() -> None:
    async def story(hall: Hall) -> None:
        queue, target = await hall.create(), await hall.create("to")
        await dead(queue, message(0), message(1))
        await asyncio.sleep(1)
        fragment = target.fragments[0].fragment
        assert fragment is not None
        fragment.sources[0].settings.max_bytes = 10
        for _ in range(2):
            with pytest.raises(QuotaExceeded):
                await run_through(hall, queue, "to")
        assert await ids(queue, DEAD_LETTER) == [0, 1]
        assert sum(len(found.messages) for found in await locked(queue, DEAD_LETTER)) == 2

    play(story)


def test_only_what_is_dead_is_moved_and_only_to_what_takes_it() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        await hall.create("off", status="Disabled")
        await dead(queue, message(0))
        service = DeadLetterService(hall.unit)
        for sub_queue, target, kind in (
            (MAIN, None, NotAllowed),
            (DEAD_LETTER, "none", EntityNotFound),
            (DEAD_LETTER, "off", EntityDisabled),
        ):
            with pytest.raises(kind):
                await service.move(queue, sub_queue, [], target, NOTHING, keeps_reason=False)

    play(story)


def test_a_purge_takes_what_the_filter_takes_and_nothing_else() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        await dead(queue, *map(message, range(6)))
        await asyncio.sleep(1)
        query = DeadLetterQuery(Selection(condition="$.n >= 4"), first=0, before_ms=hall.unit.now_ms(), limit=100)
        looked = await search(queue, DEAD_LETTER, query, one_fragment=True)
        result = await DeadLetterService(hall.unit).purge(queue, DEAD_LETTER, looked.found)
        assert len(result.moved) == 2
        assert await ids(queue, DEAD_LETTER) == [0, 1, 2, 3]

    play(story)


def test_others_have_turns_while_large_messages_are_compared() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        # The costliest that a condition can be: each of very many places is looked at.
        body = b"[" + b"0," * 4_000 + b"2]"
        await dead(queue, *[build_message([str(number)], {"n": number}, data=body) for number in range(24)])
        query = CountedQuery(Selection(condition="$[*] == 2"), first=0, before_ms=hall.unit.now_ms() + 1, limit=100)
        searching = asyncio.ensure_future(search(queue, DEAD_LETTER, query))
        most = 0
        while not searching.done():
            before = query.compared
            await asyncio.sleep(0)
            most = max(most, query.compared - before)
        assert (len(searching.result().found), query.compared) == (24, 24)
        assert most <= 4

    play(story)


def test_an_undone_resubmit_makes_dead_letters_of_what_is_still_there() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create()
        await dead(queue, *map(message, range(3)))
        await asyncio.sleep(1)
        old = {number_of(handle, queued): queued for handle, queued in await queue.peek(DEAD_LETTER, 0, 100)}
        (result,) = await run_through(hall, queue, limit=10)
        (held,) = await locked(queue)
        queue.settle(SettleBatch(held.fragment, 0, Box(), prefix=held.prefix, outcome=0, ranges=[(held.first_lock, 1)]))
        held.fragment.unlock(0, held.prefix, [(held.first_lock + 1, 2)], counted=False)
        await asyncio.sleep(0.05)
        restorations = [
            DeadLetterRestore(
                old[number].payload, MessageMetadata(reason="why"), number=number, where=queue, now=new or 0
            )
            for number, new in result.moved.items()
        ]
        undone = await restore(queue, restorations)
        assert (len(undone.moved), len(undone.skipped)) == (2, 1)
        assert (await ids(queue), await ids(queue, DEAD_LETTER)) == ([], [1, 2])
        assert {queued.metadata.reason for queued in await queued_messages(queue, DEAD_LETTER) if queued.metadata} == {
            "why"
        }
        await hall.again()
        assert hall.queue().numbers()[0][:2] == [0, 2]

    play(story)


def test_what_was_exported_is_buried_again() -> None:
    async def story(hall: Hall) -> None:
        topic = await hall.unit.topics.create_topic(
            "n", TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="a"),))
        )
        one = hall.unit.namespace("n").resolve(parse_address("t/subscriptions/a"))
        await restore(one, [DeadLetterRestore(message(7), MessageMetadata(reason="r", description="d"))])
        assert await ids(one, DEAD_LETTER) == [7]
        assert topic.numbers()[1] > 0
        await hall.again()
        again = hall.unit.namespace("n").topic("t").subscriptions["a"]
        assert await ids(again, DEAD_LETTER) == [7]

    play(story)
