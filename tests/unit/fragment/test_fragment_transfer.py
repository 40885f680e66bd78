"""Forwarding as a fragment does it.

Taking, giving back, leaving, diverting, and what a record of accepted numbers remembers.
"""

from __future__ import annotations

from typing import Any

from duobus.codec import decode
from duobus.errors import InternalError
from duobus.fragment import forward_dedup, transfer
from duobus.fragment.forward_dedup import ForgetForwarded, RecordForwarded
from duobus.fragment.message import (
    DEAD_LETTER,
    FORWARDING,
    MAIN,
    NEVER,
    TAKEN,
    TRANSFER,
    TRANSFER_DEAD_LETTER,
    QueuedMessage,
)
from duobus.fragment.peek import PeekProgress, peek
from duobus.fragment.send import Run
from duobus.fragment.settlement import DEAD_LETTER_OUTCOME, DEFER
from duobus.fragment.source import SourceSettings
from duobus.fragment.transfer import DeadLetterTransfer, RemoveTransferred
from duobus.model.batches import SendBatch
from duobus.model.metadata import MessageMetadata, TransferRoute
from kits.fragment import NUMBER, START_MS, Box, Driver

ORIGIN = (77, 5, 0)


def take(driver: Driver, limit: int = 100, size: int = 1 << 20, sub_queue: int = MAIN) -> list[QueuedMessage]:
    return transfer.take(driver.source, sub_queue, limit, size)


def arrival(driver: Driver, *payloads: bytes, counts: list[int], origin: tuple[int, int, int] = ORIGIN) -> list[Any]:
    """What takes messages in from another store."""
    run = Run("handle", 0, SendBatch(0, list(payloads), False, Box()), None, None)
    return [RecordForwarded("handle", 0, origin=origin, counts=counts, run=run), run]


def test_what_was_taken_is_nobodys_and_comes_back_to_its_place() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    messages = take(driver, 2)
    assert ([message.payload for message in messages], {message.lock for message in messages}) == (
        [b"a", b"b"],
        {FORWARDING},
    )
    assert [message.payload for _, message in driver.lock(3)] == [b"c"]
    transfer.give_back(driver.fragment, driver.source, messages, driver.now_ms)
    assert [message.payload for _, message in driver.lock(3)] == [b"a", b"b"]


def test_taking_ends_with_the_bytes_that_are_asked_for_but_not_before_one_message() -> None:
    driver = Driver()
    driver.send(b"a" * 10, b"b" * 10, b"c" * 10)
    assert len(take(driver, size=11)) == 2
    assert len(take(driver, size=1)) == 1
    assert take(driver) == []


def test_what_departs_is_gone_with_its_commit_and_not_before() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    messages = take(driver)
    _, done = driver.prepare(RemoveTransferred("handle", 0, None, messages))
    assert (driver.source.numbers[MAIN], driver.source.bytes, len(driver.source.by_count)) == (0, 0, 2)
    driver.release(done)
    assert (driver.picture(), driver.stored(), driver.source.memory_bytes) == ({}, {}, 0)


def test_only_what_was_taken_can_depart() -> None:
    driver = Driver()
    driver.send(b"a")
    ((_, held),) = driver.lock()
    assert isinstance(driver.error_of(RemoveTransferred("handle", 0, None, [held])), InternalError)
    stranger = QueuedMessage(1, b"a", START_MS)
    stranger.lock = FORWARDING
    assert isinstance(driver.error_of(RemoveTransferred("handle", 0, None, [stranger])), InternalError)


def test_a_crash_before_it_departs_finds_a_message_where_it_was_and_undelivered() -> None:
    driver = Driver()
    driver.send(b"a")
    take(driver)
    driver.commit()
    again = driver.recovered()
    ((_, message),) = again.lock()
    assert (message.payload, message.deliveries) == (b"a", 0)


def test_a_message_that_ran_out_of_life_on_its_way_expires_when_it_comes_back() -> None:
    driver = Driver(dead_letter_on_expiration=True)
    driver.send(b"a", ttl_ms=1_000)
    messages = take(driver)
    driver.pass_time(2_000)
    assert driver.source.numbers[DEAD_LETTER] == 0
    driver.commit(*transfer.give_back(driver.fragment, driver.source, messages, driver.now_ms))
    assert driver.source.numbers[:2] == [0, 1]


