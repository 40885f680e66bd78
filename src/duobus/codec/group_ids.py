"""Group ids, which Service Bus calls session ids, found in plain messages without decoding."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from duobus.codec.decoder import skip
from duobus.codec.values import DecodeError

#: Ids of more bytes than this may pass the limit of 128 characters (Azure: quotas): somebody has to count.
ID_SIZE_PLAIN_MAX: Final = 128
# The fields between message-id and group-id, all null, and the constructor of a group-id of at most 255 bytes.
_UP_TO_GROUP: Final = b"\x40" * 9 + b"\xa1"


def plain_group_id(payload: bytes, bare: int) -> bytes | None:
    """Return the group id, not decoded, of a message of which ``scan_plain`` without a wanted group id said ``bare``.

    None says no more than that ``scan`` must look: there is none, or it is written in a rare way.
    """
    try:
        if payload[bare : bare + 4] != b"\x00\x53\x73\xc0" or payload[bare + 5] <= 10:
            return None
        pos = bare + 6
        constructor = payload[pos]
        width = 2 + payload[pos + 1] if constructor in b"\xa1\xa0" else 1 if constructor == 0x40 else 0
        if width and payload[pos + width : pos + width + 10] == _UP_TO_GROUP:
            pos += width + 9
        else:
            for _ in range(10):
                constructor = payload[pos]
                if constructor == 0x40:
                    pos += 1
                elif constructor == 0xA1:
                    pos += 2 + payload[pos + 1]
                else:
                    pos = skip(payload, pos)
        size = payload[pos + 1]
        end = pos + 2 + size
        # Section and payload end no earlier: scan_plain has walked them, and reads no field's inside.
        if payload[pos] != 0xA1 or size > ID_SIZE_PLAIN_MAX or end > bare + 5 + payload[bare + 4]:
            return None
        return payload[pos + 2 : end]
    except (IndexError, DecodeError):
        return None


def is_group_alone(payload: bytes, pos: int, size: int, count: int, width: int) -> bool:
    """Whether the properties at ``pos`` are an id of ``width`` bytes, a group-id, and else fields of one byte."""
    at = pos + width
    if count <= 10 or (width == 1 and payload[pos] != 0x40) or payload[at : at + 10] != _UP_TO_GROUP:
        return False
    length = payload[at + 10]
    return length <= ID_SIZE_PLAIN_MAX and size - width - 1 - length == count


class GroupShape:
    """The layout of a plain message with a group id, for telling that another has the same: its group id is found then.

    All bytes that say what comes where are compared; left out are the values of message-id and group-id, the contents
    of the application properties, and those of the body.

    Attributes:
        bare: Offset of the bare message.
        is_known: The message had a layout that can be told again.
    """

    __slots__ = (
        "_after",
        "_before",
        "_data",
        "_data_at",
        "_end",
        "_group",
        "_head",
        "_id_end",
        "_size",
        "_split",
        "bare",
        "is_known",
    )

    def __init__(self, payload: bytes, bare: int) -> None:
        """Learn from a message of which ``scan_plain`` without a wanted group id said ``bare``."""
        self.bare = bare
        self.is_known = False
        # Of a message whose layout is known; no other has this size.
        self._size = -1
        self._split = struct.Struct("")
        self._head = self._before = self._after = self._data = b""
        self._id_end = self._group = self._end = self._data_at = 0
        if bare >= 0 and payload[bare : bare + 4] == b"\x00\x53\x73\xc0":
            self._learn(payload, bare + 6)

    def _learn(self, payload: bytes, pos: int) -> None:
        properties_end = pos - 1 + payload[pos - 2]
        if payload[pos] not in b"\xa1\xa0" or payload[pos - 1] <= 10:
            return
        id_end = pos + 2 + payload[pos + 1]
        group = id_end + 11
        if group > properties_end or payload[id_end : id_end + 10] != _UP_TO_GROUP:
            return
        if group + payload[group - 1] > properties_end:
            return
        self._head = payload[: pos + 2]
        self._id_end = id_end
        self._group = group
        self._before = payload[id_end:group]
        self._end = self._group + payload[group - 1]
        after = properties_end
        data = properties_end
        if payload[after : after + 4] == b"\x00\x53\x74\xc1":
            data = after + 5 + payload[after + 4]
            after += 5
        self._after = payload[self._end : after]
        # One data section up to the end: with the same size and the same first bytes it is one, too.
        width = 5 if payload[data + 3 : data + 4] == b"\xa0" else 8
        self._data = payload[data : data + width]
        self._data_at = data
        if self._data[:4] in (b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"):
            size = int.from_bytes(self._data[4:], "big")
            if data + width + size == len(payload) and payload[group - 1] <= ID_SIZE_PLAIN_MAX:
                self.is_known = True
                self._size = len(payload)
                # Head, what is before the group-id, group-id, what is after it, and the start of the data.
                skipped = (id_end - pos - 2, data - after, size)
                sizes = (pos + 2, group - id_end, self._end - group, after - self._end, width)
                first, before, own, behind, last = sizes
                self._split = struct.Struct(
                    f"{first}s{skipped[0]}x{before}s{own}s{behind}s{skipped[1]}x{last}s{skipped[2]}x"
                )

    def group_id(self, payload: bytes) -> bytes | None:
        """The group id of a message of this layout; None when its layout is another."""
        end = self._end
        group = self._group
        head = self._head
        if (
            len(payload) == self._size
            and payload.startswith(head)
            and payload[self._id_end : group] == self._before
            and payload.startswith(self._after, end)
            and payload.startswith(self._data, self._data_at)
        ):
            return payload[group:end]
        return None

    def group_ids(self, payloads: Sequence[bytes]) -> Sequence[bytes] | None:
        """The group id of each of these messages; None when the layout of one is another.

        What ``group_id`` does for one, without a step in Python for each.
        """
        n = len(payloads)
        if not self.is_known or list(map(len, payloads)).count(self._size) != n:
            return None
        heads, befores, found, afters, datas = zip(*map(self._split.unpack, payloads), strict=True)
        if (
            heads.count(self._head) == n
            and befores.count(self._before) == n
            and afters.count(self._after) == n
            and datas.count(self._data) == n
        ):
            return found
        return None
