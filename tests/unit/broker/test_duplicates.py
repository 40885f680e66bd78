"""Duplicate detection: what a fragment remembers, for how long, and what survives (I5)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duobus.broker import slot_of
from duobus.broker.entities.message_ids import identify, message_id
from duobus.codec import build_message, with_made_id
from duobus.codec.values import ULong
from duobus.errors import ArgumentInvalid, QuotaExceeded, ServerBusy, StoreUnavailable
from duobus.fragment.duplicate_detection import OUTDATED_BLOCKS, DuplicateHistory, MessageIdBudget, pack, unpack
from duobus.fragment.send import Run
from duobus.fragment.settlement import COMPLETE
from duobus.model.batches import SendBatch
from duobus.storage.interface import CommitBatch, IdBlock
from kits.broker import Hall, answers, batch, simulated_over
from kits.fragment import START_MS, Driver

WINDOW_MS = 20_000
EVERY_KIND = pytest.mark.parametrize(
    "one", ["id", "x" * 128, "é" * 100, ULong(7), uuid.UUID(int=5), b"\x00bytes"], ids=lambda one: type(one).__name__
)


@pytest.mark.parametrize("width", [1, 250])
def test_an_id_that_the_broker_gave_is_none_in_duplicate_detection(width: int) -> None:
    """An id that the broker has given detects no duplicate; and it places no message either (PE10)."""
    fields = [None, None, "t" * width]
    made, own = with_made_id(build_message(fields), 0, b"0" * 32), build_message(["0" * 32, *fields[1:]])
    assert (message_id(made), message_id(own)) == (None, b"s" + b"0" * 32)


def watchful(**settings: Any) -> Driver:
    return Driver(duplicate_window_ms=WINDOW_MS, **settings)


def run_of(driver: Driver, *ids: bytes | None, **metadata: Any) -> Run:
    """A run whose messages have these ids; each payload is the id, or what stands for none."""
    run = driver.run(*(one or b"-" for one in ids), **metadata)
    run.batch.ids = list(ids)
    return run


def send(driver: Driver, *ids: bytes | None, **metadata: Any) -> Run:
    run = run_of(driver, *ids, **metadata)
    driver.commit(run)
    assert run.error is None
    return run


def bodies(driver: Driver) -> list[bytes]:
    return [payload for _, _, payload, _ in driver.picture().values()]


def test_a_duplicate_is_accepted_and_dropped() -> None:
    driver = watchful()
    first, second = send(driver, b"a"), send(driver, b"a")
    assert (first.dropped, second.dropped) == (None, [0])
    assert bodies(driver) == [b"a"]
    assert (driver.source.numbers[0], driver.source.bytes) == (1, 1)
    assert driver.stored().keys() == driver.picture().keys()


def test_messages_of_one_batch_and_of_one_commit_are_judged_singly() -> None:
    driver = watchful()
    first, second = run_of(driver, b"a", b"b", b"a"), run_of(driver, b"b", b"c")
    driver.commit(first, second)
    assert (first.dropped, second.dropped) == ([2], [0])
    assert bodies(driver) == [b"a", b"b", b"c"]


def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    driver = watchful()
    send(driver, None, None)
    send(driver, None, b"a")
    assert bodies(driver) == [b"-", b"-", b"-", b"a"]


@pytest.mark.parametrize(("later_ms", "copies"), [(0, 1), (WINDOW_MS - 1, 1), (WINDOW_MS, 2), (WINDOW_MS + 1, 2)])
def test_the_window_ends_exactly_when_its_time_has_passed(later_ms: int, copies: int) -> None:
    driver = watchful()
    send(driver, b"a")
    driver.now_ms += later_ms
    send(driver, b"a")
    assert bodies(driver) == [b"a"] * copies


def test_a_duplicate_does_not_begin_the_window_anew() -> None:
    driver = watchful()
    send(driver, b"a")
    driver.now_ms += WINDOW_MS - 1
    send(driver, b"a")
    driver.now_ms += 1
    assert send(driver, b"a").dropped is None


def test_a_message_that_was_completed_is_still_known() -> None:
    driver = watchful()
    send(driver, b"a")
    ((lock, _),) = driver.lock()
    driver.settle(COMPLETE, lock)
    assert send(driver, b"a").dropped == [0]
    assert bodies(driver) == []


def test_the_history_survives_a_crash_and_so_does_its_end() -> None:
    driver = watchful()
    send(driver, b"a")
    driver.now_ms += 5_000
    send(driver, b"b", None, b"c")
    driver = driver.recovered()
    assert send(driver, b"a", b"b", b"c").dropped == [0, 1, 2]
    driver.now_ms = START_MS + WINDOW_MS
    assert send(driver.recovered(), b"a", b"b").dropped == [1]


def test_a_scheduled_message_counts_when_it_is_scheduled_and_not_again_when_it_is_due() -> None:
    driver = watchful()
    due_ms = START_MS + 2 * WINDOW_MS
    send(driver, b"a", scheduled_ms=due_ms)
    assert send(driver, b"a").dropped == [0]
    driver.now_ms += WINDOW_MS
    assert send(driver, b"a").dropped is None
    driver.pass_time(WINDOW_MS)
    driver.commit()
    assert bodies(driver) == [b"a", b"a"]
    assert driver.waiting() == 2


def test_every_message_has_a_number_of_its_own_and_a_dropped_one_names_nothing() -> None:
    driver = watchful()
    send(driver, b"a")
    run = send(driver, b"b", b"a", b"c")
    assert run.counts() == [2, 4, 3]
    assert send(driver, b"d").counts() == [5]
    assert sorted(driver.picture()) == [1, 2, 3, 5]
    part = run_of(driver, b"a", b"e", b"d", b"f")
    part.indices = [1, 2, 3]
    driver.commit(part)
    assert part.counts() == [6, 8, 7]


def test_specials_stay_with_their_messages_when_a_duplicate_stands_before_them() -> None:
    driver = watchful()
    send(driver, b"a")
    run = run_of(driver, b"a", b"b", b"c", ttl_ms=5000)
    assert run.batch.extra is not None
    run.batch.extra[2].ttl_ms = 7000
    driver.commit(run)
    assert {payload: metadata.ttl_ms for _, _, payload, metadata in driver.picture().values() if metadata} == {
        b"b": 5000,
        b"c": 7000,
    }
    assert driver.recovered().picture() == driver.picture()


def test_ids_that_ran_out_leave_memory_and_store_though_nobody_sends() -> None:
    driver = watchful()
    for _ in range(5):
        send(driver, b"a", b"b")
        driver.now_ms += WINDOW_MS
    driver.pass_time(WINDOW_MS)
    history = driver.source.history
    assert history is not None
    assert (history.known, len(history.blocks), history.room.used) == (set(), 0, 0)
    assert driver.store.load_ids(driver.source.source_key, 0, 10) == []


def test_nothing_is_due_for_an_id_before_its_window_has_passed_and_one_instant_serves_all() -> None:
    driver = watchful()
    send(driver, b"a")
    due_ms = driver.fragment.deadline
    assert START_MS + WINDOW_MS < due_ms < START_MS + 2 * WINDOW_MS
    for number in range(100):
        driver.now_ms += 10
        send(driver, b"%d" % number)
    assert driver.fragment.deadline == due_ms


def test_blocks_that_ran_out_are_deleted_many_at_a_time_while_sends_go_on() -> None:
    driver = watchful()
    step_ms = WINDOW_MS // 100
    for number in range(1000):
        send(driver, b"%d" % number)
        driver.now_ms += step_ms
    kept = len(driver.store.load_ids(driver.source.source_key, 0, 2000))
    assert 100 <= kept <= 100 + OUTDATED_BLOCKS
    assert driver.source.history is not None
    assert len(driver.source.history.known) == 100


def test_a_shorter_window_forgets_sooner_and_a_longer_one_keeps_what_is_there() -> None:
    driver = watchful()
    send(driver, b"a")
    driver.now_ms += 10_000
    driver.settings.duplicate_window_ms = 30_000
    driver.now_ms += 15_000
    assert send(driver, b"a").dropped == [0]
    driver.settings.duplicate_window_ms = 25_000
    assert send(driver, b"a").dropped is None


def test_an_id_that_came_again_is_known_from_its_second_time_after_a_restart_and_a_longer_window() -> None:
    driver = watchful()
    send(driver, b"a", b"b")
    driver.now_ms += WINDOW_MS
    send(driver, b"a")
    driver.settings.duplicate_window_ms = 2 * WINDOW_MS
    driver = driver.recovered()
    driver.now_ms += WINDOW_MS
    assert send(driver, b"b", b"a").dropped == [1]
    assert driver.source.history is not None
    assert driver.source.history.room.used == 2


def test_a_full_history_refuses_as_busy_rather_than_to_let_a_duplicate_through() -> None:
    driver = watchful()
    assert driver.source.history is not None
    driver.source.history.room = MessageIdBudget(3)
    send(driver, b"a", b"b")
    error = driver.error_of(run_of(driver, b"c", b"d"))
    assert isinstance(error, ServerBusy)
    assert "20 s" in str(error)
    assert send(driver, b"c").dropped is None
    assert isinstance(driver.error_of(run_of(driver, b"d")), ServerBusy)
    assert driver.error_of(run_of(driver, None)) is not None
    driver.now_ms += WINDOW_MS
    assert send(driver, b"d", b"a").dropped is None


class HistoryMachine(RuleBasedStateMachine):
    """A fragment against a list of what was accepted when: sends, time, completions and crashes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = watchful()
        self.stored: dict[bytes, int] = {}
        self.number = 0

    @rule(ids=st.lists(st.sampled_from([None, b"a", b"b", b"c", b"d"]), min_size=1, max_size=6))
    def send(self, ids: list[bytes | None]) -> None:
        """Send messages with these ids in one run."""
        now_ms = self.driver.now_ms
        expected = []
        for index, one in enumerate(ids):
            if one is None:
                self.number += 1
            elif self.stored.get(one, -WINDOW_MS) + WINDOW_MS > now_ms:
                expected.append(index)
            else:
                self.stored[one] = now_ms
                self.number += 1
        run = send(self.driver, *ids)
        assert (run.dropped or []) == expected
        assert sorted(run.counts()) == list(range(run.first_count, run.first_count + len(ids)))

    @rule(ms=st.sampled_from([1, WINDOW_MS // 2, WINDOW_MS - 1, WINDOW_MS, 3 * WINDOW_MS]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.driver.pass_time(ms)

    @rule()
    def complete(self) -> None:
        """Complete whatever is there."""
        locks = [lock for lock, _ in self.driver.lock(100)]
        if locks:
            self.driver.settle(COMPLETE, *locks)
            self.number -= len(locks)

    @rule()
    def crash(self) -> None:
        """Lose the memory."""
        self.driver = self.driver.recovered()

    @invariant()
    def the_same_number_is_there_and_each_id_stands_in_one_block(self) -> None:
        """Memory, store and model agree."""
        history = self.driver.source.history
        assert history is not None
        assert len(self.driver.picture()) == len(self.driver.stored()) == self.number
        in_blocks = [one for _, _, ids in history.blocks for one in ids]
        assert sorted(in_blocks) == sorted(history.known)
        assert history.room.used == len(in_blocks)


HistoryMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestAHistoryBehavesLikeItsModel = HistoryMachine.TestCase


def test_a_block_of_ids_is_stored_as_it_was() -> None:
    ids = [b"s" + b"x" * length for length in (1, 39, 0)]
    assert unpack(pack(ids)) == ids
    assert unpack(pack([])) == []


# -- what a message is known by ---------------------------------------------------------------------------------


def bare(one: Any, **properties: Any) -> bytes:
    return build_message([one, None, None, properties.get("label")], None, data=b"body")


@EVERY_KIND
def test_the_id_is_found_whatever_its_type_and_equal_for_equal_ids(one: Any) -> None:
    found = message_id(bare(one))
    assert found is not None
    assert found == message_id(bare(one, label="another"))
    assert found != message_id(bare("other"))


def test_ids_of_different_types_are_different_ids() -> None:
    assert len({message_id(bare(one)) for one in ("7", ULong(7), b"7", uuid.UUID(int=7))}) == 4


@pytest.mark.parametrize(
    "payload",
    [b"", bare(None), bare(""), b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x73\x45\x00\x53\x75\xa0\x01x", b"\x00\x53\x73"],
)
def test_a_message_without_an_id_has_none(payload: bytes) -> None:
    assert message_id(payload) is None


def identified(ids: list[Any], keys: list[bytes | None] | None = None, *, is_partitioned: bool = False) -> SendBatch:
    made = batch(*(bare(one) for one in ids))
    made.keys = keys
    identify(made, is_partitioned=is_partitioned)
    return made


def test_without_ids_and_keys_a_batch_stays_as_it_is() -> None:
    made = identified([None, None], is_partitioned=True)
    assert (made.ids, made.keys) == (None, None)


def test_a_message_without_a_key_is_placed_by_its_id_where_there_are_fragments() -> None:
    made = identified(["a", None, "b"], [None, b"sk", b"sk"], is_partitioned=True)
    assert made.keys == [b"sa", b"sk", b"sk"]
    assert made.ids is not None
    assert made.ids[0] == b"sa"
    assert made.ids[1] is None
    # The key belongs to the id: the same id under another key is another message.
    assert made.ids[2] not in (b"sb", *(identified(["b"], [b"sj"], is_partitioned=True).ids or []))
    plain = identified(["a", "b"])
    assert (plain.ids, plain.keys) == ([b"sa", b"sb"], None)


def test_a_long_id_is_kept_by_its_digest_which_no_short_one_can_equal() -> None:
    long, other = identified(["x" * 128, "x" * 127]).ids or []
    assert long is not None
    assert (len(long), long[:1]) == (33, b"#")
    assert long != other


# -- over a store that fails ------------------------------------------------------------------------------------


async def create(place: Hall, **properties: Any) -> Any:
    return await place.create(
        requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=WINDOW_MS, **properties
    )


async def settle_down(place: Hall) -> None:
    for _ in range(5):
        await asyncio.sleep(0.001)
    for broker in place.unit.brokers.values():
        await broker.finish()


@simulated_over(1)
async def test_a_commit_that_failed_before_it_was_written_forgets_its_ids(place: Hall) -> None:
    await place.start()
    queue = await create(place)
    place.writers[1].fail_next = "before"
    first, second = batch(bare("a")), batch(bare("a"))
    queue.send(first)
    queue.send(second)
    await asyncio.sleep(1)
    assert all(isinstance(error, StoreUnavailable) for error in answers(first) + answers(second))
    assert len(answers(first) + answers(second)) == 2
    again = batch(bare("a"))
    queue.send(again)
    await settle_down(place)
    assert answers(again) == [None]
    assert again.reply.ready[0].dropped is None
    assert queue.numbers()[0][0] == 1


@simulated_over(1)
async def test_a_run_that_was_refused_after_it_was_written_is_no_original(place: Hall) -> None:
    await place.start()
    queue = await create(place)
    place.writers[1].fail_next = "after"
    first = batch(bare("a"))
    queue.send(first)
    await asyncio.sleep(1)
    assert isinstance(answers(first)[0], StoreUnavailable)
    again = batch(bare("a"))
    queue.send(again)
    await settle_down(place)
    # The refused one was deleted at recovery; had its id stayed, this would be an acknowledged loss (I1, I38).
    assert again.reply.ready[0].dropped is None
    assert queue.numbers()[0][0] == 1


@simulated_over(1)
async def test_a_duplicate_that_comes_while_the_original_is_being_written_is_decided_after_it(place: Hall) -> None:
    await place.start()
    queue = await create(place)
    place.writers[1].is_held = True
    first, second = batch(bare("a")), batch(bare("a"))
    queue.send(first)
    await asyncio.sleep(0.01)
    queue.send(second)
    await asyncio.sleep(0.01)
    assert answers(first) + answers(second) == []
    place.writers[1].release()
    await settle_down(place)
    assert (answers(first), answers(second)) == ([None], [None])
    assert second.reply.ready[0].dropped == [0]


@simulated_over(3)
async def test_the_history_survives_a_new_process_over_the_same_stores(place: Hall) -> None:
    await place.start()
    queue = await create(place, enable_partitioning=True)
    sent = [batch(bare(f"id-{number}")) for number in range(40)]
    for made in sent:
        queue.send(made)
    await settle_down(place)
    by_number = {made.reply.ready[0].handle.number for made in sent}
    assert len(by_number) > 8
    assert sum(broker.id_room.used for broker in place.unit.brokers.values()) == 40
    await place.again()
    again = [batch(bare(f"id-{number}")) for number in range(40)]
    for made in again:
        place.queue().send(made)
    await settle_down(place)
    assert all(made.reply.ready[0].dropped == [0] for made in again)
    assert place.queue().numbers()[0][0] == 40
    assert sum(broker.id_room.used for broker in place.unit.brokers.values()) == 40


@simulated_over(2)
async def test_keyless_messages_go_where_their_ids_belong_and_are_not_sent_elsewhere(place: Hall) -> None:
    await place.start()
    queue = await create(place, enable_partitioning=True)
    made = batch(bare("a"))
    queue.send(made)
    await settle_down(place)
    run = made.reply.ready[0]
    assert run.handle.number == slot_of(b"sa", 16)
    assert run.placement is None
    place.writers[run.handle.store.store_id].fail_next = "before"
    lost = batch(bare("a"))
    queue.send(lost)
    await asyncio.sleep(0.05)
    assert isinstance(answers(lost)[0], StoreUnavailable)


@simulated_over(1)
async def test_a_batch_whose_ids_belong_to_different_fragments_is_refused_as_a_whole(place: Hall) -> None:
    await place.start()
    queue = await create(place, enable_partitioning=True)
    made = batch(*(bare(f"{number}") for number in range(5)))
    made.atomic = True
    queue.send(made)
    assert isinstance(answers(made)[0], ArgumentInvalid)
    same = batch(*(bare(f"{number}") for number in range(5)), key=b"skey")
    same.atomic = True
    queue.send(same)
    await settle_down(place)
    assert answers(same) == [None]


@simulated_over(1)
async def test_a_deleted_queue_gives_its_room_back(place: Hall) -> None:
    await place.start()
    queue = await create(place)
    queue.send(batch(bare("a"), bare("b")))
    await settle_down(place)
    assert place.unit.brokers[1].id_room.used == 2
    await place.unit.delete_queue("n", "q")
    assert place.unit.brokers[1].id_room.used == 0


def test_an_id_that_comes_in_two_blocks_is_remembered_once_and_others_stay() -> None:
    history = DuplicateHistory()
    blocks = [IdBlock(1, 1, 5, pack([b"a" * 16, b"b" * 16])), IdBlock(1, 3, 6, pack([b"a" * 16, b"c" * 16]))]
    history.recover(blocks, 9, 1_000)
    assert history.known == {b"a" * 16, b"b" * 16, b"c" * 16}
    assert history.room.used == 3
    assert [ids for _, _, ids in history.blocks] == [[b"b" * 16], [b"a" * 16, b"c" * 16]]


def test_a_full_entity_counts_of_a_part_of_a_batch_only_what_is_new() -> None:
    driver = watchful(max_bytes=4)
    send(driver, b"aa")
    run = run_of(driver, b"bb", b"aa", b"cc")
    run.indices = [0, 1]
    assert driver.error_of(run) is None
    again = run_of(driver, b"bb", b"aa", b"cc")
    again.indices = [1, 2]
    assert isinstance(driver.error_of(again), QuotaExceeded)


def test_ids_that_are_counted_in_another_room_leave_those_of_others_where_they_are() -> None:
    rooms = MessageIdBudget(), MessageIdBudget()
    histories = DuplicateHistory(), DuplicateHistory()
    for history, ids in zip(histories, ([b"a", b"b"], [b"c"]), strict=True):
        history.move_to(rooms[0])
        history.add(1, 1, ids)
    histories[0].move_to(rooms[1])
    assert [room.used for room in rooms] == [1, 2]
    histories[0].add(2, 3, [b"d"])
    assert [room.used for room in rooms] == [1, 3]


def test_what_ran_out_while_the_server_was_down_is_deleted_though_nobody_sends() -> None:
    history = DuplicateHistory()
    blocks = [IdBlock(7, 1, 5, pack([b"a"])), IdBlock(7, 2, 6, pack([b"b"])), IdBlock(7, 3, 5_000, pack([b"c"]))]
    history.recover(blocks, 5_000, 1_000)
    assert history.known == {b"c"}
    history.tick(5_000, 1_000)
    commit = CommitBatch(1, 5_000)
    history.write_outdated(7, commit)
    assert commit.outdated == [(7, 2)]
    history.write_outdated(7, commit)
    assert commit.outdated == [(7, 2)]