def test_what_cannot_go_on_is_found_in_the_transfer_dead_letter_queue_also_after_a_crash() -> None:
    driver = Driver()
    driver.send(b"a")
    driver.commit(DeadLetterTransfer("handle", 0, None, take(driver), reason="r", description="d" * 5_000))
    for _ in range(2):
        ((_, message),) = driver.lock(5, TRANSFER_DEAD_LETTER)
        assert message.metadata is not None
        assert (message.metadata.reason, len(message.metadata.description or "")) == ("r", 4096)
        assert driver.source.numbers == [0, 0, 1, 0, 0]
        driver = driver.recovered()


def test_messages_sent_via_a_queue_wait_apart_from_its_own_and_survive_a_crash() -> None:
    driver = Driver(requires_session=True)
    driver.commit(
        driver.run(b"a", b"b", route=TransferRoute(to="Other")), driver.run(b"c", route=TransferRoute(to="third"))
    )
    for _ in range(2):
        source = driver.source
        assert (source.numbers, source.transferring, source.bytes) == ([0] * 5, 3, 3)
        assert (driver.peek(), driver.peek(TRANSFER_DEAD_LETTER)) == ([], [])
        assert set(source.transfers) == {"other", "third"}
        assert (0, TRANSFER) in driver.fragment.fresh
        driver = driver.recovered()
    messages = transfer.take_transfers(driver.source, "other", 1, 100)
    messages += transfer.take_transfers(driver.source, "other", 5, 100)
    assert [message.payload for message in messages] == [b"a", b"b"]
    assert transfer.take_transfers(driver.source, "other", 5, 100) == []
    transfer.give_back(driver.fragment, driver.source, messages[:1], driver.now_ms)
    driver.commit(DeadLetterTransfer("handle", 0, None, messages[1:], reason="r", description="d"))
    assert (driver.source.transferring, driver.source.numbers[TRANSFER_DEAD_LETTER]) == (2, 1)
    driver.commit(RemoveTransferred("handle", 0, None, transfer.take_transfers(driver.source, "other", 5, 100)))
    assert (driver.source.transferring, set(driver.source.transfers)) == (1, {"third"})


def test_of_what_was_sent_via_a_queue_no_more_is_taken_than_was_asked_for() -> None:
    driver = Driver()
    driver.commit(driver.run(*[b"0123456789"] * 4, route=TransferRoute(to="other")))
    assert len(transfer.take_transfers(driver.source, "other", 9, 11)) == 2
    assert len(transfer.take_transfers(driver.source, "other", 1, 100)) == 1
    assert len(transfer.take_transfers(driver.source, "other", 9, 1)) == 1
    assert transfer.take_transfers(driver.source, "other", 9, 100) == []


def test_a_repeat_is_taken_over_once_also_after_a_crash() -> None:
    driver = Driver()
    driver.commit(*arrival(driver, b"a", b"b", counts=[3, 4]))
    for life in range(2):
        driver.commit(*arrival(driver, b"b", b"c%d" % life, counts=[4, 5 + life]))
        driver.commit(*arrival(driver, b"b", counts=[4]))
        driver.commit(*arrival(driver, b"d%d" % life, counts=[4], origin=(77, 6 + life, 0)))
        driver = driver.recovered()
    assert driver.peek() == [b"a", b"b", b"c0", b"d0", b"c1", b"d1"]


def test_the_forward_dedup_forgets_what_it_is_told_and_its_rows_go_with_their_last_entry() -> None:
    driver = Driver()
    driver.commit(*arrival(driver, b"a", b"b", counts=[3, 4]))
    row = driver.source.next_count - 3
    driver.commit(ForgetForwarded("handle", 0, None, origin=ORIGIN, counts=[3]))
    assert driver.source.dedup.known == {ORIGIN: {4: row}}
    driver.commit(ForgetForwarded("handle", 0, None, origin=ORIGIN, counts=[3, 4, 5]))
    assert (driver.source.dedup.known, driver.source.dedup.rows) == ({}, {})
    assert sorted(driver.stored()) == [row + 1, row + 2]
    assert driver.recovered().source.dedup.known == {}


