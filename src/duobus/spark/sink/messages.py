"""The message that is sent for a row, and its entity.

The columns are those of the source, so that rows that were read can be written again. Columns that a broker assigns are
accepted and ignored. Any other column is an error, because a misspelt column would otherwise be lost without a word.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, NamedTuple
from uuid import UUID

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from duobus.spark.schema import TYPES
from duobus.spark.sink import body_decoder as section_reader
from duobus.spark.sink.message_ids import ID_LENGTH_MAX

#: Columns that a broker assigns: taken, and not sent.
ASSIGNED: Final = frozenset(
    {
        "sequence_number",
        "enqueued_sequence_number",
        "enqueued_time",
        "expires_at",
        "delivery_count",
        "state",
        "dead_letter_reason",
        "dead_letter_error_description",
        "dead_letter_source",
        "namespace",
        "fragment",
    }
)
#: Columns that become part of a message.
SENT: Final = tuple(name for name in TYPES if name not in ASSIGNED)
#: Longest time to live in milliseconds: beyond, a message never expires.
FOREVER_MS: Final = 2**32 - 1

_PARTITION_KEY: Final = "x-opt-partition-key"
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
#: The SDK looks for these as bytes and would add its own beside them if they were text (``_common/tracing.py``).
_TRACES: Final = frozenset({"traceparent", "tracestate", "Diagnostic-Id"})
#: Whole numbers: AMQP type to its bits and whether it has a sign.
_WHOLE: Final = {
    "ubyte": (8, False),
    "ushort": (16, False),
    "uint": (32, False),
    "ulong": (64, False),
    "byte": (8, True),
    "short": (16, True),
    "int": (32, True),
    "long": (64, True),
}
_NUMBER: Final = re.compile(r"-?\d{1,20}")


class RowError(ValueError):
    """A row of which no message can be made; the text has the row, the column and what to do."""


class Outgoing(NamedTuple):
    """A message on its way.

    Attributes:
        entity: The entity to which the message goes.
        key: Session id or partition key, which all messages of a batch share; None for neither.
        message: The message, as an object of the SDK.
    """

    entity: str
    key: str | None
    message: AmqpAnnotatedMessage


def check_columns(types: Mapping[str, str], *, has_entity: bool) -> None:
    """Check the columns of a DataFrame that is to be written.

    Args:
        types: Spark's simple type of each column, by name.
        has_entity: Whether an option names the entity for all rows.

    Raises:
        ValueError: A column is missing, unknown or of another type.
    """
    for name, found in types.items():
        if name not in TYPES:
            near = get_close_matches(name, TYPES, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"The sink knows no column {name!r}.{hint} Drop it, or put it into application_properties. It sends "
                f"{', '.join(SENT)}; it takes, and does not send, {', '.join(sorted(ASSIGNED))}."
            )
        if name in SENT and not _fits(name, TYPES[name], found):
            also = " or string" if name == "body" else ""
            raise ValueError(f"The column {name!r} has to be {TYPES[name]}{also}, not {found}. Cast it.")
    if "body" not in types:
        raise ValueError("The sink needs a column 'body', binary or string.")
    if not has_entity and "entity" not in types:
        raise ValueError("Say where to: give one of the options queue and topic, or a column 'entity'.")


def _fits(name: str, wanted: str, found: str) -> bool:
    if wanted == "bigint":
        return found in ("bigint", "int", "smallint", "tinyint", "void")
    if wanted == "string" or (name == "body" and found != wanted):
        return found in ("string", "void") or found.startswith(("varchar", "char"))
    return found in (wanted, "void")


def messages_of(
    columns: Mapping[str, list[Any]],
    ids: Iterable[str | None],
    entity: str | None,
    named: Callable[[int], str],
) -> Iterable[Outgoing]:
    """Yield a message for each row.

    Args:
        columns: Values of each column, by name; times in microseconds since the epoch, maps as pairs.
        ids: The message id of each row.
        entity: The entity for all rows; None where the column ``entity`` names it.
        named: Returns a name for the row with an index, for errors.

    Raises:
        RowError: A row cannot be sent.
    """
    names = [name for name in columns if name in SENT]
    for index, (message_id, values) in enumerate(
        zip(ids, zip(*(columns[name] for name in names), strict=True), strict=True)
    ):
        row = dict(zip(names, values, strict=True))
        try:
            yield _outgoing(row, message_id, entity)
        except (ValueError, ArithmeticError) as error:
            raise RowError(f"Row {named(index)} cannot be sent: {error}") from None


def _outgoing(row: Mapping[str, Any], message_id: str | None, entity: str | None) -> Outgoing:
    where = entity or row.get("entity")
    if not where:
        raise ValueError("its column 'entity' is empty, and no option says where it goes")
    session_id = _identifier("session_id", row.get("session_id"))
    partition_key = _identifier("partition_key", row.get("partition_key"))
    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise ValueError("session_id and partition_key have to be equal where both are given")
    message = AmqpAnnotatedMessage(**_body(row))
    message.properties = AmqpMessageProperties(
        message_id=_identifier("message_id", message_id),
        to=row.get("to"),
        subject=row.get("subject"),
        reply_to=row.get("reply_to"),
        correlation_id=row.get("correlation_id"),
        content_type=row.get("content_type"),
        group_id=session_id,
        reply_to_group_id=_identifier("reply_to_session_id", row.get("reply_to_session_id")),
    )
    life_ms = row.get("time_to_live_ms")
    if life_ms is not None and life_ms < FOREVER_MS:
        if life_ms <= 0:
            raise ValueError(f"time_to_live_ms has to be positive or null, not {life_ms}")
        message.header = AmqpMessageHeader(time_to_live=life_ms)
    annotations: dict[str | bytes, Any] = {}
    if partition_key is not None:
        annotations[_PARTITION_KEY] = partition_key
    scheduled_us = row.get("scheduled_enqueue_time")
    if scheduled_us is not None:
        annotations[_SCHEDULED] = {"TYPE": "TIMESTAMP", "VALUE": scheduled_us // 1000}
    if annotations:
        message.annotations = annotations
    pairs = row.get("application_properties")
    if pairs:
        message.application_properties = _properties(pairs, dict(row.get("application_property_types") or ()))
    return Outgoing(where, session_id if session_id is not None else partition_key, message)


def _identifier(name: str, value: str | None) -> str | None:
    if value is not None and len(value) > ID_LENGTH_MAX:
        raise ValueError(f"its {name} has {len(value)} characters; {ID_LENGTH_MAX} are the most")
    return value


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    body, kind = row.get("body"), row.get("body_type")
    data = b"" if body is None else body.encode() if isinstance(body, str) else bytes(body)
    if kind in (None, "data"):
        return {"data_body": data}
    if kind == "value":
        return {"value_body": section_reader.value_of(data)}
    if kind == "sequence":
        return {"sequence_body": section_reader.sequences_of(data)}
    raise ValueError(f"body_type has to be data, value or sequence, not {kind!r}")


def _properties(pairs: Iterable[tuple[str, str | None]], types: Mapping[str, str]) -> dict[str | bytes, Any]:
    return {
        name.encode() if name in _TRACES else name: property_of(name, text, types.get(name)) for name, text in pairs
    }


def property_of(name: str, text: str | None, kind: str | None) -> Any:
    """The value of an application property, as the SDK sends it with its AMQP type.

    Args:
        name: Name of the property, for errors.
        text: Text of the value in the column.
        kind: Type of the value in ``application_property_types``; None for text.

    Raises:
        ValueError: The text is no value of that type, or there is no such type.
    """
    if text is None or kind == "null":
        return None
    if kind is None or kind == "string":
        return text
    try:
        return _parsed(text, kind)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"its property {name!r} is no {kind}: {error}") from None


def _parsed(text: str, kind: str) -> Any:
    if kind in _WHOLE:
        return {"TYPE": kind.upper(), "VALUE": _whole(text, *_WHOLE[kind])}
    parser = _PARSERS.get(kind)
    if parser is None:
        raise ValueError("the SDK knows no such AMQP type")
    return parser(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _whole(text: str, bits: int, is_signed: bool) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number")
    number = int(text)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
    if not low <= number < high:
        raise ValueError(f"{number} is not within {low} and {high - 1}")
    return number


def _milliseconds(text: str) -> int:
    """A timestamp as milliseconds since the epoch, or in the ISO form with its zone."""
    if _NUMBER.fullmatch(text):
        return _whole(text, 64, True)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return round(moment.timestamp() * 1000)


def _described(kind: str, value: Any) -> dict[str, Any]:
    """A type of .NET, which AMQP writes as one of its own with a name before it."""
    return {"TYPE": "DESCRIBED", "VALUE": ({"TYPE": "SYMBOL", "VALUE": f"com.microsoft:{kind}"}, value)}


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "boolean": _boolean,
    "bool": _boolean,
    "double": float,
    "float": lambda text: {"TYPE": "FLOAT", "VALUE": float(text)},
    "decimal": Decimal,
    "decimal128": Decimal,
    "timestamp": lambda text: {"TYPE": "TIMESTAMP", "VALUE": _milliseconds(text)},
    "uuid": UUID,
    "binary": lambda text: {"TYPE": "BINARY", "VALUE": base64.b64decode(text, validate=True)},
    "timespan": lambda text: _described("timespan", {"TYPE": "LONG", "VALUE": _whole(text, 64, True)}),
    "datetime-offset": lambda text: _described("datetime-offset", {"TYPE": "LONG", "VALUE": _whole(text, 64, True)}),
    "uri": lambda text: _described("uri", {"TYPE": "STRING", "VALUE": text}),
    "symbol": lambda text: {"TYPE": "SYMBOL", "VALUE": text.encode()},
}
