"""Delivery annotations behind the body, where the SDK for Python writes them.

The standard puts them second (AMQP 1.0 part 3, section 3.2). They are delivered there, so what is stored as the message
is the rest.
"""

from __future__ import annotations

from typing import Any

from duobus.codec.decoder import decode, skip
from duobus.codec.sections import DATA, DELIVERY_ANNOTATIONS, FOOTER, FRONT_SIZE_MAX, check_annotations
from duobus.codec.values import DecodeError, TooLargeError


def without_trailing_annotations(payload: bytes) -> bytes:
    """Return a message without delivery annotations that are its last section; as it came if there are none.

    Only the form in which the SDK writes descriptors is looked for. Whether the rest is legal is for ``scan`` to say.
    """
    pos, last = 0, -1
    try:
        while pos < len(payload):
            if payload[pos] != 0 or payload[pos + 1] != 0x53:
                return payload
            code = payload[pos + 2]
            after = skip(payload, pos + 3)
            if code == DELIVERY_ANNOTATIONS and DATA <= last <= FOOTER and after == len(payload):
                return payload[:pos] if payload[pos + 3] in b"\xc1\xd1" else payload
            pos, last = after, code
    except (DecodeError, IndexError):
        return payload
    return payload


def trailing_annotations(payload: bytes, start: int) -> dict[Any, Any] | None:
    """Return the delivery annotations that begin at ``start``, where ``without_trailing_annotations`` has cut.

    Raises:
        TooLargeError: They are larger than everything in front of a body may be.
        DecodeError: A key is none.
    """
    if len(payload) - start > FRONT_SIZE_MAX:
        raise TooLargeError(f"delivery annotations have {len(payload) - start} bytes; {FRONT_SIZE_MAX} are allowed")
    found: dict[Any, Any] = decode(payload, start + 3)[0]  # A map: its constructor was looked at.
    check_annotations(found)
    return found or None
