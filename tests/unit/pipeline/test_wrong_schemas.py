"""Wrong columns are told in one sentence, with the name that was meant: of the source, of the sink, of a table."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructType, TimestampType

from duobus.pipeline.execution.errors import schema_faults
from duobus.spark.errors import OptionError
from duobus.spark.rows import check_schema
from duobus.spark.sink.messages import check_columns

#: Of the source: column, type, and what the error begins with.
OF_SOURCE: list[tuple[str, DataType, str]] = [
    ("messageid", StringType(), "There is no column 'messageid'. Did you mean 'message_id'?"),
    ("Body", StringType(), "There is no column 'Body'. Did you mean 'body'?"),
    ("sequenceNumber", LongType(), "There is no column 'sequenceNumber'. Did you mean 'sequence_number'?"),
    ("enqueued_at", TimestampType(), "There is no column 'enqueued_at'. Did you mean 'enqueued_time'?"),
    ("subject", LongType(), "The column 'subject' is a string, not a bigint."),
]

#: Of the sink: columns with their types, whether an option names the entity, and the error.
OF_SINK = [
    (
        {"body": "string", "messageId": "string"},
        True,
        "The sink knows no column 'messageId'. Did you mean 'message_id'?",
    ),
    (
        {"body": "string", "sessionid": "string"},
        True,
        "The sink knows no column 'sessionid'. Did you mean 'session_id'?",
    ),
    (
        {"body": "string", "time_to_live": "bigint"},
        True,
        "The sink knows no column 'time_to_live'. Did you mean 'time_to_live_ms'?",
    ),
    ({"body": "double"}, True, "The column 'body' has to be binary or string, not double. Cast it."),
    ({"subject": "string"}, True, "The sink needs a column 'body', binary or string."),
    ({"body": "string"}, False, "Say where to: give one of the options queue and topic, or a column 'entity'."),
]

TABLE = [("customer", "string"), ("orders", "bigint"), ("amount", "double")]
#: Of a table: what a stage gives, and the faults.
OF_TABLE = [
    (
        [("customer", "string"), ("orders", "bigint"), ("amout", "double")],
        "The stage 'totals' gives a column 'amout', which the table 'totals' does not have. Did you mean 'amount'?",
    ),
    (
        [("customer", "string"), ("orders", "bigint"), ("Amount", "double")],
        "The stage 'totals' gives a column 'Amount', which the table 'totals' does not have. Did you mean 'amount'?",
    ),
    (
        [("customer", "string"), ("orders", "string"), ("amount", "double")],
        "The stage 'totals' gives the column 'orders' as string, and the table 'totals' has it as bigint: cast it.",
    ),
    (
        [("customer", "string"), ("orders", "bigint")],
        "The stage 'totals' gives no column 'amount', which the table 'totals' has.",
    ),
    (
        [*TABLE, ("when", "timestamp")],
        "The stage 'totals' gives a column 'when', which the table 'totals' does not have. The table has customer, "
        "orders, amount.",
    ),
]


@pytest.mark.parametrize(("name", "kind", "told"), OF_SOURCE)
def test_a_wrong_column_of_the_source_is_told_with_the_right_one(name: str, kind: DataType, told: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_schema(StructType().add(name, kind))
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(("types", "has_entity", "told"), OF_SINK)
def test_a_wrong_column_of_the_sink_is_told_with_the_right_one(
    types: dict[str, str], has_entity: bool, told: str
) -> None:
    with pytest.raises(ValueError, match=r"^The |^Say ") as refused:
        check_columns(types, has_entity=has_entity)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(("given", "told"), OF_TABLE)
def test_wrong_columns_for_a_table_are_told_in_one_sentence(given: list[tuple[str, str]], told: str) -> None:
    assert schema_faults(given, TABLE, who="totals", table="totals") == [told]


def test_the_columns_of_a_table_may_come_in_any_order() -> None:
    assert schema_faults(reversed(TABLE), TABLE, who="totals", table="totals") == []
