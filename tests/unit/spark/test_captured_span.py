"""Which folders of a capture a replay looks at, told from their names alone; without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from duobus.spark.jobs.captured_files import Span

FILE = "file:/data/orders/entity={}/date={}/hour={}/batch_id=aaaa-00000000/part-0.parquet"


def file(entity: str, date: str, hour: int) -> str:
    return FILE.format(entity, date, hour)


def test_without_a_span_every_file_may_hold_what_is_wanted() -> None:
    assert Span().may_hold(file("orders", "2026-11-20", 8))
    assert (Span().first, Span().last) == (None, None)


@pytest.mark.parametrize(
    ("date", "hour", "is_in"),
    [
        ("2026-11-19", 22, False),
        ("2026-11-19", 23, True),
        ("2026-11-20", 0, True),
        ("2026-11-20", 1, True),
        ("2026-11-20", 2, False),
        ("2026-11-21", 0, False),
    ],
)
def test_hours_before_the_first_time_and_from_the_last_one_on_are_left_out(date: str, hour: int, is_in: bool) -> None:
    span = Span(datetime(2026, 11, 19, 23, 30, tzinfo=UTC), datetime(2026, 11, 20, 2, tzinfo=UTC))
    assert span.may_hold(file("orders", date, hour)) is is_in


def test_times_of_another_zone_are_hours_of_utc() -> None:
    kolkata = timezone(timedelta(hours=5, minutes=30))
    span = Span(datetime(2026, 11, 20, 5, 30, tzinfo=kolkata), datetime(2026, 11, 20, 6, 30, tzinfo=kolkata))
    assert [hour for hour in range(24) if span.may_hold(file("orders", "2026-11-20", hour))] == [0]


def test_another_entity_is_left_out_however_its_name_is_escaped() -> None:
    span = Span(entity="prices/subscriptions/100%")
    # As the folder is named, with its percent signs escaped once more in the address.
    assert span.may_hold(file("prices%252Fsubscriptions%252F100%2525", "2026-11-20", 8))
    assert not span.may_hold(file("orders", "2026-11-20", 8))


def test_a_file_whose_folders_say_nothing_may_hold_everything() -> None:
    assert Span(datetime(2026, 11, 19, tzinfo=UTC)).may_hold("s3a://lake/orders/part-0.parquet")
