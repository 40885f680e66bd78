"""Messages of a deep backlog without a slot each: nobody can tell them from others."""

from __future__ import annotations

from typing import Any

import pytest
from fragment_kit import START_MS, Box, Driver
from hypothesis.stateful import invariant, precondition, rule
from test_fragment_model import FragmentMachine

from duobus.broker.fragment import browsing, stretches
from duobus.broker.fragment.browsing import Sought
from duobus.broker.fragment.clearing import ClearAvailable, ClearCounts
from duobus.broker.fragment.commands import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME, SettleBatch, TakeAndRemove
from duobus.broker.fragment.slot import MAIN, NEVER, Slot, sub_queue_of
from duobus.broker.fragment.source import COMPACT_FROM, UNFOLDED, Source
from duobus.broker.fragment.stretches import STRETCH_MAX, Held, Stretch


def fold(source: Source) -> None:
    """Put what is available and ordinary into stretches, as if it had been paged in."""
    shelf = source.sub_queues[MAIN]
    entries = list(shelf.ready)
    shelf.ready.clear()
    shelf.stretches = shelf.folded = 0
    for entry in entries:
        if isinstance(entry, Stretch):
            shelf.add(entry.count, entry.times, entry.payloads, entry.size)
        elif entry.state == 0 and not entry.deliveries and entry.special is None and not entry.expires_ms:
            del source.by_count[entry.count]
            shelf.add(entry.count, [entry.enqueued_ms], [entry.payload], entry.size)
        else:
            shelf.ready.append(entry)


def backlog(number: int, **settings: Any) -> Driver:
    """A fragment with so many messages, all of them in stretches."""
    driver = Driver(**settings)
    if number:
        driver.send(*[b"%d" % index for index in range(number)])
    fold(driver.source)
    return driver


def lock(driver: Driver, limit: int) -> tuple[int, Stretch]:
    """Lock a stretch."""
    first, found, _ = driver.fragment.lock(0, MAIN, limit, driver.now_ms)
    assert isinstance(found, Stretch)
    return first, found


def settlement(driver: Driver, outcome: int, *ranges: tuple[int, int]) -> SettleBatch:
    """An unsent settlement of ranges of locks."""
    return SettleBatch("handle", 0, None, prefix=driver.fragment.prefix, outcome=outcome, ranges=list(ranges))


def names(first: int, end: int) -> list[bytes]:
    return [b"%d" % index for index in range(first, end)]


# -- a stretch --------------------------------------------------------------------------------------------------


def test_a_stretch_is_a_sequence_of_slots() -> None:
    stretch = Stretch(7, [1, 2, 3], [b"a", b"bb", b"ccc"])
    assert len(stretch) == 3
    assert [(slot.count, slot.payload, slot.enqueued_ms) for slot in stretch] == [
        (7, b"a", 1),
        (8, b"bb", 2),
        (9, b"ccc", 3),
    ]
    assert (stretch[1].count, stretch[1].payload) == (8, b"bb")
    assert (stretch[1:].count, stretch[1:].payloads, stretch[1:].times) == (8, [b"bb", b"ccc"], [2, 3])
    assert (stretch.size, stretch[1:].size, stretch.enqueued_ms) == (6, 5, 1)


def test_sizes_are_right_whether_they_differ_or_not() -> None:
    driver = backlog(0)
    shelf = driver.source.sub_queues[MAIN]
    shelf.add(1, [1, 1], [b"aa", b"bb"], 4)
    (stretch,) = shelf.resting()
    assert (stretch.each, stretch.size) == (2, 4)
    shelf.add(3, [1, 1], [b"a", b"bbb"], 4)
    assert (stretch.each, stretch.size, stretch.cut(1, 4).size) == (-1, 8, 6)


def test_stretches_are_joined_up_to_their_limit_when_they_follow_each_other() -> None:
    driver = backlog(0)
    shelf = driver.source.sub_queues[MAIN]
    half = STRETCH_MAX // 2
    for first in (1, 1 + half, 1 + 2 * half, 2 + 3 * half):
        shelf.add(first, [1] * half, [b"x"] * half, half)
    assert sorted((s.count, len(s)) for s in shelf.resting()) == [
        (1, 2 * half),
        (1 + 2 * half, half),
        (2 + 3 * half, half),
    ]
    assert shelf.available() == 4 * half


