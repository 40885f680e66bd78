"""Files that ``message export`` writes, whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from duobus.cli.output import json_of
from duobus.file_sync import whole_file

if TYPE_CHECKING:
    from duobus.spark.rows import Source

#: The column of a file of Parquet that has the form of the message, beside the columns of the Spark source.
MESSAGE: str = "message"

Page = list[tuple[dict[str, Any], Any]]


class Writer(Protocol):
    """Takes pages of messages, each as its record and as the message of the SDK."""

    def write(self, page: Page) -> None:
        """Write a page."""

    def close(self) -> None:
        """The file is complete."""


class JsonLines:
    """One JSON object a line, as ``duobus dlq export`` writes them.

    Args:
        file: Where the lines go.
        address: The entity of the messages.
    """

    def __init__(self, file: IO[bytes], address: str) -> None:
        self._file = file
        self._address = address

    def write(self, page: Page) -> None:
        """See Writer."""
        for record, _ in page:
            self._file.write(json_of({"entity": self._address, **record}).encode() + b"\n")

    def close(self) -> None:
        """See Writer."""
        self._file.flush()


class Parquet:
    """The columns of the Spark source, and one with the form of the message.

    Args:
        file: Where the bytes go.
        source: Values that all messages have in common.
    """

    def __init__(self, file: IO[bytes], source: Source) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from duobus.spark.rows import Rows
        from duobus.spark.schema import arrow_schema

        self._schema = arrow_schema().append(pa.field(MESSAGE, pa.string()))
        self._rows = Rows(arrow_schema())
        self._source = source
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, page: Page) -> None:
        """See Writer."""
        import pyarrow as pa

        at = 0
        for batch in self._rows.batches(self._source, (message for _, message in page)):
            forms = [_without_data(record["message"]) for record, _ in page[at : at + batch.num_rows]]
            at += batch.num_rows
            self._writer.write_batch(
                pa.RecordBatch.from_arrays([*batch.columns, pa.array(forms, pa.string())], schema=self._schema)
            )

    def close(self) -> None:
        """See Writer."""
        self._writer.close()


def _without_data(form: dict[str, Any]) -> str:
    """A form as text; one section of data is the column ``body`` and need not be there twice."""
    if len(form.get("body", {}).get("data", ())) == 1:
        form = {name: value for name, value in form.items() if name != "body"}
    return json.dumps(form, ensure_ascii=False)


@contextmanager
def output_of(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is complete and durable; None: standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with whole_file(path) as file:
        yield file