def test_the_rows_of_the_forward_dedup_are_no_messages() -> None:
    driver = Driver()
    driver.commit(*arrival(driver, b"a", counts=[3]))
    again = driver.recovered()
    assert (again.source.numbers, again.source.bytes, again.source.missing) == ([1, 0, 0, 0, 0], 1, 0)
    assert again.peek() == [b"a"]


def test_what_was_sent_via_a_queue_is_scheduled_and_lives_at_its_destination() -> None:
    message = QueuedMessage(9, b"m", START_MS)
    message.state = TRANSFER
    message.metadata = MessageMetadata(ttl_ms=5, route=TransferRoute(1, "x", 77), partition_key="k")
    found = transfer.onward(message, NUMBER, "via", 1)
    assert (found.ttl_ms, found.scheduled_ms, found.partition_key, found.route) == (5, 77, "k", TransferRoute(2))
    assert found.enqueued_sequence_number == NUMBER << 48 | 9


def test_a_dead_letter_that_cannot_go_on_keeps_both_reasons() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.settle(3, lock, reason="first", description="why")
    driver.commit(
        DeadLetterTransfer("handle", 0, None, take(driver, sub_queue=DEAD_LETTER), reason="second", description="d")
    )
    ((_, message),) = driver.lock(1, TRANSFER_DEAD_LETTER)
    assert message.metadata is not None
    assert message.metadata.overlay is not None
    assert decode(message.metadata.overlay)[0] == {"DeadLetterReason": "first", "DeadLetterErrorDescription": "why"}
    assert message.metadata.reason == "second"


def test_taking_ends_with_the_last_byte_that_is_asked_for() -> None:
    driver = Driver()
    driver.send(b"a" * 10, b"b" * 10)
    assert len(take(driver, size=10)) == 1


def test_what_is_known_to_be_elsewhere_is_so_until_it_has_left() -> None:
    driver = Driver(forwards=True)
    driver.send(b"a", b"b", b"c")
    driver.source.elsewhere = {1, 3}
    driver.commit(RemoveTransferred("handle", 0, None, take(driver, 2)))
    assert driver.source.elsewhere == {3}


def test_a_message_keeps_the_time_for_which_it_was_scheduled_when_it_goes_on() -> None:
    message = QueuedMessage(1, b"a", START_MS)
    message.metadata = MessageMetadata(scheduled_ms=START_MS - 5)
    assert transfer.onward(message, NUMBER, "q", None).scheduled_ms == START_MS - 5


def test_what_could_not_go_on_can_be_deferred_where_it_lies() -> None:
    driver = Driver(default_ttl_ms=1_000)
    driver.send(b"a")
    driver.commit(DeadLetterTransfer("handle", 0, None, take(driver), reason="r", description="d"))
    ((lock, _),) = driver.lock(1, TRANSFER_DEAD_LETTER)
    driver.settle(DEFER, lock)
    driver.now_ms += 5_000
    _, (message,), _ = driver.fragment.lock_deferred(0, TRANSFER_DEAD_LETTER, [1], driver.now_ms)
    assert message.payload == b"a"


# --- what may be at its destination already ---------------------------------------------------------------------------


def in_doubt(**settings: Any) -> Driver:
    """A new life of a queue that forwards; four messages of the earlier one may have been sent on."""
    driver = Driver(forwards=True, default_ttl_ms=1_000, **settings)
    driver.send(b"a", b"b", b"c", b"d")
    driver = driver.recovered()
    assert driver.source.in_doubt_below == 5
    return driver


def test_what_is_not_at_its_destination_expires_when_that_is_known() -> None:
    driver = in_doubt()
    driver.send(b"new")
    driver.pass_time(5_000)
    assert driver.picture().keys() == {1, 2, 3, 4, 5}
    taken = take(driver, 1)
    forward_dedup.settle_in_doubt(driver.fragment, driver.source, [2, 5, 9])
    assert (driver.source.in_doubt_below, driver.source.elsewhere) == (0, {2})
    driver.pass_time(0)
    # The first is on its way, the second is there.
    assert driver.picture().keys() >= {1, 2}
    assert not {3, 4}.intersection(driver.picture())
    assert driver.stored().keys() == driver.picture().keys()
    driver.commit(*transfer.give_back(driver.fragment, driver.source, taken, driver.now_ms))
    assert driver.picture().keys() & {1, 2} == {2}


