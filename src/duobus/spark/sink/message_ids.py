"""The message ids that a sink gives, so that duplicate detection makes a repeated write harmless.

A task that is tried again, and a batch that is written again after a restart, send the same rows in the same places.
An id that is made of the place alone is therefore the same both times, and a destination with duplicate detection keeps
one message. The content of a message is not part of its id, so two equal messages stay two.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

#: Longest message id, session id and partition key that Service Bus takes, in characters.
ID_LENGTH_MAX: Final = 128
#: Longest ``writeId``: leaves room for a query id, a batch, a partition and a row behind it.
WRITE_ID_LENGTH_MAX: Final = 40

#: Local properties that Spark sets in every task of a streaming query, under Connect too.
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"

_WRITE_ID: Final = re.compile(r"[A-Za-z0-9._-]+")


class MessageIdMode(Enum):
    """Where the id of a message comes from, as the option ``messageIdMode`` says."""

    #: From the column ``message_id``; derived where that is null.
    COLUMN = "column"
    #: From the row's place in the write.
    DERIVED = "derived"
    #: There is none, and nothing is deduplicated.
    NONE = "none"


def check_write_id(text: str) -> str:
    """Return a ``writeId`` that can be part of message ids and file names.

    Raises:
        ValueError: The text cannot be part of them.
    """
    if len(text) > WRITE_ID_LENGTH_MAX or not _WRITE_ID.fullmatch(text) or set(text) == {"."}:
        raise ValueError(
            f"writeId has to be 1 to {WRITE_ID_LENGTH_MAX} letters, digits, dots, dashes and underscores, not {text!r}"
        )
    return text


def place_of(write_id: str | None, query_id: str | None, batch_id: str | None, partition: int) -> str:
    """The place of a task's rows: the text before the row's number in a derived id.

    Args:
        write_id: Value of the option; None without the option.
        query_id: Id of the task's streaming query, stable over restarts; None in a plain batch write.
        batch_id: Number of the query's batch, the same when the batch is written again.
        partition: Number of the task's partition.

    Raises:
        ValueError: There is neither a write id nor a query, so that ids of two writes would be the same.
    """
    parts = [part for part in (write_id, query_id, batch_id) if part]
    if not parts:
        raise ValueError("a write outside of a streaming query has to have a writeId")
    return "/".join((*parts, str(partition)))


def id_of(place: str, row: int) -> str:
    """The derived id of a row: its place, and its number in the partition."""
    return f"{place}/{row}"
