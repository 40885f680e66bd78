"""What a read asks the broker for: the columns and the filters of the query, and no more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThan, LessThan, LessThanOrEqual
from pyspark.sql.types import StructType

from duobus.spark.offsets import COUNT_BITS, COUNT_MASK
from duobus.spark.peek_decoder import APPLICATION, HEADER, PROPERTIES
from duobus.spark.source.partition_reader import wish_of
from duobus.spark.source.peek_pages import Wish
from duobus.spark.source.range_reader import BrowseReader, PushingReader, WillingReader, batch_reader
from duobus.spark.source.settings import reading_of, source_options

DUOBUS = "Endpoint=sb://bus.example;SharedAccessKeyName=n;SharedAccessKey=a2V5"
AZURE = "Endpoint=sb://x.servicebus.windows.net;SharedAccessKeyName=n;SharedAccessKey=a2V5"
NO_SECTION: frozenset[int] = frozenset()
ALL = StructType().add("body", "binary").add("sequence_number", "long")


def options(at: str = DUOBUS, **more: str) -> dict[str, str]:
    return {"connectionString": at, "queue": "orders", **more}


def reader(**more: str) -> Any:
    return batch_reader(options(**more), ALL)


@pytest.mark.parametrize(
    ("at", "more", "columns", "wish"),
    [
        (DUOBUS, {}, "body", Wish(True, NO_SECTION)),
        (DUOBUS, {}, "body_type", Wish(True, NO_SECTION)),
        (DUOBUS, {}, "message_id", Wish(False, frozenset({PROPERTIES}))),
        (DUOBUS, {"includeBody": "false"}, "body", Wish(False, NO_SECTION)),
        (DUOBUS, {"includeBody": "false"}, "body_type", Wish(True, NO_SECTION)),
        (DUOBUS, {}, "dead_letter_reason", Wish(False, frozenset({APPLICATION}))),
        (DUOBUS, {}, "application_property_types", Wish(False, frozenset({APPLICATION}))),
        (AZURE, {}, "delivery_count", Wish(True, frozenset({HEADER}))),
    ],
)
def test_a_read_wishes_for_what_its_columns_are_made_of(
    at: str, more: dict[str, str], columns: str, wish: Wish
) -> None:
    schema = StructType().add(columns, "string")
    assert wish_of(reading_of(source_options(options(at, **more), "browse"), schema)) == wish


def test_filters_are_offered_to_duobus_and_demanded_or_refused_when_the_option_says_so() -> None:
    assert type(reader()) is WillingReader
    assert type(reader(at=AZURE)) is BrowseReader
    assert type(reader(at=AZURE, filterPushdown="true")) is PushingReader
    assert type(reader(filterPushdown="true")) is PushingReader
    assert type(reader(filterPushdown="false")) is BrowseReader


def test_a_reader_that_only_offers_is_none_that_spark_refuses_while_its_setting_is_off() -> None:
    """As ``plan_data_source_read`` of Spark asks."""
    own = DataSourceReader.pushFilters
    assert getattr(reader().pushFilters, "__func__", None) is own
    assert getattr(reader(filterPushdown="true").pushFilters, "__func__", None) is not own


@pytest.mark.parametrize("more", [{}, {"filterPushdown": "true"}])
def test_filters_narrow_what_is_read_and_spark_applies_them_again(more: dict[str, str]) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ms = int(at.timestamp() * 1000)
    made = reader(**more)
    filters = [
        GreaterThan(("enqueued_time",), at),
        LessThan(("enqueued_time",), at.replace(day=2)),
        LessThanOrEqual(("enqueued_time",), at.replace(day=3)),
        EqualTo(("fragment",), 2),
        LessThanOrEqual(("sequence_number",), (2 << COUNT_BITS) + 5),
        EqualTo(("session_id",), "s"),
        EqualTo(("partition_key",), "k"),
        EqualTo(("subject",), "other"),
        LessThan(("session_id",), "z"),
    ]
    assert list(made.pushFilters(filters)) == filters
    assert (made._since_ms, made._until_ms) == (ms, ms + 86_400_000 + 1)
    assert (made._least, made._most) == (2 << COUNT_BITS, (2 << COUNT_BITS) + 5)
    assert (made._session, made._key) == ("s", "k")
    assert COUNT_MASK > 5
