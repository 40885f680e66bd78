"""The columns that ``read_queue`` gives: Spark's own, and told in words where they are none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from duobus.arrow.columns import Columns
from duobus.spark.errors import OptionError
from duobus.spark.schema import COLUMNS, arrow_schema


def test_the_arrow_types_are_those_that_spark_has_for_its_own_types() -> None:
    struct = StructType()
    from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, TimestampType

    kinds = {
        "binary": BinaryType(),
        "string": StringType(),
        "bigint": LongType(),
        "int": IntegerType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    for name, kind in COLUMNS:
        struct.add(name, kinds[kind])
    assert [kind.simpleString() for kind in kinds.values()] == list(kinds)
    assert arrow_schema().equals(to_arrow_schema(struct, timezone="UTC"), check_metadata=True)


def test_a_column_that_there_is_not_is_told_with_the_nearest_one() -> None:
    with pytest.raises(OptionError, match=r"no column 'mesage_id'\. Did you mean 'message_id'"):
        Columns(["mesage_id"])


@pytest.mark.parametrize("condition", ["subject = 'x'", [("subject",)], pc.field("nothing") == 1])
def test_what_is_no_filter_of_these_columns_is_told(condition: Any) -> None:
    with pytest.raises(OptionError, match="The filter"):
        Columns(None, condition)


def test_a_filter_may_name_columns_that_are_not_asked_for() -> None:
    columns = Columns(["message_id"], [("subject", "=", "urgent")])
    made = pa.RecordBatch.from_pylist(
        [{"message_id": "1", "subject": "urgent"}, {"message_id": "2", "subject": "idle"}], schema=arrow_schema()
    )
    assert columns.wanted(columns.kept(made)).to_pylist() == [{"message_id": "1"}]
