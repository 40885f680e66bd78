"""Bodies that are AMQP values, on their way through a backlog queue.

The SDK hands strings out as bytes and timestamps as integers, and cannot read the decimals that it writes (7.15.0), so
a value with one of them in it would come back as another one. Such a body travels as JSON in a data section, in which
everything that JSON has no form for carries a tag.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

#: The only member of the object that stands for a tagged value.
_TAG: Final = "$"
#: Nested deeper than any value that AMQP peers take from each other (limits.md), so never reached by what was sendable.
DEPTH_MAX: Final = 64


def needs_tags(value: Any) -> bool:
    """Tell whether the SDK would send another value than it received."""
    if isinstance(value, dict):
        return any(needs_tags(key) or needs_tags(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(needs_tags(item) for item in value)
    return isinstance(value, (str, datetime, Decimal))


def dumps(value: Any) -> bytes:
    """Return the JSON of a value.

    Raises:
        TypeError: It holds something that AMQP does not have, or is nested too deep.
    """
    return json.dumps(_tagged(value, 0), separators=(",", ":"), allow_nan=True).encode()


def loads(data: bytes) -> Any:
    """Return the value of a JSON text that ``dumps`` wrote.

    Raises:
        ValueError: It is none.
    """
    try:
        return _untagged(json.loads(data))
    except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"no value of a backlog message: {error}") from error


def _tagged(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise TypeError(f"a body may be nested {DEPTH_MAX} levels deep to be diverted")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_tagged(item, depth + 1) for item in value]
        return {_TAG: "tuple", "v": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {_TAG: "map", "v": [[_tagged(k, depth + 1), _tagged(v, depth + 1)] for k, v in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {_TAG: "bytes", "v": base64.b64encode(value).decode("ascii")}
    if isinstance(value, UUID):
        return {_TAG: "uuid", "v": str(value)}
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return {_TAG: "timestamp", "v": moment.isoformat()}
    if isinstance(value, Decimal):
        return {_TAG: "decimal", "v": str(value)}
    raise TypeError(f"a body with a {type(value).__name__} in it cannot be diverted")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = value[_TAG], value["v"]
    if kind == "tuple":
        return tuple(_untagged(item) for item in content)
    if kind == "map":
        return {_untagged(key): _untagged(item) for key, item in content}
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "uuid":
        return UUID(content)
    if kind == "timestamp":
        return datetime.fromisoformat(content)
    if kind == "decimal":
        return Decimal(content)
    raise ValueError(f"no tag {kind!r}")
