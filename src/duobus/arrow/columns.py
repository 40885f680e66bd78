"""The columns that a caller asks for, and the rows that a filter keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duobus.spark.errors import OptionError
from duobus.spark.rows import BATCH_ROWS, Rows
from duobus.spark.schema import NAMES, arrow_schema

#: The column that tells which message a row is of.
NUMBER: Final = "sequence_number"


class Columns:
    """Makes batches of the wanted columns, of messages that a filter keeps.

    Args:
        names: The columns; None for all of them.
        condition: An expression of pyarrow, or the conditions of ``pyarrow.parquet.read_table``; None keeps all
            messages.
        batch_rows: Rows of a batch at most.

    Attributes:
        schema: Names and types of the wanted columns.
        rows: Makes batches of messages, with all columns that the filter may need.

    Raises:
        OptionError: There is no such column, or the filter is none.
    """

    def __init__(self, names: Sequence[str] | None, condition: Any = None, batch_rows: int = BATCH_ROWS) -> None:
        wanted = list(NAMES if names is None else names)
        _check(wanted)
        self._condition = _expression(condition)
        # Which columns an expression names cannot be asked of the expression.
        made = wanted if self._condition is None else list(NAMES)
        if NUMBER not in made:
            made = [*made, NUMBER]
        self.schema = arrow_schema(wanted)
        self.rows = Rows(arrow_schema(made), batch_rows=batch_rows)
        if self._condition is not None:
            self._demand_fit(arrow_schema(made))

    def _demand_fit(self, schema: pa.Schema) -> None:
        try:
            self.kept(pa.RecordBatch.from_pylist([], schema=schema))
        except (pa.ArrowException, KeyError) as error:
            raise OptionError(f"The filter does not fit the columns: {str(error).splitlines()[0]}") from None

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that the filter keeps."""
        return batch if self._condition is None else batch.filter(self._condition)

    def wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted columns of a batch."""
        return batch.select(self.schema.names)


def _check(names: Iterable[str]) -> None:
    for name in names:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise OptionError(f"There is no column '{name}'.{hint} The columns are {', '.join(NAMES)}.")


def _expression(condition: Any) -> Any:
    if condition is None or isinstance(condition, pc.Expression):
        return condition
    try:
        return pq.filters_to_expression(condition)
    except (ValueError, TypeError, IndexError) as error:
        raise OptionError(
            "The filter has to be an expression of pyarrow, as pyarrow.compute.field('subject') == 'urgent', or a list "
            f"of conditions, as [('subject', '=', 'urgent')]: {error}"
        ) from None
