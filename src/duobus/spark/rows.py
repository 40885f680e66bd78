"""Messages to rows: lists of columns of some thousand messages, then one Arrow batch."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from difflib import get_close_matches
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from duobus.spark.body_encoder import sequence_sections, value_section
from duobus.spark.errors import OptionError
from duobus.spark.offsets import COUNT_BITS
from duobus.spark.peek_decoder import Peeked
from duobus.spark.schema import NAMES, TYPES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: An Arrow batch ends with whichever comes first (2.8).
BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 4 << 20

#: Types of .NET that AMQP writes as whole numbers with a name before them.
_DOT_NET: Final = {b"com.microsoft:timespan": "timespan", b"com.microsoft:datetime-offset": "datetime-offset"}
_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}


class Source(NamedTuple):
    """The values that all messages of an entity have in common."""

    namespace: str
    entity: str


def body_of(message: Any) -> tuple[bytes, str]:
    """The body as bytes, and its kind."""
    kind = message.body_type.value
    if kind == "data":
        parts = list(message.body)
        return (bytes(parts[0]) if len(parts) == 1 else b"".join(parts)), "data"
    if kind == "value":
        return value_section(message.body), "value"
    return sequence_sections(message.body), "sequence"


def size_of(message: Any) -> int:
    """Bytes of a message's body, roughly; for a body that is not data, a guess."""
    if type(message) is Peeked:
        return len(message.body)
    if message.body_type.value != "data":
        return 256
    return sum(len(part) for part in message.body)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _property(value: Any) -> tuple[str | None, str | None]:
    """Text and AMQP type of a property's value; the type of text is not told."""
    if isinstance(value, bytes):
        try:
            return value.decode(), None
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii"), "binary"
    if value is None:
        return None, "null"
    if isinstance(value, bool):
        return ("true" if value else "false"), "boolean"
    if isinstance(value, int):
        return str(value), _DOT_NET.get(getattr(value, "descriptor", None) or b"", "long")
    if isinstance(value, float):
        return repr(value), "double"
    if isinstance(value, UUID):
        return str(value), "uuid"
    if hasattr(value, "isoformat"):
        return value.isoformat(), "timestamp"
    return str(value), None if isinstance(value, str) else type(value).__name__.lower()


def properties_of(message: Any) -> tuple[dict[str, str | None], dict[str, str]]:
    """Application properties as text, and the types of values that are not text."""
    texts: dict[str, str | None] = {}
    types: dict[str, str] = {}
    given = message.application_properties
    if not given:
        return texts, types
    for name, value in given.items():
        key = _text(name) or ""
        texts[key], kind = _property(value)
        if kind is not None:
            types[key] = kind
    return texts, types


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)


def _expires(message: Any) -> Any:
    try:
        return message.expires_at_utc
    except OverflowError:
        # Enqueued time and time to live end after the year 9999.
        return None


def _state(message: Any) -> str:
    state = message.state
    return _STATES.get(getattr(state, "value", state), "active")


#: How a column is had of a message; those of ``Source`` and the body are not among them.
_GETTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "message_id": lambda message: _text(message.message_id),
    "session_id": lambda message: _text(message.session_id),
    "partition_key": lambda message: _text(message.partition_key),
    "correlation_id": lambda message: _text(message.correlation_id),
    "subject": lambda message: _text(message.subject),
    "content_type": lambda message: _text(message.content_type),
    "to": lambda message: _text(message.to),
    "reply_to": lambda message: _text(message.reply_to),
    "reply_to_session_id": lambda message: _text(message.reply_to_session_id),
    "sequence_number": lambda message: message.sequence_number,
    "enqueued_sequence_number": lambda message: message.enqueued_sequence_number,
    "enqueued_time": lambda message: message.enqueued_time_utc,
    "scheduled_enqueue_time": lambda message: message.scheduled_enqueue_time_utc,
    "expires_at": _expires,
    "time_to_live_ms": lambda message: _milliseconds(message.time_to_live),
    "delivery_count": lambda message: message.delivery_count,
    "state": _state,
    "dead_letter_reason": lambda message: _text(message.dead_letter_reason),
    "dead_letter_error_description": lambda message: _text(message.dead_letter_error_description),
    "dead_letter_source": lambda message: _text(message.dead_letter_source),
    "fragment": lambda message: message.sequence_number >> COUNT_BITS,
}


