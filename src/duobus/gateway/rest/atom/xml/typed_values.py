"""Values that bring their type: parameters of SQL filters, properties of correlation filters."""

from __future__ import annotations

import base64
import binascii
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.reader import SCHEMA, Element
from duobus.model.descriptions import TypedValue
from duobus.model.durations import parse_duration

#: Values of one map; 1,024 characters of SQL can name some hundreds of parameters.
VALUES_MAX: Final = 1_000

STRING: Final = "string"
#: .NET's own namespace, for what the schema language does not have.
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_INTEGER: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)


def _integer(bits: int, *, signed: bool = True) -> Callable[[str], object]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return read


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text]


def _double(text: str) -> float:
    named = {"INF": math.inf, "-INF": -math.inf, "NaN": math.nan}
    return named[text] if text in named else float(text)


def _duration(text: str) -> object:
    return parse_duration(text.removeprefix("-"))


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


#: Type to what turns its text into a value; a text that it refuses is an error of the client.
READERS: Final[dict[str, Callable[[str], object]]] = {
    STRING: str,
    "int": _integer(32),
    "long": _integer(64),
    "short": _integer(16),
    "byte": _integer(8),
    "unsignedInt": _integer(32, signed=False),
    "unsignedLong": _integer(64, signed=False),
    "unsignedShort": _integer(16, signed=False),
    "unsignedByte": _integer(8, signed=False),
    "double": _double,
    "float": _double,
    "decimal": _double,
    "boolean": _boolean,
    "dateTime": datetime.fromisoformat,
    "duration": _duration,
    "guid": uuid.UUID,
    "base64Binary": _bytes,
}


def read_values(node: Element | None, what: str) -> dict[str, TypedValue]:
    """Return the map that ``Parameters`` or ``Properties`` holds; empty without the element.

    Raises:
        ArgumentInvalid: A pair has no key, a text is not of its type, or there are too many.
    """
    found: dict[str, TypedValue] = {}
    for pair in () if node is None else node.children:
        if pair.name != "KeyValueOfstringanyType":
            continue
        key, value = pair.find("Key"), pair.find("Value")
        if key is None or not key.text:
            raise ArgumentInvalid(f"A pair of {what} has no Key.")
        if value is None:
            # nil: a parameter without a value is none.
            continue
        found[key.text] = _read(key.text, value)
        if len(found) > VALUES_MAX:
            raise ArgumentInvalid(f"{what} holds more than {VALUES_MAX} values.")
    return found


def _read(key: str, value: Element) -> TypedValue:
    type_name = value.type_name or STRING
    if type_name not in READERS:
        type_name = STRING
    if type_name == STRING:
        return TypedValue(STRING, value.text)
    text = value.text.strip()
    try:
        READERS[type_name](text)
    except (ValueError, KeyError, ArgumentInvalid, binascii.Error):
        raise ArgumentInvalid(f"The value {text[:64]!r} of {key[:64]!r} is no {type_name}.") from None
    return TypedValue(type_name, text)


def write_values(name: str, values: Mapping[str, TypedValue]) -> str:
    """Return the element, or nothing for an empty map."""
    if not values:
        return ""
    return f"<{name}>" + "".join(_write(key, value) for key, value in values.items()) + f"</{name}>"


def _write(key: str, value: TypedValue) -> str:
    # The prefix has four characters: the JavaScript SDK cuts five off (rule 0.11).
    namespace = _SERIALIZATION if value.type == "guid" else SCHEMA
    return (
        f"<KeyValueOfstringanyType>{xml.element('Key', key)}"
        f'<Value xmlns:d6p1="{namespace}" i:type="d6p1:{value.type}">{xml.escape(value.value)}</Value>'
        "</KeyValueOfstringanyType>"
    )
