"""Delivery annotations behind the body, where the SDK for Python writes them.

The standard puts them second (AMQP 1.0 part 3, section 3.2). They end at the broker wherever they stand, so what is
stored is the message without them.
"""

from __future__ import annotations

from duobus.codec.decode import skip
from duobus.codec.sections import DATA, DELIVERY_ANNOTATIONS, FOOTER
from duobus.codec.values import DecodeError


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