def check_schema(schema: StructType) -> None:
    """Refuse columns that the source does not have, and columns with other types than those of the source.

    Raises:
        OptionError: The user's schema has such a column.
    """
    for item in schema.fields:
        if item.name not in NAMES:
            near = get_close_matches(item.name.lower(), NAMES, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise OptionError(f"There is no column '{item.name}'.{hint} The columns are {', '.join(NAMES)}.")
        if item.dataType.simpleString() != TYPES[item.name]:
            raise OptionError(
                f"The column '{item.name}' is a {TYPES[item.name]}, not a {item.dataType.simpleString()}."
            )


#: How a column is had of a message that was decoded here.
_OF_PEEKED: Final = {name: itemgetter(index) for index, name in enumerate(Peeked._fields)}


class Rows:
    """Makes Arrow batches of messages, with the columns of a schema and no others.

    Args:
        schema: The columns that are asked for, with the types of ``schema.arrow_schema``.
        include_body: If false, the body is null and is not read.
        batch_rows: Rows of a batch at most.
    """

    def __init__(self, schema: pa.Schema, *, include_body: bool = True, batch_rows: int = BATCH_ROWS) -> None:
        self._arrow = schema
        self._names = list(schema.names)
        self._taken = {name: _OF_PEEKED[name] for name in self._names if name in _OF_PEEKED}
        self._batch_rows = batch_rows
        self._with_body = include_body and bool({"body", "body_type"} & set(self._names))
        self._with_properties = bool({"application_properties", "application_property_types"} & set(self._names))

    def batches(self, source: Source, messages: Iterable[Any]) -> Iterator[Any]:
        """Yield Arrow batches of about a thousand messages unless told otherwise, fewer when they are large.

        Args:
            source: The values that all messages have in common.
            messages: Messages, each as ``Peeked`` or as an object of the SDK.
        """
        given = iter(messages)
        while page := list(islice(given, self._batch_rows) if not self._with_body else self._limited(given)):
            yield self._batch(source, page)

    def _limited(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The next messages for one batch, whose bodies are counted."""
        size = 0
        for number, message in enumerate(messages, 1):
            yield message
            size += len(message.body) if type(message) is Peeked else size_of(message)
            if number >= self._batch_rows or size >= BATCH_BYTES:
                return

    def _batch(self, source: Source, page: list[Any]) -> Any:
        import pyarrow

        is_usual = set(map(type, page)) == {Peeked}
        columns: dict[str, Sequence[Any]]
        if is_usual:
            columns = {name: list(map(get, page)) for name, get in self._taken.items()}
        else:
            columns = {name: _column(name, page) for name in self._names if name in _GETTERS}
            if self._with_body:
                bodies = [_body(message) for message in page]
                columns["body"] = [body for body, _ in bodies]
                columns["body_type"] = [kind for _, kind in bodies]
            else:
                columns["body_type"] = [_kind(message) for message in page]
        if not self._with_body:
            columns["body"] = [None] * len(page)
        if self._with_properties:
            properties = [properties_of(message) for message in page]
            columns["application_properties"] = [list(texts.items()) for texts, _ in properties]
            columns["application_property_types"] = [list(types.items()) for _, types in properties]
        columns["namespace"] = [source.namespace] * len(page)
        columns["entity"] = [source.entity] * len(page)
        return pyarrow.RecordBatch.from_pydict({name: columns[name] for name in self._names}, schema=self._arrow)


def rows_of(schema: StructType, *, include_body: bool = True) -> Rows:
    """The ``Rows`` of the columns that Spark asks for, with Spark's own Arrow types of them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return Rows(to_arrow_schema(schema, timezone="UTC"), include_body=include_body)


def _column(name: str, page: list[Any]) -> list[Any]:
    """A column of messages some of which the SDK has decoded; instants may be whole numbers beside datetimes."""
    index, getter = Peeked._fields.index(name), _GETTERS[name]
    return [message[index] if type(message) is Peeked else getter(message) for message in page]


def _body(message: Any) -> tuple[bytes, str]:
    return (message.body, message.body_type) if type(message) is Peeked else body_of(message)


def _kind(message: Any) -> str:
    return message.body_type if type(message) is Peeked else message.body_type.value


# Columns of Arrow batches as Python values.


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
