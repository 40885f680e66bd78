"""Columns of Arrow batches as Python values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def columns_of(batch: pa.RecordBatch, names: Iterable[str]) -> dict[str, list[Any]]:
    """The values of some columns: times in microseconds since the epoch, maps as pairs."""
    import pyarrow as pa

    found: dict[str, list[Any]] = {}
    for name in names:
        column = batch.column(batch.schema.get_field_index(name))
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        found[name] = column.to_pylist()
    return found
