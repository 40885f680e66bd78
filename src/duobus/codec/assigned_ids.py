"""Message ids that the broker gives to messages which came without one.

Such an id is written as a string with four bytes of length, where every encoder writes one byte for a text so short.
Clients read both forms alike. The broker tells its own ids by it, which count for nothing in duplicate detection,
without keeping anything beside the message. A client that sends the message again writes the id in the short form, and
then it is that client's.
"""

from __future__ import annotations

from typing import Final

from duobus.codec.sections import FRONT_SIZE_MAX, PROPERTIES, find_section

#: Characters of such an id.
MADE_ID_SIZE: Final = 32
#: The most bytes by which a message grows with it: a properties section of this one field.
MADE_ID_ROOM: Final = 48

_MARK: Final = b"\xb1\x00\x00\x00\x20"
_FIELD_BYTES: Final = len(_MARK) + MADE_ID_SIZE
_SHORT_LIST: Final = b"\x00\x53\x73\xc0"
_LONG_LIST: Final = b"\x00\x53\x73\xd0"
_NULL: Final = 0x40
#: From this size on a body is not copied twice.
_VIEWED_BYTES: Final = 65_536


def with_made_id(payload: bytes, bare: int, text: bytes) -> bytes:
    """Return the bare message that starts at offset ``bare``, with a message-id in place of none.

    Args:
        payload: A message of which ``scan`` or ``scan_plain`` says that it is well-formed and has no message-id.
        bare: Offset of its properties section, or of what comes where there is none.
        text: The id: MADE_ID_SIZE ASCII characters.

    Raises:
        DecodeError: The message is malformed.
    """
    fields = bare + 6
    if payload[bare : bare + 4] == _SHORT_LIST and payload[bare + 4] < 256 - _FIELD_BYTES:
        size, count = payload[bare + 4], payload[bare + 5]
        if count:
            fields += 1
            size -= 1
        start = _SHORT_LIST + bytes((size + _FIELD_BYTES, count or 1))
    else:
        fields, start = _rewritten(payload, bare)
    if len(payload) - fields < _VIEWED_BYTES:
        return start + _MARK + text + payload[fields:]
    return b"".join((start, _MARK, text, memoryview(payload)[fields:]))


def _rewritten(payload: bytes, bare: int) -> tuple[int, bytes]:
    """For any form of the properties: where what follows the message-id begins, and what stands in front of the id."""
    # As far as properties go at most, and not all of a large body.
    message = payload[bare : bare + FRONT_SIZE_MAX]
    start, value, end = find_section(message, PROPERTIES)
    if start == value:
        return bare + start, _SHORT_LIST + bytes((1 + _FIELD_BYTES, 1))
    constructor = message[value]
    if constructor == 0x45:
        count, fields = 0, end
    elif constructor == 0xC0:
        count, fields = message[value + 2], value + 3
    else:
        count, fields = int.from_bytes(message[value + 5 : value + 9], "big"), value + 9
    if count:
        # The null in place of which the id comes.
        fields += 1
    size = end - fields + _FIELD_BYTES
    count = count or 1
    if size < 255:
        return bare + fields, _SHORT_LIST + bytes((size + 1, count))
    return bare + fields, _LONG_LIST + (size + 4).to_bytes(4, "big") + count.to_bytes(4, "big")


def has_made_id(bare: bytes) -> bool:
    """Whether the message-id of this bare message is one that ``with_made_id`` wrote."""
    if bare[:4] == _SHORT_LIST:
        return bare[6:11] == _MARK
    return bare[:4] == _LONG_LIST and bare[12:17] == _MARK


def with_own_id(bare: bytes) -> bytes:
    """Return a message of which ``has_made_id`` is true with the same message-id as clients write it."""
    if bare[:4] == _SHORT_LIST:
        start = _SHORT_LIST + bytes((bare[4] - 3, bare[5]))
        return b"".join((start, b"\xa1\x20", memoryview(bare)[11:]))
    size = int.from_bytes(bare[4:8], "big") - 3
    start = _LONG_LIST + size.to_bytes(4, "big") + bare[8:12]
    return b"".join((start, b"\xa1\x20", memoryview(bare)[17:]))


def sent_size(bare: bytes) -> int:
    """Return the bytes of a bare message without an id that the broker gave it: what its sender is answerable for."""
    return len(bare) - MADE_ID_ROOM if has_made_id(bare) else len(bare)


__all__ = ["MADE_ID_ROOM", "MADE_ID_SIZE", "has_made_id", "sent_size", "with_made_id", "with_own_id"]