def test_what_has_no_end_of_its_own_leaves_in_its_order_after_a_doubt() -> None:
    driver = in_doubt()
    forward_dedup.settle_in_doubt(driver.fragment, driver.source, [])
    driver.pass_time(999)
    assert driver.waiting() == 4
    driver.pass_time(1)
    assert driver.picture() == {}


def test_a_dead_letter_does_not_expire_whatever_was_in_doubt() -> None:
    driver = Driver(forwards=True, default_ttl_ms=1_000)
    driver.send(b"a", b"b")
    ((lock, _),) = driver.lock(1)
    driver.settle(DEAD_LETTER_OUTCOME, lock)
    driver = driver.recovered()
    forward_dedup.settle_in_doubt(driver.fragment, driver.source, [])
    driver.pass_time(5_000)
    assert [message.payload for _, message in driver.lock(9, DEAD_LETTER)] == [b"a"]
    assert driver.picture().keys() == driver.stored().keys() == {1}


def test_a_queue_that_forwards_no_more_is_in_doubt_of_nothing() -> None:
    driver = in_doubt()
    driver.fragment.set_settings(SourceSettings(forwards=False, default_ttl_ms=1_000))
    assert (driver.source.in_doubt_below, driver.source.elsewhere) == (0, set())
    driver.pass_time(1_000)
    assert driver.picture() == {}


def test_of_sessions_no_more_is_taken_than_was_asked_for() -> None:
    driver = Driver(requires_session=True)
    for name in "abab":
        driver.send(b"0123456789", session_id=name)
    assert [message.count for message in take(driver, limit=1)] == [1]
    assert [message.count for message in take(driver, size=20)] == [2, 3]
    assert [message.count for message in take(driver)] == [4]


def test_a_message_on_its_way_into_the_transfer_dead_letter_queue_is_shown_when_it_is_there() -> None:
    driver = Driver()
    driver.send(b"a")
    command = DeadLetterTransfer("handle", 0, None, take(driver), reason="r", description="d")
    _, done = driver.prepare(command)
    sought = PeekProgress(TRANSFER_DEAD_LETTER, 0, 10, NEVER)
    peek(driver.fragment, 0, sought, NEVER, driver.now_ms)
    assert ([message.payload for message in sought.found], sought.is_early) == ([b"a"], True)
    driver.release(done)
    sought = PeekProgress(TRANSFER_DEAD_LETTER, 0, 10, NEVER)
    peek(driver.fragment, 0, sought, NEVER, driver.now_ms)
    assert ([message.payload for message in sought.found], sought.is_early) == ([b"a"], False)


def test_only_messages_of_the_named_sub_queue_are_taken_by_number() -> None:
    driver = Driver()
    driver.send(b"active", b"dead", b"held")
    (_, (lock, _), _) = driver.lock(3)
    driver.settle(DEAD_LETTER_OUTCOME, lock)
    driver.fragment.unlock(0, [(lock - 1, 1)], driver.now_ms, counted=False)
    assert [message.payload for message in transfer.take_counts(driver.source, DEAD_LETTER, [1, 2, 3, 4])] == [b"dead"]
    assert [message.payload for message in transfer.take_counts(driver.source, MAIN, [1, 2, 3, 4])] == [b"active"]


def test_only_what_was_taken_over_is_known_and_of_its_own_origin() -> None:
    driver = Driver()
    driver.commit(*arrival(driver, b"a", counts=[3]))
    known = driver.source.dedup
    assert known.has(ORIGIN, 3)
    assert not known.has(ORIGIN, 4)
    assert not known.has((77, 6, 0), 3)


def test_a_row_that_tells_what_was_taken_over_is_written_as_such() -> None:
    driver = Driver()
    batch = driver.commit(*arrival(driver, b"a", counts=[3]))
    assert batch.puts[0].all_metadata == {0: (TAKEN, 0, None)}
