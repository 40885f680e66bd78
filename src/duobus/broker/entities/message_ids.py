"""What duplicate detection knows a message by: its message id, with the id's type.

On a partitioned entity the key beside it counts, too: session id or partition key. A message with neither is placed by
its id (PE10, I25), so that all its duplicates meet in one fragment.
"""

from __future__ import annotations

import uuid
from hashlib import blake2b

from duobus.codec import DecodeError, has_made_id, scan
from duobus.codec.values import ULong
from duobus.model.batches import SendBatch

#: Longer ids are kept by their digest: 256 bits do not meet by chance, nor by intent. A UUID as text is 37 bytes.
ID_KEPT_BYTES_MAX = 40
_DIGEST = b"#"
_KEYED = b"k"


def identify(batch: SendBatch, *, is_partitioned: bool) -> None:
    """Fill ``batch.ids``, and on a partitioned entity ``batch.keys`` of messages that have an id and no key."""
    ids = list(map(message_id, batch.payloads))
    if not any(ids):
        return
    if is_partitioned:
        keys = batch.keys or [None] * batch.n
        batch.keys = [one if key is None else key for one, key in zip(ids, keys, strict=True)]
        ids = [_with_key(one, key) for one, key in zip(ids, keys, strict=True)]
    batch.ids = [one if one is None or len(one) <= ID_KEPT_BYTES_MAX else _digest(one) for one in ids]


def message_id(bare: bytes) -> bytes | None:
    """The id of a bare message as a type letter and its bytes; None when it has none, an empty one, or the broker's."""
    # Nearly every message begins 00 53 73 c0 size count, a1 and the id's length: an id of text in short properties.
    if bare[:4] == b"\x00\x53\x73\xc0" and len(bare) > 7 and bare[5]:
        constructor = bare[6]
        if constructor == 0xA1:
            end = 8 + bare[7]
            return b"s" + bare[8:end] if end > 8 else None
        if constructor == 0x40 or has_made_id(bare):
            return None
    return _scanned_id(bare)


def _scanned_id(bare: bytes) -> bytes | None:
    if has_made_id(bare):
        return None
    try:
        found = scan(bare).message_id
    except DecodeError:
        # The gateway has checked it already and lets nothing through that is malformed.
        return None
    if isinstance(found, str):
        return b"s" + found.encode() if found else None
    if isinstance(found, bytes):
        return b"b" + found if found else None
    if isinstance(found, uuid.UUID):
        return b"u" + found.bytes
    if isinstance(found, ULong):
        return b"l" + int(found).to_bytes(8, "big")
    return None


def _with_key(one: bytes | None, key: bytes | None) -> bytes | None:
    if one is None or key is None:
        return one
    return _KEYED + len(key).to_bytes(2, "big") + key + one


def _digest(one: bytes) -> bytes:
    return _DIGEST + blake2b(one, digest_size=32).digest()
