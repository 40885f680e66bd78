"""Pings of paired namespaces: empty messages of a content type that nobody is ever given (PN13, I11)."""

from __future__ import annotations

from typing import Final

from duobus.codec import DecodeError, scan

CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
#: The index of the content type among the fields of the properties section.
CONTENT_TYPE_FIELD: Final = 6
#: A ping is not larger unless somebody makes an effort, who could not have it stored: forwarding, where messages are
#: many, asks about small ones only.
SMALL_BYTES: Final = 512
#: Why one is left where it is.
TEXT: Final = "It is a ping, which is never delivered. Purge it."

_BYTES: Final = CONTENT_TYPE.encode()


def is_ping(bare: bytes) -> bool:
    """Tell whether a bare message is a ping. Others are told from one without being taken apart."""
    if _BYTES not in bare:
        return False
    try:
        found = scan(bare)
    except DecodeError:
        return False
    return bool(found.content_type == CONTENT_TYPE and found.body_bytes_empty)
