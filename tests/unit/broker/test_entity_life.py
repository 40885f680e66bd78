"""Changing, filling, disabling and deleting queues through the broker's own calls."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duobus.broker import Queue
from duobus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    QuotaExceeded,
    ServerBusy,
    StoreFailed,
    StoreUnavailable,
)
from duobus.fragment.fragment import DUE_AT_ONCE
from duobus.fragment.settlement import COMPLETE
from duobus.fragment.source import SourceSettings
from duobus.model.descriptions import QueueDescription, TopicDescription, from_json
from duobus.model.quotas import Quotas
from duobus.storage.writer_pool import LATE_S
from kits.broker import Hall, answers, batch, simulated_over, turns
from kits.fragment import Box, Driver

MIB = 1 << 20

#: For hours of virtual time.
simulated = simulated_over(4, time_limit_s=20_000)


async def update(hall: Hall, name: str = "q", **changes: object) -> Queue:
    return await hall.unit.update_queue("n", msgspec.structs.replace(hall.queue(name).description, **changes))


# -- properties -------------------------------------------------------------------------------------------------


@simulated
async def test_new_properties_are_in_force_in_every_fragment_and_there_after_a_restart(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await update(hall, lock_duration_ms=7000, max_delivery_count=3, user_metadata="mine", max_size_in_megabytes=2048)
    for found in (queue, hall.queue()):
        assert {handle.fragment.sources[0].settings.lock_duration_ms for handle in found.fragments} == {7000}  # type: ignore[union-attr]
    assert queue.description.updated_at_ms > 0
    await hall.again()
    about = hall.queue().description
    assert (about.lock_duration_ms, about.max_delivery_count, about.user_metadata) == (7000, 3, "mine")
    settings = hall.queue().fragments[5].fragment.sources[0].settings  # type: ignore[union-attr]
    assert (settings.lock_duration_ms, settings.max_bytes) == (7000, 2048 * MIB)


@simulated
async def test_properties_are_not_changed_while_a_fragment_is_away_and_stay_changed_when_one_goes_away(
    hall: Hall,
) -> None:
    await hall.start()
    queue = await hall.create()
    broker = queue.fragments[0].broker
    hall.writers[broker.store_id].fail_next = "before"
    queue.send(batch(b"m"))
    await turns(20)
    assert not queue.fragments[0].online
    before = queue.description
    with pytest.raises(StoreUnavailable):
        await update(hall, lock_duration_ms=9000)
    assert queue.description is before
    await wait_for_store(queue)
    await update(hall, lock_duration_ms=9000)
    hall.writers[broker.store_id].fail_next = "before"
    queue.send(batch(b"m"))
    await turns(20)
    assert not queue.fragments[0].online
    await wait_for_store(queue)
    fragment = queue.fragments[0].fragment
    assert fragment is not None
    assert fragment.sources[0].settings.lock_duration_ms == 9000


async def wait_for_store(queue: Queue) -> None:
    """A failed store is reopened within seconds."""
    for _ in range(300):
        if not queue.fragments[0].online:
            await asyncio.sleep(0.1)
    assert queue.fragments[0].online


@simulated
async def test_what_cannot_be_changed_is_refused_by_name_and_nothing_changes(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    before = queue.description
    for changes, text in (
        ({"requires_session": True}, "RequiresSession"),
        ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
        ({"enable_partitioning": True}, "EnablePartitioning"),
    ):
        with pytest.raises(ArgumentInvalid, match=f"The value for the {text} property of an existing Queue cannot"):
            await update(hall, lock_duration_ms=7000, **changes)
    with pytest.raises(ArgumentOutOfRange, match="LockDuration"):
        await update(hall, lock_duration_ms=1)
    with pytest.raises(EntityNotFound):
        await hall.unit.update_queue("n", QueueDescription(name="other"))
    with pytest.raises(ArgumentInvalid, match="ForwardTo"):
        await update(hall, forward_to="other")
    assert queue.description == before == from_json(hall.catalog.read().entities[0].description, QueueDescription)


@simulated
async def test_a_catalog_that_fails_leaves_the_properties_as_they_were(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()

    def lost(entity_id: int, description: bytes) -> None:
        raise StoreFailed("planted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hall.catalog, "update_description", lost)
        with pytest.raises(ServerBusy, match="cannot be changed now"):
            await update(hall, lock_duration_ms=7000)
    assert queue.description.lock_duration_ms == 60_000


def test_a_lock_keeps_its_end_and_the_new_duration_holds_from_the_next_lock_or_renewal() -> None:
    driver = Driver(lock_duration_ms=10_000)
    driver.send(b"a", b"b", b"c")
    ((first, _),) = driver.lock()
    ((second, _),) = driver.lock()
    driver.fragment.set_settings(SourceSettings(lock_duration_ms=60_000))
    driver.commit()
    assert driver.fragment.renew(0, [second], driver.now_ms) == driver.now_ms + 60_000
    ((third, _),) = driver.lock()
    driver.pass_time(10_000)
    driver.commit()
    assert sorted(driver.source.locks) == [second, third]
    assert driver.settle(COMPLETE, first).lost == [first]
    assert driver.settle(COMPLETE, second, third).lost == []


# -- size -------------------------------------------------------------------------------------------------------


@simulated
async def test_a_full_queue_takes_nothing_more_until_something_is_received(hall: Hall) -> None:
    """I33."""
    await hall.start()
    queue = await hall.create(max_size_in_megabytes=1)
    full = batch(bytes(MIB - 10), bytes(10))
    queue.send(full)
    await turns(20)
    over = batch(b"x")
    queue.send(over)
    await turns(20)
    assert (answers(full), queue.numbers()) == ([None], ([2, 0, 0, 0, 0], MIB))
    (error,) = answers(over)
    assert isinstance(error, QuotaExceeded)
    assert f"{MIB} bytes of at most {MIB}" in str(error)
    await hall.again()
    queue = hall.queue()
    still = batch(b"x")
    queue.send(still)
    box = Box()
    queue.open_receiver(0, box, removing=True).request(1)
    await turns(40)
    assert isinstance(answers(still)[0], QuotaExceeded)
    assert len(box.ready[0].messages) == 1
    after = batch(b"x")
    queue.send(after)
    await turns(20)
    assert answers(after) == [None]


@simulated
async def test_whether_there_is_room_is_decided_when_the_commit_starts(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(max_size_in_megabytes=1)
    sent = [batch(bytes(MIB // 2)) for _ in range(3)]
    for made in sent:
        queue.send(made)
    await turns(30)
    assert [type(answers(made)[0]) for made in sent] == [type(None), type(None), QuotaExceeded]
    assert queue.numbers()[1] == MIB


@simulated
async def test_a_batch_that_does_not_fit_as_a_whole_is_refused_as_a_whole(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(max_size_in_megabytes=1)
    made = batch(bytes(MIB), b"x")
    made.atomic = True
    queue.send(made)
    await turns(20)
    assert isinstance(answers(made)[0], QuotaExceeded)
    assert queue.numbers() == ([0, 0, 0, 0, 0], 0)


@simulated
async def test_a_partitioned_queue_takes_16_times_its_size_whichever_way_the_turns_go(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(max_size_in_megabytes=1, enable_partitioning=True)
    first = batch(bytes(MIB), key=b"sfull")
    queue.send(first)
    await turns(20)
    for _ in range(30):
        queue.send(batch(bytes(MIB // 2)))
        await turns(20)
    assert queue.numbers()[1] == 16 * MIB
    over = [batch(b"x"), batch(b"x", key=b"sany")]
    for made in over:
        queue.send(made)
    await turns(20)
    assert all(isinstance(answers(made)[0], QuotaExceeded) for made in over)


@simulated
async def test_a_larger_quota_is_in_force_at_once_and_a_smaller_one_keeps_what_is_there(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(max_size_in_megabytes=1024)
    queue.send(batch(bytes(MIB)))
    await turns(20)
    queue.change(msgspec.structs.replace(queue.description, max_size_in_megabytes=1))
    over = batch(b"x")
    queue.send(over)
    await turns(20)
    assert isinstance(answers(over)[0], QuotaExceeded)
    assert queue.numbers()[0][0] == 1
    await update(hall, max_size_in_megabytes=2048)
    after = batch(b"x")
    queue.send(after)
    await turns(20)
    assert answers(after) == [None]


def test_a_duplicate_takes_no_room_and_is_accepted_by_a_full_entity() -> None:
    driver = Driver(duplicate_window_ms=20_000, max_bytes=3)
    first, again, other = driver.run(b"abc"), driver.run(b"abc"), driver.run(b"abd")
    for run, one in ((first, b"s1"), (again, b"s1"), (other, b"s2")):
        run.batch.ids = [one]
        driver.commit(run)
    assert (first.error, again.error, again.dropped) == (None, None, [0])
    assert isinstance(other.error, QuotaExceeded)


def test_dead_letters_and_scheduled_messages_count_towards_the_size() -> None:
    driver = Driver(max_bytes=4, max_delivery_count=1)
    driver.send(b"ab")
    driver.lock()
    driver.pass_time(60_000)
    driver.send(b"cd", scheduled_ms=driver.now_ms + 60_000)
    assert driver.source.numbers == [0, 1, 0, 0, 1]
    assert isinstance(driver.error_of(driver.run(b"e")), QuotaExceeded)


# -- idle queues ------------------------------------------------------------------------------------------------

FIVE_MINUTES_MS = 300_000


def there(hall: Hall, name: str = "q") -> bool:
    return name in hall.unit.namespace("n").queues


@simulated
async def test_a_queue_that_nobody_uses_is_deleted_everywhere_when_its_time_has_passed(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS, enable_partitioning=True)
    await hall.create("kept")
    queue.send(batch(b"m"))
    await asyncio.sleep(299)
    assert there(hall)
    await asyncio.sleep(2)
    assert (there(hall), there(hall, "kept")) == (False, True)
    assert [row.path for row in hall.catalog.read().entities] == ["kept"]
    assert queue.is_deleted
    for disk in hall.disks.values():
        assert disk.usage().rows == 0
    await hall.again()
    assert not there(hall)


@simulated
async def test_each_use_begins_the_time_anew(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)

    async def send() -> None:
        queue.send(batch(b"m"))

    async def peek() -> None:
        await queue.peek(0, 1, 1)

    async def open_and_close() -> None:
        queue.open_receiver(0, Box(), removing=False).close()

    for use in (send, peek, open_and_close):
        await asyncio.sleep(200)
        await use()
    await asyncio.sleep(299)
    assert there(hall)
    await asyncio.sleep(2)
    assert not there(hall)


@simulated
async def test_a_receiver_that_was_open_since_the_last_look_counts_until_it_was_closed(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    await asyncio.sleep(30)
    queue.open_receiver(0, Box(), removing=False).close()
    await asyncio.sleep(299)
    assert there(hall)
    await asyncio.sleep(2)
    assert not there(hall)


@simulated
async def test_an_open_receiver_and_a_scheduled_message_keep_a_queue(hall: Hall) -> None:
    await hall.start()
    watched = await hall.create("watched", auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    waiting = await hall.create("waiting", auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    receiver = watched.open_receiver(0, Box(), removing=False)
    waiting.send(batch(b"m", scheduled_ms=hall.clock.now_ms() + 1_200_000))
    await asyncio.sleep(1_000)
    assert there(hall, "watched")
    assert there(hall, "waiting")
    receiver.close()
    await asyncio.sleep(1_300)
    assert not there(hall, "watched")
    assert not there(hall, "waiting")


@simulated
async def test_a_restart_begins_the_time_anew_and_new_properties_do_so_too(hall: Hall) -> None:
    await hall.start()
    await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    await asyncio.sleep(200)
    await hall.again()
    await asyncio.sleep(200)
    await update(hall, auto_delete_on_idle_ms=2 * FIVE_MINUTES_MS)
    await asyncio.sleep(599)
    assert there(hall)
    await asyncio.sleep(2)
    assert not there(hall)
    await hall.create("second", auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    await update(hall, "second", auto_delete_on_idle_ms=None)
    await asyncio.sleep(3_600)
    assert there(hall, "second")


@simulated
async def test_a_queue_is_not_deleted_while_nobody_can_look_into_it(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    broker = queue.fragments[0].broker
    hall.writers[broker.store_id].is_held = True
    queue.send(batch(b"m"))
    broker.lifecycle.fail(StoreFailed("planted"))
    await asyncio.sleep(900)
    assert there(hall)
    hall.writers[broker.store_id].release()
    await wait_for_store(queue)
    await asyncio.sleep(700)
    assert not there(hall)


@simulated
async def test_a_store_that_fails_during_the_deletion_has_the_rest_deleted_when_it_is_back(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    await asyncio.sleep(290)
    hall.writers[queue.fragments[0].store.store_id].fail_next = "before"
    await asyncio.sleep(15)
    assert not there(hall)
    assert any("rest is deleted when the store is back" in why for _, _, why in hall.events)
    await asyncio.sleep(5)
    assert hall.catalog.read().entities == ()
    # Its name is free again.
    await hall.create()


@simulated
async def test_a_crash_during_the_deletion_has_the_rest_deleted_at_the_next_start(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    hall.writers[queue.fragments[0].store.store_id].fail_next = "before"
    with pytest.raises(StoreUnavailable):
        await hall.unit.delete_queue("n", "q")
    assert len(hall.catalog.read().entities) == 1
    await hall.again()
    assert hall.catalog.read().entities == ()


@simulated
async def test_delivery_counts_that_wait_for_a_commit_go_with_their_queue(hall: Hall) -> None:
    await hall.start()
    queue, *others = [await hall.create(name) for name in ("q", "o1", "o2", "o3", "o4")]
    broker = queue.fragments[0].broker
    (other,) = [one for one in others if one.fragments[0].broker is broker]
    fragment = queue.fragments[0].fragment
    assert fragment is not None
    broker.commit_loop.changed[fragment.fragment_key] = fragment
    await hall.unit.delete_queue("n", "q")
    other.send(made := batch(b"m"))
    await turns(20)
    await asyncio.sleep(10)
    # A commit with what is gone would be refused, and the store taken for one that failed.
    assert (answers(made), broker.failures) == ([None], 0)


@simulated
async def test_a_queue_is_not_deleted_while_a_part_of_it_is_away(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    hall.writers[queue.fragments[0].store.store_id].fail_next = "before"
    queue.send(batch(b"m"))
    await turns(20)
    with pytest.raises(StoreUnavailable):
        await hall.unit.delete_queue("n", "q")
    await wait_for_store(queue)
    assert hall.queue() is queue
    await hall.unit.delete_queue("n", "q")
    assert hall.catalog.read().entities == ()


@simulated
async def test_followers_hear_of_changes_and_deletions_until_they_leave(hall: Hall) -> None:
    await hall.start()
    await hall.create()
    heard: list[tuple[str, bool]] = []

    def hear(queue: Queue) -> None:
        heard.append((queue.path, queue.is_deleted))

    hall.unit.follow(hear)
    await update(hall, max_delivery_count=3)
    await hall.unit.delete_queue("n", "q")
    assert heard == [("q", False), ("q", True)]
    hall.unit.unfollow(hear)
    await hall.create()
    await hall.unit.delete_queue("n", "q")
    assert len(heard) == 2


@simulated
async def test_one_timer_serves_all_queues_and_each_goes_in_its_own_time(hall: Hall) -> None:
    await hall.start()
    before = hall.loop.timers()
    for number in range(50):
        await hall.create(f"q{number}", auto_delete_on_idle_ms=FIVE_MINUTES_MS + (50 - number) * 60_000)
    # What watched over the stores meanwhile comes to its end.
    await asyncio.sleep(LATE_S + 0.1)
    assert hall.loop.timers() <= before + 1
    await asyncio.sleep(300 + 10 * 60 + 1)
    assert sorted(hall.unit.namespace("n").queues) == sorted(f"q{number}" for number in range(40))


# -- scheduled messages and expiry ------------------------------------------------------------------------------


@simulated
async def test_scheduled_messages_cost_no_timer_each(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    due_ms = hall.clock.now_ms() + 3_600_000
    before = hall.loop.timers()
    for number in range(100):
        queue.send(batch(*([b"m"] * 1000), scheduled_ms=due_ms + number))
        await turns(5)
    assert queue.numbers()[0][-1] == 100_000
    assert hall.loop.timers() <= before + 1
    await asyncio.sleep(3_590)
    assert queue.numbers()[0][0] == 0
    await asyncio.sleep(20)
    assert queue.numbers()[0] == [100_000, 0, 0, 0, 0]


@pytest.mark.slow
def test_two_hundred_thousand_scheduled_messages_stand_in_one_list_with_one_deadline() -> None:
    driver = Driver()
    due_ms = driver.now_ms + 86_400_000
    for number in range(200):
        driver.send(*([b"m"] * 1000), scheduled_ms=due_ms + number % 7)
    assert (len(driver.source.scheduled), driver.fragment.deadline) == (200_000, due_ms)
    driver.now_ms = due_ms + 10
    commits = 0
    while driver.source.scheduled:
        assert len(driver.commit().puts[0].payloads) == DUE_AT_ONCE
        commits += 1
    assert commits == 100
    assert driver.source.numbers == [200_000, 0, 0, 0, 0]


@pytest.mark.parametrize(("moved", "numbers"), [(True, [0, 3, 0, 0, 0]), (False, [0, 0, 0, 0, 0])])
def test_messages_that_ran_out_of_life_are_dead_lettered_or_removed_as_the_queue_says(
    moved: bool, numbers: list[int]
) -> None:
    driver = Driver(default_ttl_ms=5_000, dead_letter_on_expiration=moved)
    driver.send(b"a", b"b")
    driver.send(b"c", ttl_ms=1_000)
    driver.send(b"never delivered", ttl_ms=60_000)
    driver.pass_time(1_000)
    driver.pass_time(3_999)
    assert driver.source.numbers[0] == 3
    driver.now_ms += 1
    driver.commit()
    dead = {payload: metadata for _, _, payload, metadata in driver.picture().values()}
    assert driver.source.numbers == [0, numbers[1] + moved, 0, 0, 0]
    assert all(metadata is not None and metadata.reason == "TTLExpiredException" for metadata in dead.values())
    assert len(driver.stored()) == len(dead)


# -- quotas of a namespace --------------------------------------------------------------------------------------


@simulated
async def test_a_namespace_takes_as_many_entities_as_it_may_and_no_more(hall: Hall) -> None:
    """I33, PE21."""
    await hall.start()
    hall.unit.quotas = Quotas(entities=3, partitioned_entities=1)
    await hall.unit.topics.create_topic("n", TopicDescription(name="t"))
    await hall.create("a", enable_partitioning=True)
    with pytest.raises(QuotaExceeded, match="1 partitioned entities of at most 1"):
        await hall.create("b", enable_partitioning=True)
    await hall.create("b")
    with pytest.raises(QuotaExceeded, match="3 entities of at most 3"):
        await hall.create("c")
    await hall.unit.delete_queue("n", "a")
    await hall.create("c", enable_partitioning=True)
    await hall.unit.create_queue("other", QueueDescription(name="a"))
