"""Decide, commit, release: what joins a commit, what is seen when, and what a failing store does to whom."""

from __future__ import annotations

import asyncio

from duobus.broker import SOURCE, slot_of, string_key
from duobus.broker.commit_loop import COUNTS_WAIT_S
from duobus.errors import MessageLockLost, StoreUnavailable
from duobus.fragment.commands import Group
from kits.broker import Hall, answers, batch, payloads, receiver, settlement, simulated, turns
from kits.fragment import Box


@simulated
async def test_what_waits_while_a_commit_runs_joins_the_next_one(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    broker = queue.fragments[0].broker
    writer = hall.writers[broker.store_id]
    writer.is_held = True
    before = broker.commits
    first = batch(b"1")
    queue.send(first)
    await turns()
    others = [batch(b"%d" % index) for index in range(2, 50)]
    for made in others:
        queue.send(made)
    await turns()
    assert len(writer.waiting) == 1
    writer.step()
    assert answers(first) == [None]
    assert not any(answers(made) for made in others)
    await turns()
    assert len(writer.waiting) == 1
    writer.step()
    assert all(answers(made) == [None] for made in others)
    assert broker.commits == before + 2


@simulated
async def test_nothing_is_answered_or_delivered_before_its_commit(hall: Hall) -> None:
    """TL1."""
    await hall.start()
    queue = await hall.create()
    _, box = receiver(queue, 10)
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    made = batch(b"m")
    queue.send(made)
    await turns()
    assert (answers(made), payloads(box)) == ([], [])
    writer.release()
    await turns()
    assert (answers(made), payloads(box)) == ([None], [b"m"])


@simulated
async def test_a_settlement_is_answered_when_it_is_durable(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    _, box = receiver(queue, 1)
    queue.send(batch(b"m"))
    await turns()
    reply = Box()
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    queue.settle(settlement(box.ready[0], reply=reply))
    await turns()
    assert reply.ready == []
    writer.release()
    await turns()
    assert (len(reply.ready), reply.ready[0].error, reply.ready[0].lost) == (1, None, [])
    assert queue.numbers() == ([0] * 5, 0)


@simulated
async def test_receive_and_delete_is_durable_before_it_is_delivered(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(b"a", b"b"))
    await turns()
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    _, box = receiver(queue, 1, removing=True)
    await turns()
    assert box.ready == []
    writer.release()
    await turns()
    assert payloads(box) == [b"a"]
    await hall.again()
    _, box = receiver(hall.queue(), 10)
    assert payloads(box) == [b"b"]


@simulated
async def test_a_failed_commit_sends_keyless_messages_elsewhere(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    ill = queue.placement.keyless().broker
    hall.writers[ill.store_id].fail_next = "before"
    made = batch(b"m")
    queue.send(made)
    await turns()
    assert answers(made) == [None]
    assert ill.state == "failed"
    _, box = receiver(queue, 10)
    assert payloads(box) == [b"m"]
    await asyncio.sleep(1)
    assert ill.state == "open"
    assert payloads(box) == [b"m"]


@simulated
async def test_a_run_that_was_stored_after_all_is_not_delivered_twice(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    ill = queue.placement.keyless().broker
    hall.writers[ill.store_id].fail_next = "after"
    made = batch(b"m")
    queue.send(made)
    await turns()
    assert answers(made) == [None]
    await asyncio.sleep(2)
    assert ill.state == "open"
    _, box = receiver(queue, 10)
    assert payloads(box) == [b"m"]
    assert queue.numbers()[0][0] == 1


@simulated
async def test_a_run_of_a_fragment_that_was_taken_out_while_it_was_stored_is_not_delivered_twice(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    handle = queue.placement.keyless()
    ill, plan = handle.broker, handle.broker.plans[handle.entity_id, handle.number]
    writer = hall.writers[ill.store_id]
    writer.is_held, writer.fail_next = True, "after"
    made = batch(b"m")
    queue.send(made)
    await turns()
    # A move begins to hold it, with that commit under way; as the store fails, it comes back here.
    ill.host.export_fragment(plan)
    writer.release()
    await turns()
    ill.host.restore_fragment(plan)
    assert answers(made) == [None]
    await asyncio.sleep(2)
    assert ill.state == "open"
    assert handle.fragment is not None
    _, box = receiver(queue, 10)
    assert payloads(box) == [b"m"]
    assert queue.numbers()[0][0] == 1


@simulated
async def test_tombstones_hold_over_a_restart_of_everything(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    ill = queue.placement.keyless().broker
    hall.writers[ill.store_id].fail_next = "after"
    made = batch(b"m")
    queue.send(made)
    await turns()
    assert answers(made) == [None]
    # The process dies before the store was reopened: only another store knows of the copy.
    await hall.again()
    _, box = receiver(hall.queue(), 10)
    await turns()
    assert payloads(box) == [b"m"]


@simulated
async def test_keyed_messages_of_a_failed_store_are_refused_as_busy(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    key = string_key("k")
    ill = queue.fragments[slot_of(key, 16)].broker
    hall.writers[ill.store_id].fail_next = "before"
    made = batch(b"m", key=key)
    queue.send(made)
    await turns()
    (error,) = answers(made)
    assert isinstance(error, StoreUnavailable)
    assert error.condition == "com.microsoft:server-busy"
    later = batch(b"later", key=key)
    queue.send(later)
    await turns()
    assert isinstance(answers(later)[0], StoreUnavailable)
    await asyncio.sleep(1)
    again = batch(b"again", key=key)
    queue.send(again)
    await turns()
    assert answers(again) == [None]
    _, box = receiver(queue, 10)
    assert payloads(box) == [b"again"]


@simulated
async def test_a_refused_message_that_was_stored_after_all_never_appears(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    key = string_key("k")
    ill = queue.fragments[slot_of(key, 16)].broker
    hall.writers[ill.store_id].fail_next = "after"
    made = batch(b"ghost", key=key)
    queue.send(made)
    await turns()
    assert isinstance(answers(made)[0], StoreUnavailable)
    await asyncio.sleep(2)
    _, box = receiver(queue, 10)
    await turns()
    assert payloads(box) == []


@simulated
async def test_only_the_entities_of_the_failed_store_suffer(hall: Hall) -> None:
    await hall.start()
    queues = [await hall.create(f"q{index}") for index in range(4)]
    stores = [queue.fragments[0].store.store_id for queue in queues]
    assert sorted(stores) == [1, 2, 3, 4]
    hall.writers[stores[0]].fail_next = "before"
    sent = [batch(b"m") for _ in queues]
    for queue, made in zip(queues, sent, strict=True):
        queue.send(made)
    await turns()
    assert isinstance(answers(sent[0])[0], StoreUnavailable)
    assert [answers(made) for made in sent[1:]] == [[None]] * 3


@simulated
async def test_locks_of_before_the_failure_are_lost_and_messages_come_again(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    broker = queue.fragments[0].broker
    standing, box = receiver(queue, 1)
    queue.send(batch(b"m"))
    await turns()
    (delivered,) = box.taken()
    hall.writers[broker.store_id].fail_next = "before"
    queue.send(batch(b"lost"))
    await asyncio.sleep(1)
    reply = Box()
    queue.settle(settlement(delivered, reply=reply))
    await turns()
    assert isinstance(reply.ready[0].error, MessageLockLost)
    assert delivered.fragment.renew(SOURCE, delivered.prefix, [delivered.first_lock]) is None
    standing.request(5)
    await turns()
    assert payloads(box) == [b"m"]


@simulated
async def test_a_receiver_that_waits_is_served_when_its_store_is_back(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    broker = queue.fragments[0].broker
    queue.send(batch(b"m"))
    await turns()
    hall.writers[broker.store_id].fail_next = "before"
    queue.send(batch(b"lost"))
    await turns()
    assert broker.state == "failed"
    _, box = receiver(queue, 5)
    await asyncio.sleep(1)
    assert payloads(box) == [b"m"]


@simulated
async def test_a_group_is_done_over_several_fragments_or_not_at_all(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    one, two = [handle for handle in queue.fragments if handle.broker is queue.fragments[0].broker][:2]
    keys = [
        next(string_key(str(i)) for i in range(999) if slot_of(string_key(str(i)), 16) == h.number) for h in (one, two)
    ]
    _, box = receiver(queue, 10)
    for key in keys:
        queue.send(batch(b"m", key=key))
    await turns()
    first, second = box.taken()
    reply = Box()
    # The second member's lock does not exist: the first must not be settled either.
    broken = settlement(second, number=2, strict=True)
    one.submit(Group([settlement(first, strict=True), broken], reply))
    await turns()
    assert isinstance(reply.ready[0].error, MessageLockLost)
    assert queue.numbers()[0][0] == 2
    commits = one.broker.commits
    one.submit(Group([settlement(first, strict=True), settlement(second, strict=True)], reply))
    await turns()
    assert reply.ready[1].error is None
    assert queue.numbers()[0][0] == 0
    assert one.broker.commits == commits + 1


@simulated
async def test_a_ping_is_answered_by_a_commit_and_keeps_nothing(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    broker = queue.fragments[0].broker
    _, box = receiver(queue, 5)
    commits = broker.commits
    made = batch(b"")
    made.ping = True
    queue.send(made)
    await turns()
    assert answers(made) == [None]
    assert broker.commits == commits + 1
    assert payloads(box) == []
    assert queue.numbers() == ([0] * 5, 0)


@simulated
async def test_a_lock_ends_by_the_broker_s_own_timer(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(lock_duration_ms=5000)
    standing, box = receiver(queue, 1)
    queue.send(batch(b"m"))
    await turns()
    box.taken()
    standing.request(1)
    await asyncio.sleep(4.9)
    assert payloads(box) == []
    await asyncio.sleep(0.2)
    assert payloads(box) == [b"m"]
    assert box.ready[0].messages[0].deliveries == 1


@simulated
async def test_a_scheduled_message_comes_by_the_broker_s_own_timer(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    _, box = receiver(queue, 1)
    queue.send(batch(b"m", scheduled_ms=hall.clock.now_ms() + 30_000))
    await asyncio.sleep(29.9)
    assert payloads(box) == []
    await asyncio.sleep(0.2)
    assert payloads(box) == [b"m"]


@simulated
async def test_messages_expire_by_both_lives_at_once_without_harm(hall: Hall) -> None:
    """A message with a life of its own in an entity with a default stands in both orders (a bug once)."""
    await hall.start()
    queue = await hall.create(default_message_time_to_live_ms=5000)
    queue.send(batch(b"a", b"b", ttl_ms=5000))
    queue.send(batch(b"c", ttl_ms=9000))
    queue.send(batch(b"d"))
    await asyncio.sleep(6)
    assert queue.numbers() == ([0] * 5, 0)
    made = batch(b"after")
    queue.send(made)
    await turns()
    assert answers(made) == [None]


@simulated
async def test_everything_is_there_again_after_a_crash(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for index in range(200):
        queue.send(batch(b"%d" % index))
        await turns(3)
    before = queue.numbers()
    assert before[0][0] == 200
    await hall.again()
    assert hall.queue().numbers() == before
    _, box = receiver(hall.queue(), 1000)
    await turns(50)
    assert sorted(payloads(box), key=int) == [b"%d" % index for index in range(200)]


@simulated
async def test_a_storm_of_redeliveries_rides_in_slices_and_delays_no_commit(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(max_delivery_count=1000)
    handle = queue.fragments[0]
    made, box = receiver(queue, 1300)
    queue.send(batch(*[b"m"] * 1300))
    await turns(40)
    writer = hall.writers[handle.store.store_id]
    before = handle.broker.commits
    writer.is_held = True
    made.close()
    for item in box.ready:
        handle.unlock(SOURCE, item.prefix, [(item.first_lock, len(item.messages))], counted=True)
    await turns()
    fresh = batch(b"another")
    queue.send(fresh)
    await turns()
    writer.step()

    # The counts waited for company: the send's commit took some of them along, and no more than their share.
    assert answers(fresh) == [None]
    writer.release()
    await turns(20)
    assert handle.broker.commits == before + 1
    await asyncio.sleep(COUNTS_WAIT_S)
    await turns(20)
    assert handle.broker.commits == before + 3

    await hall.again()
    _, box = receiver(hall.queue(), 2000)
    await turns(40)
    assert [message.deliveries for item in box.ready for message in item.messages] == [1] * 1300 + [0]
