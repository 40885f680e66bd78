"""Bodies that are AMQP values or sequences, written as the AMQP sections that the column ``body`` holds.

The SDK returns such a body as Python values, with text and binary both as bytes; bytes that are UTF-8 are written as
text. The SDK has lost the widths of numbers and whether an integer was a timestamp, so numbers are written as long and
double.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

_SEQUENCE: Final = b"\x00\x53\x76"
_VALUE: Final = b"\x00\x53\x77"
#: Nested deeper than any value that AMQP peers take from each other.
DEPTH_MAX: Final = 64


def value_section(value: Any) -> bytes:
    """An amqp-value section; ValueError for a value that has no form here."""
    return _VALUE + _encoded(value, 0)


def sequence_sections(sequences: Iterable[Any]) -> bytes:
    """Amqp-sequence sections, one for each list."""
    return b"".join(_SEQUENCE + _encoded(list(sequence), 0) for sequence in sequences)


def is_text(data: bytes) -> bool:
    """Whether bytes are taken for text; the SDK returns text and binary alike as bytes."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoded(value: Any, depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise ValueError(f"a body is nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, list | tuple):
        return _compound(b"\xd0", [_encoded(item, depth + 1) for item in value])
    if isinstance(value, dict):
        return _compound(b"\xd1", [_encoded(item, depth + 1) for pair in value.items() for item in pair])
    return _scalar(value)


def _compound(code: bytes, items: list[bytes]) -> bytes:
    content = b"".join(items)
    return code + struct.pack(">II", len(content) + 4, len(items)) + content


def _scalar(value: Any) -> bytes:
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return (
            b"\x81" + struct.pack(">q", value) if -(1 << 63) <= value < 1 << 63 else b"\x80" + struct.pack(">Q", value)
        )
    if isinstance(value, float):
        return b"\x82" + struct.pack(">d", value)
    if isinstance(value, str):
        return _variable(b"\xb1", value.encode())
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return _variable(b"\xb1" if is_text(data) else b"\xb0", data)
    if isinstance(value, UUID):
        return b"\x98" + value.bytes
    if isinstance(value, datetime):
        return b"\x83" + struct.pack(">q", round(value.timestamp() * 1000))
    raise ValueError(f"a body holds a {type(value).__name__}, which has no AMQP form here")


def _variable(code: bytes, data: bytes) -> bytes:
    return code + struct.pack(">I", len(data)) + data
