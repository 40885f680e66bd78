"""Rows that are larger than their entity takes: refused, written to files, or sent as a stub that names the file.

Nothing is ever cut off. The name of a file is made of the row's place in the write, so that a task that is tried again
replaces its own file.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from azure.servicebus.amqp import AmqpAnnotatedMessage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Properties of a stub: where the body is, its bytes, its SHA-256, and what kind of body it is.
CLAIM_CHECK: Final = "x-duobus-claim-check"
CLAIM_BYTES: Final = "x-duobus-claim-check-bytes"
CLAIM_DIGEST: Final = "x-duobus-claim-check-sha256"
CLAIM_TYPE: Final = "x-duobus-claim-check-type"

#: Columns beside those of the row, of what is written aside.
ROW_ID: Final = "oversize_id"
ROW_BYTES: Final = "oversize_bytes"
ROW_LIMIT: Final = "oversize_limit"


class OnOversize(Enum):
    """The value of the option ``onOversize``."""

    FAIL = "fail"
    DIVERT = "divert"
    CLAIM_CHECK = "claimCheck"


class TooLarge(ValueError):
    """A row that its entity would refuse; the text has the row's id, its size and the limit."""

    def __init__(self, row_id: str, size: int, limit: int, entity: str) -> None:
        super().__init__(
            f"The row {row_id} makes a message of {size:,} bytes; {entity!r} takes {limit:,}. Nothing of it was sent. "
            "Set onOversize to divert (such rows go to Parquet at oversizePath) or to claimCheck (their bodies go "
            "there, and a stub is sent)."
        )


def opened(path: str) -> tuple[Any, str]:
    """The file system of a path or URI, and the path in it."""
    from pyarrow import fs

    if "://" in path or path.startswith("file:"):
        system, inner = fs.FileSystem.from_uri(path)
        return system, str(inner).rstrip("/")
    return fs.LocalFileSystem(), str(Path(path).absolute())


class Aside:
    """The Parquet file of a task for rows that are too large; made for the first such row.

    Args:
        path: Folder, as a path or URI that all executors reach.
        place: The place of the task's rows in the write.
        attempt: Number of the task's attempt, so that two attempts at the same time do not write to one file.
    """

    def __init__(self, path: str, place: str, attempt: int) -> None:
        self._path = path
        self._name = place.replace("/", "_")
        self._attempt = attempt
        self._writer: pq.ParquetWriter | None = None
        self._system: Any = None
        self._part = self._final = ""
        #: Rows written.
        self.rows = 0

    def put(self, batch: pa.RecordBatch, index: int, row_id: str, size: int, limit: int) -> None:
        """Write a row of a batch to the file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = batch.slice(index, 1)
        extra = {ROW_ID: pa.array([row_id]), ROW_BYTES: pa.array([size]), ROW_LIMIT: pa.array([limit])}
        row = pa.RecordBatch.from_arrays([*row.columns, *extra.values()], names=[*row.schema.names, *extra])
        if self._writer is None:
            self._system, folder = opened(self._path)
            self._system.create_dir(folder, recursive=True)
            # Spark and others read no file whose name begins with a dot.
            self._part = f"{folder}/.{self._name}.{self._attempt}.part"
            self._final = f"{folder}/{self._name}.parquet"
            self._writer = pq.ParquetWriter(self._part, row.schema, filesystem=self._system)
        self._writer.write_batch(row)
        self.rows += 1

    def finish(self) -> None:
        """Give the file its final name; called when all other rows of the task are sent."""
        if self._writer is not None:
            self._writer.close()
            self._system.move(self._part, self._final)

    def discard(self) -> None:
        """Remove what a failed task has written."""
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._part)


def claim_check(path: str, row_id: str, body: bytes, kind: str, message: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """Write a body to a file, and return the stub that is sent in the place of its message."""
    system, folder = opened(path)
    place, _, row = row_id.rpartition("/")
    folder = f"{folder}/{place.replace('/', '_')}"
    system.create_dir(folder, recursive=True)
    inner = f"{folder}/{row}.body"
    with system.open_output_stream(inner) as stream:
        stream.write(body)
    where = f"{path.rstrip('/')}/{place.replace('/', '_')}/{row}.body"
    properties: dict[Any, Any] = dict(message.application_properties or {})
    properties[CLAIM_CHECK] = where
    properties[CLAIM_BYTES] = {"TYPE": "LONG", "VALUE": len(body)}
    properties[CLAIM_DIGEST] = hashlib.sha256(body).hexdigest()
    if kind != "data":
        properties[CLAIM_TYPE] = kind
    return AmqpAnnotatedMessage(
        data_body=b"",
        header=dict(message.header.items()) if message.header else None,
        properties=dict(message.properties.items()) if message.properties else None,
        application_properties=properties,
        annotations=cast("dict[str, Any] | None", message.annotations),
    )


def claimed_body(path: str, digest: str) -> bytes:
    """Read the body whose file a stub names.

    Args:
        path: The stub's property ``x-duobus-claim-check``.
        digest: The stub's property ``x-duobus-claim-check-sha256``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file holds another body.
    """
    system, inner = opened(path)
    with system.open_input_stream(inner) as stream:
        body = bytes(stream.read())
    if hashlib.sha256(body).hexdigest() != digest:
        raise ValueError(f"{path} is not the body that the stub was sent for: its SHA-256 is another.")
    return body
