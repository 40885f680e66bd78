"""The columns of a message as a row; the source gives them, the sink takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: Name and Spark type of every column, in order. The names are those of the Python SDK.
COLUMNS: Final = (
    ("body", "binary"),
    ("body_type", "string"),
    ("message_id", "string"),
    ("session_id", "string"),
    ("partition_key", "string"),
    ("correlation_id", "string"),
    ("subject", "string"),
    ("content_type", "string"),
    ("to", "string"),
    ("reply_to", "string"),
    ("reply_to_session_id", "string"),
    ("sequence_number", "bigint"),
    ("enqueued_sequence_number", "bigint"),
    ("enqueued_time", "timestamp"),
    ("scheduled_enqueue_time", "timestamp"),
    ("expires_at", "timestamp"),
    ("time_to_live_ms", "bigint"),
    ("delivery_count", "int"),
    ("state", "string"),
    ("dead_letter_reason", "string"),
    ("dead_letter_error_description", "string"),
    ("dead_letter_source", "string"),
    ("application_properties", "map<string,string>"),
    ("application_property_types", "map<string,string>"),
    ("namespace", "string"),
    ("entity", "string"),
    ("fragment", "int"),
)

NAMES: Final = tuple(name for name, _ in COLUMNS)
TYPES: Final = dict(COLUMNS)

#: Of ``body_type``: the bytes of the data sections; else the body as it was encoded, an AMQP section or several.
BODY_TYPES: Final = ("data", "value", "sequence")

#: The schema as Spark reads it.
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS)


def arrow_schema(names: Iterable[str] = NAMES) -> pa.Schema:
    """The Arrow types of some columns: those that Spark itself has for its types of the columns.

    Args:
        names: Names of columns, in the order of the result.
    """
    import pyarrow as pa

    types = {
        "binary": pa.binary(),
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[TYPES[name]]) for name in names])
