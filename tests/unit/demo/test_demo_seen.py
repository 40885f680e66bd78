"""The report of what clients saw counts what its words say."""

from __future__ import annotations

from duobus.testing.client_report import ClientReport
from kits.manual_clock import ManualClock


def sent(report: ClientReport, name: str, key: str | None = None) -> None:
    report.sending(name, key)
    report.accepted(name)


def test_a_day_without_faults_is_all_zeros_but_one() -> None:
    report = ClientReport(ManualClock())
    sent(report, "a")
    report.received("a", 1)
    assert report.summary() == {
        "succeeded": 1,
        "failed": {},
        "failed_keyless": {},
        "unknown": 0,
        "delayed": 0,
        "slowest_ms": 0,
        "slowest_keyless_ms": 0,
        "slowest_attempt_ms": 0,
        "doubled": 0,
        "again": 0,
        "reordered": 0,
        "lost": 0,
    }


def test_a_send_is_delayed_by_all_of_its_attempts_and_failures_have_names() -> None:
    clock = ManualClock()
    report = ClientReport(clock)
    report.sending("a")
    clock.advance(700)
    report.failed("a", "ServiceBusServerBusyError")
    report.sending("a")
    clock.advance(400)
    report.accepted("a")
    found = report.summary()
    assert (found["delayed"], found["slowest_ms"], found["unknown"]) == (1, 1_100, 0)
    assert found["failed"] == {"ServiceBusServerBusyError": 1}


def test_what_needed_no_particular_store_is_told_apart_and_so_is_one_attempt() -> None:
    clock = ManualClock()
    report = ClientReport(clock)
    report.sending("keyed", "k")
    clock.advance(300)
    report.failed("keyed", "ServiceBusServerBusyError")
    report.sending("keyed", "k")
    clock.advance(200)
    report.accepted("keyed")
    report.sending("keyless")
    clock.advance(100)
    report.accepted("keyless")
    found = report.summary()
    assert (found["slowest_ms"], found["slowest_keyless_ms"], found["slowest_attempt_ms"]) == (500, 100, 300)
    assert found["failed_keyless"] == {}
    report.sending("b")
    report.failed("b", "OperationTimeoutError")
    assert report.summary()["failed_keyless"] == {"OperationTimeoutError": 1}


def test_what_nobody_got_is_lost_and_what_has_no_outcome_is_unknown() -> None:
    report = ClientReport(ManualClock())
    sent(report, "a")
    report.sending("b")
    report.failed("b", "X")
    assert report.lost() == ["a"]
    assert report.summary()["unknown"] == 1


def test_a_message_that_is_stored_twice_is_doubled_and_one_that_comes_twice_is_not() -> None:
    report = ClientReport(ManualClock())
    sent(report, "a")
    sent(report, "b")
    report.received("a", 1)
    report.received("a", 1)
    report.received("b", 2)
    report.received("b", 3)
    found = report.summary()
    assert (found["doubled"], found["again"]) == (1, 1)


def test_order_counts_within_a_key_and_among_first_deliveries() -> None:
    report = ClientReport(ManualClock())
    for name in "abc":
        sent(report, name, "k")
    sent(report, "x", "other")
    report.received("b", 2)
    report.received("x", 9)
    report.received("a", 1)
    report.received("c", 3)
    report.received("b", 2)
    assert report.summary()["reordered"] == 1
    assert "1 reordered, 0 lost" in report.text()