# -- locked stretches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "number", "taken", "left"),
    [
        (10, 5, [(10, 5)], [(20, 5), (25, 5)]),
        (8, 4, [(10, 2)], [(12, 3), (20, 5), (25, 5)]),
        (13, 4, [(13, 2)], [(10, 3), (20, 5), (25, 5)]),
        (11, 2, [(11, 2)], [(10, 1), (13, 2), (20, 5), (25, 5)]),
        (12, 10, [(12, 3), (20, 2)], [(10, 2), (22, 3), (25, 5)]),
        (0, 100, [(10, 5), (20, 5), (25, 5)], []),
        (15, 5, [], [(10, 5), (20, 5), (25, 5)]),
        (0, 10, [], [(10, 5), (20, 5), (25, 5)]),
        (30, 9, [], [(10, 5), (20, 5), (25, 5)]),
        (23, 4, [(23, 2), (25, 2)], [(10, 5), (20, 3), (27, 3)]),
    ],
)
def test_any_range_of_locks_can_be_taken_out(
    first: int, number: int, taken: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    held = Held()
    for lock_no in (10, 20, 25):
        held.add(Stretch(100 + lock_no, [1] * 5, [b"%d" % (lock_no + index) for index in range(5)], -1, lock_no))
    assert held.overlaps(first, number) == bool(taken)
    found = held.take(first, number)
    for parts, expected in ((found, taken), (held.all(), left)):
        assert [(part.first_lock, len(part)) for part in parts] == expected
        assert all(part.count == 100 + part.first_lock for part in parts)
        assert all(part.payloads[0] == b"%d" % part.first_lock for part in parts)
    assert held.number == sum(length for _, length in left)


def test_a_stretch_is_locked_completed_and_forgotten_without_a_slot() -> None:
    driver = backlog(10)
    source = driver.source
    first, found = lock(driver, 6)
    assert found.payloads == names(0, 6)
    assert (source.held.number, source.highest_delivered, driver.waiting()) == (6, 6, 4)
    command = settlement(driver, COMPLETE, (first, 2), (first + 2, 3))
    driver.commit(command)
    assert command.lost == []
    assert not source.by_count
    assert not source.locks
    assert not source.leaving
    assert sorted(found[2] for found in driver.stored().values()) == names(5, 10)
    assert (source.numbers[MAIN], source.bytes, source.resident_bytes, source.held.number) == (5, 5, 5, 1)


def test_locks_of_a_range_that_are_lost_are_told_and_the_others_completed() -> None:
    driver = backlog(6)
    first, _ = lock(driver, 3)
    driver.settle(COMPLETE, first + 1)
    again, _ = lock(driver, 3)
    assert again == first + 3
    command = settlement(driver, COMPLETE, (first - 1, 8))
    driver.commit(command)
    assert command.lost == [first - 1, first + 1, first + 6]
    assert not driver.stored()
    assert driver.source.numbers[MAIN] == 0


def test_what_is_abandoned_or_given_back_comes_first_again_and_the_rest_stays_as_it_is() -> None:
    driver = backlog(10)
    first, _ = lock(driver, 6)
    driver.settle(ABANDON, first + 2)
    driver.fragment.unlock(0, [(first + 4, 2)], driver.now_ms, counted=False)
    assert (driver.source.held.number, sorted(driver.source.by_count)) == (3, [3, 5, 6])
    assert [slot.payload for _, slot in driver.lock(5)] == [b"2", b"4", b"5", b"6", b"7"]
    assert [slot.deliveries for slot in driver.source.by_count.values()] == [1, 0, 0, 0, 0]


def test_a_lock_that_ends_puts_messages_without_slots_back() -> None:
    driver = backlog(3, lock_duration_ms=1000)
    lock(driver, 2)
    driver.pass_time(1000)
    assert driver.source.held.number == 0
    assert [(slot.payload, slot.deliveries) for _, slot in driver.lock(3)] == [(b"0", 1), (b"1", 1), (b"2", 0)]


def test_a_renewed_lock_lasts_and_those_beside_it_end() -> None:
    driver = backlog(3, lock_duration_ms=1000)
    first, _ = lock(driver, 3)
    driver.now_ms += 600
    assert driver.fragment.renew(0, [first + 1], driver.now_ms) == driver.now_ms + 1000
    driver.pass_time(500)
    assert sorted(driver.source.locks) == [first + 1]
    assert driver.waiting() == 2


def test_a_strict_settlement_finds_locks_without_slots() -> None:
    driver = backlog(3)
    first, _ = lock(driver, 2)
    for outcome in (COMPLETE, DEAD_LETTER_OUTCOME):
        assert driver.error_of(driver.settlement(outcome, first + outcome // 3, strict=True)) is None
    assert driver.error_of(driver.settlement(COMPLETE, first, strict=True)) is not None
    assert driver.source.numbers[:2] == [1, 1]


def test_the_end_of_a_lock_is_not_forgotten_while_many_others_are_settled() -> None:
    number = 2 * COMPACT_FROM + 100
    driver = backlog(number, lock_duration_ms=1000)
    lock(driver, 1)
    for _ in range(number - 1):
        first, _ = lock(driver, 1)
        driver.fragment.apply(settlement(driver, COMPLETE, (first, 1)), driver.now_ms, driver.prepare()[0])
    driver.source.compact()
    assert sum(map(len, driver.source.ends.values())) == 1
    driver.pass_time(1000)
    assert driver.waiting() == 1


# -- others who take them ---------------------------------------------------------------------------------------


def test_receive_and_delete_takes_across_the_border_of_slots_and_stretches() -> None:
    driver = backlog(4)
    driver.send(b"4", b"5")
    shelf = driver.source.sub_queues[MAIN]
    shelf.promised += 5
    command = TakeAndRemove("handle", 0, MAIN, 5, Box())
    driver.commit(command)
    assert [slot.payload for slot in command.slots] == names(0, 5)
    assert (driver.waiting(), driver.source.resident_bytes, len(driver.source.by_count)) == (1, 1, 1)


def test_no_more_slots_are_made_of_a_stretch_than_are_wanted() -> None:
    driver = backlog(STRETCH_MAX)
    driver.commit(ClearAvailable("handle", 0, None, sub_queue=MAIN, limit=1, before_ms=NEVER, end=NEVER))
    assert len(driver.source.by_count) == UNFOLDED - 1
    assert driver.waiting() == STRETCH_MAX - 1


def test_messages_without_slots_expire_in_their_order() -> None:
    driver = backlog(0, default_ttl_ms=1000)
    driver.send(b"0", b"1")
    driver.now_ms += 500
    driver.send(b"2")
    fold(driver.source)
    driver.pass_time(500)
    assert driver.peek() == [b"2"]
    assert [found[2] for found in driver.stored().values()] == [b"2"]
    assert driver.fragment.deadline == START_MS + 1500


def test_whoever_peeks_sees_what_is_available_locked_and_leaving_but_not_durably_gone() -> None:
    driver = backlog(6)
    first, _ = lock(driver, 4)
    batch, done = driver.prepare(settlement(driver, COMPLETE, (first, 2)))
    assert len(batch.removed) == 1
    assert driver.peek() == names(0, 6)
    sought = Sought(MAIN, 0, 2, NEVER)
    browsing.look(driver.fragment, 0, sought, NEVER, driver.now_ms)
    assert sought.is_early
    driver.release(done)
    assert driver.peek() == names(2, 6)
    sought = Sought(MAIN, 0, 1, NEVER)
    browsing.look(driver.fragment, 0, sought, NEVER, driver.now_ms)
    assert not sought.is_early
    rows = driver.store.load(driver.source.source_key, 1, 10)
    sought = Sought(MAIN, 0, 10, NEVER)
    browsing.look_at_rows(driver.fragment, 0, sought, rows, driver.now_ms)
    assert [slot.payload for slot in sought.found] == names(2, 6)


def test_who_looks_at_few_messages_of_many_that_were_sees_those_without_slots() -> None:
    driver = backlog(40)
    first, _ = lock(driver, 40)
    driver.commit(settlement(driver, COMPLETE, (first + 1, 37)))
    assert driver.peek() == [b"0", b"38", b"39"]


def test_the_finder_knows_the_lock_of_each() -> None:
    driver = backlog(5)
    first, _ = lock(driver, 2)
    finder = stretches.Finder(driver.source)
    locks = [slot.lock for count in range(1, 6) if (slot := finder.find(count)) is not None]
    assert locks == [first, first + 1, 0, 0, 0]
    assert finder.find(0) is finder.find(6) is None


def test_the_finder_finds_the_next_message_across_a_hole() -> None:
    driver = backlog(10)
    first, _ = lock(driver, 10)
    driver.commit(settlement(driver, COMPLETE, (first, 2), (first + 4, 3)))
    finder = stretches.Finder(driver.source)
    assert [finder.next_count(count, 100) for count in (0, 1, 3, 4, 5, 7, 8, 10, 11)] == [3, 3, 3, 4, 8, 8, 8, 10, 100]
    assert finder.next_count(1, 2) == 2


# -- all together -----------------------------------------------------------------------------------------------


class FoldingMachine(FragmentMachine):
    """The model of a fragment, where what is available has no slots."""

    may_be_fewer = True

    def _sync(self) -> None:
        """Commit until nothing is due; what is available then loses its slots."""
        super()._sync()
        fold(self.driver.source)

    @precondition(lambda self: self.locks)
    @rule()
    def complete_everything(self) -> None:
        """Complete all locks, held or lost, in one range."""
        self._sync()
        first, last = min(self.locks.values()), max(self.locks.values())
        held = {name for name, message in self.messages.items() if message.locked_until_ms > 0}
        command = settlement(self.driver, COMPLETE, (first, last - first + 1))
        self.driver.commit(command)
        gone = {name for name in held if self.locks.get(name, -1) >= first}
        assert len(command.lost) == last - first + 1 - len(gone)
        for name in gone:
            del self.messages[name]
        self.locks.clear()

    @rule()
    def clear_everything(self) -> None:
        """Remove whatever nobody holds, as a purge does."""
        self._sync()
        every = ClearAvailable("handle", 0, None, sub_queue=0, limit=100, before_ms=NEVER, end=NEVER)
        self.driver.commit(every)
        rest = ClearCounts("handle", 0, None, counts=list(self.driver.source.by_count))
        self.driver.commit(rest)
        gone = {slot.payload for slot in every.slots + rest.slots}
        assert gone == {name for name, m in self.messages.items() if not m.locked_until_ms}
        for name in gone:
            del self.messages[name]

    @invariant()
    def who_peeks_sees_everything(self) -> None:
        """All messages of the main sub-queue that have life left are shown, in order of count."""
        driver = self.driver
        shown = [slot for _, slot in sorted(driver.slots().items()) if self._is_shown(slot)]
        assert driver.peek() == [slot.payload for slot in shown]

    def _is_shown(self, slot: Slot) -> bool:
        driver = self.driver
        is_alive = slot.state == 2 or not driver.fragment.lapsed(driver.source, slot, driver.now_ms)
        return sub_queue_of(slot.state) == MAIN and is_alive

    @invariant()
    def memory_is_counted(self) -> None:
        """What is resident is what there is, and each message is in one place."""
        source = self.driver.source
        assert source.resident_bytes == sum(slot.size for slot in self.driver.slots().values())
        counts = stretches.Finder(source).counts(0, NEVER)
        assert len(counts) == len(set(counts))
        assert not set(counts) & set(source.by_count)
        resting = source.sub_queues[MAIN].resting()
        assert source.sub_queues[MAIN].folded == sum(len(stretch) - 1 for stretch in resting)
        assert not source.leaving


FoldingMachine.TestCase.settings = FragmentMachine.TestCase.settings
TestAFragmentWithStretchesBehavesLikeItsModel = FoldingMachine.TestCase
