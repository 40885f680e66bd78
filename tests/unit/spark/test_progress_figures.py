"""What a stream tells of itself, and the metrics that are made of the events of Spark."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import generate_latest

from duobus.spark.options import CONNECTION_OPTIONS, SOURCE_OPTIONS, parse
from duobus.spark.progress.exports import registry_of
from duobus.spark.progress.figures import Figure, Totals, figures_of, line_of
from duobus.spark.source.backlog import AFTER_FAILURE_MS, EVERY_MS, Backlog
from duobus.spark.source.status import Status, description_of, status_in

STATUS = Status("duobus[queue=orders, mode=claim]", 30, 30, 1_500, 50, 90, 0, 50)


def progress_of(batch: int, rows: int, status: Status | None = STATUS, **more: Any) -> dict[str, Any]:
    """An event as Spark sends it."""
    latest = None if status is None else status.to_json()
    return {
        "id": "1234",
        "name": "relay",
        "timestamp": "2026-11-27T09:48:32.221Z",
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 5.7,
        "durationMs": {"triggerExecution": 8711},
        "sources": [{"description": "org.apache...@5f", "latestOffset": latest, "numInputRows": rows}],
        "sink": {"description": "org.apache...@27", "numOutputRows": rows},
        **more,
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "orders", "readMode": "claim"}, "duobus[queue=orders, mode=claim]"),
        (
            {"topic": "prices", "subscription": "audit", "subQueue": "deadletter", "readMode": "browse"},
            "duobus[topic=prices, subscription=audit, subQueue=deadletter, mode=browse]",
        ),
        ({"queues": "a,b,c,d,e", "readMode": "claim"}, "duobus[queues=a+b+c+2 more, mode=claim]"),
        ({"queuesPattern": "*", "readMode": "claim"}, "duobus[queuesPattern=*, mode=claim]"),
    ],
)
def test_a_description_says_what_is_read_and_how(given: dict[str, str], told: str) -> None:
    assert description_of(parse(given, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))) == told


def test_a_status_comes_back_out_of_its_json_and_offsets_of_other_sources_are_none() -> None:
    assert status_in(STATUS.to_json()) == STATUS
    assert status_in('{"source": "duobus[queue=q, mode=browse]", "behindLatest": 0}') == Status(
        "duobus[queue=q, mode=browse]", behind=0
    )
    for other in (None, "", "7", '{"topic": {"0": 5}}', {"topic": {"0": 5}}, {"source": "rate"}, 'not "json'):
        assert status_in(other) is None


def test_an_event_becomes_figures_with_the_counts_of_the_sink() -> None:
    report = {"rows": 50, "messages": 48, "bytes": 900, "repeated": 3}
    found = {figure.name: figure for figure in figures_of(progress_of(3, 50), report)}
    assert found["duobus_spark_waiting_messages"] == (
        "duobus_spark_waiting_messages",
        ("relay", "duobus[queue=orders, mode=claim]"),
        30,
    )
    values = {name.removeprefix("duobus_spark_"): figure.value for name, figure in found.items()}
    assert values == {
        "progress_time_seconds": 1_795_772_912.221,
        "batch": 3,
        "batch_seconds": 8.711,
        "rows_per_second": 5.7,
        "rows": 50,
        "waiting_messages": 30,
        "behind_latest": 30,
        "oldest_age_seconds": 1.5,
        "claimed_messages": 50,
        "claimed_bytes": 90,
        "deferred_messages": 0,
        "locks_held": 50,
        "sent_rows": 50,
        "sent_messages": 48,
        "sent_bytes": 900,
        "repeated_messages": 3,
    }


def test_a_query_without_our_source_and_without_a_count_of_its_sink_has_the_common_figures_only() -> None:
    event = progress_of(0, 5, None, name=None, sink={"numOutputRows": -1})
    assert {figure.name.removeprefix("duobus_spark_") for figure in figures_of(event)} == {
        "progress_time_seconds",
        "batch",
        "batch_seconds",
        "rows_per_second",
    }
    assert {figure.labels for figure in figures_of(event)} == {("1234",)}


def test_counters_add_up_gauges_are_replaced_and_gauges_of_a_query_end_with_the_query() -> None:
    totals = Totals()
    totals.add(figures_of(progress_of(0, 50)))
    totals.add(figures_of(progress_of(1, 30)))
    totals.add([Figure("duobus_spark_batch", ("other",), 7)])
    found = {(figure.name, figure.labels[0]): figure.value for figure in totals.all()}
    assert found["duobus_spark_rows", "relay"] == 80
    assert found["duobus_spark_batch", "relay"] == 1
    totals.forget("relay")
    left = {(figure.name, figure.labels[0]) for figure in totals.all()}
    assert left == {
        ("duobus_spark_rows", "relay"),
        ("duobus_spark_sent_rows", "relay"),
        ("duobus_spark_batch", "other"),
    }


def test_the_page_has_the_metrics_that_have_a_value_with_their_labels() -> None:
    totals = Totals()
    assert generate_latest(registry_of(totals.all)) == b""
    totals.add(figures_of(progress_of(0, 50)))
    page = generate_latest(registry_of(totals.all)).decode()
    assert 'duobus_spark_rows_total{query="relay",source="duobus[queue=orders, mode=claim]"} 50.0' in page
    assert "duobus_spark_sent_messages" not in page


def test_a_line_of_the_log_has_the_query_its_batch_and_the_figures_of_its_source() -> None:
    assert line_of(progress_of(3, 50)) == (
        "query=relay batch=3 rows=50 rows_per_second=5.7 seconds=8.711 source=duobus[queue=orders, mode=claim] "
        "waitingMessages=30 behindLatest=30 oldestAgeMs=1500 claimedMessages=50 claimedBytes=90 deferredMessages=0 "
        "locksHeld=50"
    )


class StandingClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at_ms = 0

    def monotonic_ms(self) -> int:
        return self.at_ms


def test_a_broker_is_asked_once_a_second_and_a_minute_after_it_has_refused() -> None:
    clock, answers, asked = StandingClock(), [5, 4, RuntimeError("no"), 3], []

    def ask(entity: str) -> int:
        asked.append(entity)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    backlog = Backlog(ask, clock, wait_s=10)  # type: ignore[arg-type]
    assert [backlog.newest("q"), backlog.newest("q")] == [5, 5]
    clock.at_ms += EVERY_MS
    assert backlog.newest("q") == 4
    clock.at_ms += EVERY_MS
    assert backlog.newest("q") is None
    clock.at_ms += AFTER_FAILURE_MS - 1
    assert backlog.newest("q") is None
    assert len(asked) == 3
    clock.at_ms += 1
    assert backlog.newest("q") == 3


def test_an_answer_that_is_slow_to_come_holds_nothing_up_and_is_told_later() -> None:
    may_answer, clock = threading.Event(), StandingClock()

    def ask() -> int:
        assert may_answer.wait(10)
        return 9

    backlog = Backlog(ask, clock, wait_s=0)  # type: ignore[arg-type]
    assert backlog.newest() is None
    clock.at_ms += EVERY_MS
    # One question at a time.
    assert backlog.newest() is None
    assert backlog._thread is not None
    may_answer.set()
    backlog._thread.join(10)
    assert backlog.newest() == 9
