"""Creation and expiry of a message on its way out, which are the broker's to tell (AMQP 1.0 part 3, 3.2.1)."""

from __future__ import annotations

import struct
from typing import Final

from duobus.codec.decoder import skip
from duobus.codec.sections import PROPERTIES, find_section
from duobus.codec.values import DecodeError

#: The last instant that all clients can tell: the end of the year 9999.
INSTANT_MS_MAX: Final = 253_402_300_799_999

#: Place of ``absolute-expiry-time``; ``creation-time`` follows.
_EXPIRY: Final = 8
_FIELDS: Final = 13
_NULL: Final = 0x40
_NULLS: Final = tuple(b"\x40" * number for number in range(_FIELDS + 1))
_TIMES: Final = struct.Struct(">BqBq").pack
_TIMESTAMP: Final = 0x83


def timed_front(bare_message: bytes, creation_ms: int, expiry_ms: int | None) -> tuple[bytes, int]:
    """Return the message up to the end of its properties with these two in them, and where in it the rest begins.

    Every byte of the other properties stays, and so do those of all other sections.

    Args:
        bare_message: A message, from its properties on. For one that cannot be read there is nothing to put in front of
            it: it is not for these two to say so.
        creation_ms: When it was enqueued; counts only beside an expiry.
        expiry_ms: When its life ends; what is beyond ``INSTANT_MS_MAX`` is told as that. None for a message that lives
            for ever, which has no ``absolute-expiry-time`` then.
    """
    times = b""
    if expiry_ms is not None:
        times = _TIMES(_TIMESTAMP, min(expiry_ms, INSTANT_MS_MAX), _TIMESTAMP, creation_ms)
    try:
        return _timed_front(bare_message, times)
    except (DecodeError, IndexError):
        return b"", 0


def _timed_front(message: bytes, times: bytes) -> tuple[bytes, int]:
    """``times``: both, encoded; empty to leave ``creation-time`` and have no ``absolute-expiry-time``."""
    start, value, end = find_section(message, PROPERTIES)
    count, pos = 0, end
    if start != value and message[value] == 0xC0:
        count, pos = message[value + 2], value + 3
    elif start != value and message[value] == 0xD0:
        count, pos = int.from_bytes(message[value + 5 : value + 9], "big"), value + 9
    if count <= _EXPIRY and not times:
        return b"", 0
    first = pos
    places = [first]
    for _ in range(min(count, _EXPIRY + 2)):
        pos = pos + 1 if message[pos] == _NULL else skip(message, pos)
        places.append(pos)
    if pos > end:
        raise DecodeError("the properties end within a field")
    fields = message[first : places[min(count, _EXPIRY)]]
    if times:
        fields += _NULLS[max(0, _EXPIRY - count)] + times + message[pos:end]
        count = max(count, _EXPIRY + 2)
    else:
        fields += _NULLS[1] + message[places[_EXPIRY + 1] : end]
    size = len(fields) + 1
    if size < 256:
        section = b"\x00\x53\x73\xc0" + bytes((size, count))
    else:
        section = b"\x00\x53\x73\xd0" + struct.pack(">II", size + 3, count)
    return message[:start] + section + fields, end
