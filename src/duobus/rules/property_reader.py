"""The properties of a plain message, read without the codec's general way: a third of its cost.

Messages of the SDKs hold short texts, numbers and booleans in their shortest maps and lists. Whatever is not of this
kind, malformed messages among them, is left to the codec: then these functions say so and have done nothing.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from duobus.codec import MADE_ID_SIZE, DecodeError, decode, has_made_id
from duobus.rules.system_properties import FIELDS
from duobus.rules.values import TICKS_PER_MS, DateTime, from_amqp

_INT: Final = struct.Struct(">i").unpack_from
_LONG: Final = struct.Struct(">q").unpack_from
_DOUBLE: Final = struct.Struct(">d").unpack_from

# How the sections begin that are read here.
PROPERTIES: Final = b"\x00\x53\x73\xc0"
NO_PROPERTIES: Final = b"\x00\x53\x73\x45"
APPLICATION: Final = b"\x00\x53\x74\xc1"

#: Place of each field of the properties section, -1 for those that no rule can name.
_PLACES: Final = tuple(next((place for place, at in FIELDS.items() if at == index), -1) for index in range(13))


def quick_user(payload: bytes) -> dict[str, Any] | None:  # noqa: C901 - one walk without calls
    """Return the user properties by exact name, as expressions see them; None: the codec has to look."""
    values: dict[str, Any] = {}
    try:
        start = payload[:4]
        pos = 5 + payload[4] if start == PROPERTIES else 4 if start == NO_PROPERTIES else 0
        if payload[pos : pos + 4] != APPLICATION:
            return None
        end = pos + 5 + payload[pos + 4]
        pairs = payload[pos + 5]
        pos += 6
        while pos < end:
            if payload[pos] != 0xA1:
                return None
            first = pos + 2
            pos = first + payload[pos + 1]
            name = payload[first:pos].decode()
            code = payload[pos]
            if code == 0xA1:
                first = pos + 2
                pos = first + payload[pos + 1]
                values[name] = payload[first:pos].decode()
            elif code == 0x54 or code == 0x55:
                number = payload[pos + 1]
                values[name] = number if number < 128 else number - 256
                pos += 2
            elif code == 0x41 or code == 0x42:
                values[name] = code == 0x41
                pos += 1
            elif code == 0x40:
                values[name] = None
                pos += 1
            elif code == 0x71:
                values[name] = _INT(payload, pos + 1)[0]
                pos += 5
            elif code == 0x81:
                values[name] = _LONG(payload, pos + 1)[0]
                pos += 9
            elif code == 0x82:
                values[name] = _DOUBLE(payload, pos + 1)[0]
                pos += 9
            elif code == 0x83:
                values[name] = DateTime(_LONG(payload, pos + 1)[0] * TICKS_PER_MS)
                pos += 9
            else:
                raw, pos = decode(payload, pos)
                values[name] = from_amqp(raw)
    except (IndexError, UnicodeDecodeError, struct.error, DecodeError):
        return None
    # Sizes that contradict each other, and names that come twice, are the codec's to report.
    return values if pos == end <= len(payload) and pairs == 2 * len(values) else None


def quick_properties(payload: bytes, system: list[Any]) -> bool:  # noqa: C901 - one walk without calls
    """Put the texts of the properties section into a row of system properties; False: the codec has to look."""
    found: list[tuple[int, str]] = []
    try:
        if payload[:4] != PROPERTIES:
            return False
        end = 5 + payload[4]
        count = payload[5]
        pos = 6
        if count > len(_PLACES):
            return False
        for place in _PLACES[:count]:
            code = payload[pos]
            if code == 0x40:
                pos += 1
            elif code == 0xA1 or code == 0xA3:
                start = pos + 2
                pos = start + payload[pos + 1]
                text = payload[start:pos].decode("ascii" if code == 0xA3 else "utf-8")
                if place >= 0:
                    found.append((place, text))
            elif code == 0xB1 and pos == 6 and has_made_id(payload):
                pos = 11 + MADE_ID_SIZE
                found.append((place, payload[11:pos].decode("ascii")))
            else:
                return False
    except (IndexError, UnicodeDecodeError):
        return False
    if pos != end or end > len(payload):
        return False
    for place, text in found:
        system[place] = text
    return True
