"""Scheduled messages of a transaction, as a fragment does it: numbers first, messages later or never."""

from __future__ import annotations

from typing import Any

from duobus.errors import QuotaExceeded, TransactionRolledBack
from duobus.fragment.message import SCHEDULED, SUB_QUEUES
from duobus.fragment.send import Reserve, ReservedRun
from duobus.model.batches import SendBatch
from duobus.model.metadata import MessageMetadata
from kits.fragment import START_MS, Box, Driver

LATER_MS = START_MS + 60_000


def reserved(driver: Driver, number: int) -> Reserve:
    command = Reserve("handle", 0, number, Box())
    driver.commit(command)
    assert command.error is None
    return command


def run_of(reserve: Reserve, *payloads: bytes, ids: list[bytes | None] | None = None) -> ReservedRun:
    batch = SendBatch(0, list(payloads), True, Box())
    batch.extra = {index: MessageMetadata(scheduled_ms=LATER_MS + index) for index in range(len(payloads))}
    batch.ids = ids
    return ReservedRun(reserve, batch)


def test_messages_come_under_the_numbers_that_were_told_before() -> None:
    driver = Driver()
    reserve = reserved(driver, 3)
    assert (reserve.first_count, driver.send(b"between")) == (1, [4])
    driver.commit(run_of(reserve, b"a", b"bb", b"ccc"))
    found = {count: (state, payload) for count, (state, _, payload, _) in driver.picture().items()}
    assert found == {
        1: (SCHEDULED, b"a"),
        2: (SCHEDULED, b"bb"),
        3: (SCHEDULED, b"ccc"),
        4: (0, b"between"),
    }
    assert driver.stored() == driver.picture()
    source = driver.source
    assert (source.numbers[0], source.numbers[SUB_QUEUES + 1], source.bytes) == (1, 3, 13)
    driver.now_ms = LATER_MS + 1
    driver.commit()
    driver.commit()
    assert [message.payload for _, message in driver.lock(9)] == [b"between", b"a", b"bb"]
    assert (source.numbers[0], source.numbers[SUB_QUEUES + 1]) == (3, 1)


def test_numbers_of_a_transaction_that_was_rolled_back_are_a_gap() -> None:
    driver = Driver()
    reserved(driver, 2)
    assert driver.send(b"a") == [3]
    assert driver.recovered().send(b"b") == [4]


def test_messages_whose_numbers_were_never_reserved_are_refused() -> None:
    driver = Driver()
    never = Reserve("handle", 0, 1, Box())
    assert isinstance(driver.error_of(run_of(never, b"a")), TransactionRolledBack)
    refused: Any = reserved(driver, 1)
    refused.error = QuotaExceeded("full")
    assert isinstance(driver.error_of(run_of(refused, b"a")), TransactionRolledBack)
    assert driver.picture() == {}


def test_the_size_quota_holds_for_them() -> None:
    driver = Driver(max_bytes=5)
    assert isinstance(driver.error_of(run_of(reserved(driver, 1), b"123456")), QuotaExceeded)
    assert driver.error_of(run_of(reserved(driver, 1), b"12345")) is None


def test_a_duplicate_among_them_is_dropped_and_its_number_names_nothing() -> None:
    driver = Driver(duplicate_window_ms=20_000)
    run = run_of(reserved(driver, 3), b"a", b"a", b"b", ids=[b"1", b"1", b"2"])
    driver.commit(run)
    assert run.dropped == [1]
    assert {count: payload for count, (_, _, payload, _) in driver.picture().items()} == {1: b"a", 3: b"b"}
    assert driver.stored() == driver.picture()
    # The ids are kept under a number of their own, which no message gets.
    (count,) = driver.send(b"c")
    assert count == 5
