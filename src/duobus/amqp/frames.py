"""Frames: headers, limits and the templates of those that are many (part 2, section 2.3).

0        4      5      6         8          4*doff
| size   | doff | type | channel | extended | body: 00 53 code, list of fields, payload
"""

from __future__ import annotations

import struct
from typing import Any, Final

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

TYPE_AMQP: Final = 0
TYPE_SASL: Final = 1

#: No frame may be larger before ``open`` says otherwise: ours is never, and tokens do not travel in SASL.
EARLY_FRAME_MAX: Final = 8192
#: The least that the specification lets anyone announce.
FRAME_SIZE_MIN: Final = 512

MASK: Final = 0xFFFFFFFF
HALF: Final = 0x80000000

HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEADER: Final = struct.Struct(">IBBH").pack
_U32: Final = struct.Struct(">I").unpack_from


def frame(channel: int, body: bytes, frame_type: int = TYPE_AMQP) -> bytes:
    """Return a whole frame."""
    return _HEADER(8 + len(body), 2, frame_type, channel) + body


def serial_difference(left: int, right: int) -> int:
    """Return ``left - right`` in serial number arithmetic of 32 bits (RFC 1982): between -2**31 and 2**31 - 1."""
    difference = (left - right) & MASK
    return difference - 0x100000000 if difference & HALF else difference


# Uints in flows and dispositions are written in the wide form: constant layouts pack in one call.

_FLOW: Final = struct.Struct(">IHHHBBBBBIBIBIBI").pack
_LINK_FLOW: Final = struct.Struct(">BIBIBI").pack
_DISPOSITION: Final = struct.Struct(">IHHHBBBBBBIBIB").pack


def flow_frame(
    channel: int,
    windows: tuple[int, int, int, int],
    link: tuple[int, int, int] | None = None,
    drain: bool = False,
    available: int = 0,
) -> bytes:
    """Return a flow with all eleven fields, never asking for an echo (AMQP 1.0 part 2, 2.6.7).

    Args:
        channel: Our channel of the session.
        windows: next-incoming-id, incoming-window, next-outgoing-id, outgoing-window.
        link: handle, delivery-count and link-credit, or None for the session alone.
        drain: The field of that name.
        available: Likewise.
    """
    next_incoming, incoming, next_outgoing, outgoing = windows
    if link is None:
        tail = b"\x40\x40\x40\x40\x40\x42\x40"
    else:
        handle, count, credit = link
        told = b"\x43" if not available else b"\x70" + available.to_bytes(4, "big")
        tail = (
            _LINK_FLOW(0x70, handle, 0x70, count, 0x70, credit) + told + (b"\x41\x42\x40" if drain else b"\x42\x42\x40")
        )
    size = 34 + len(tail)
    head = _FLOW(size, 0x0200, channel, 0x0053, 0x13, 0xC0, size - 13, 11, 0x70, next_incoming,
                 0x70, incoming, 0x70, next_outgoing, 0x70, outgoing)  # fmt: skip
    return head + tail


def read_flow_fields(data: bytes, pos: int, stop: int) -> list[Any] | None:  # noqa: C901 - hot path, a flow per few messages
    """Read the fields of a flow frame in place; None when it is not laid out as nearly all are.

    Args:
        data: What was received.
        pos: Where the frame starts.
        stop: Where it ends.

    Returns:
        All eleven fields: eight uints or None, drain, echo, and None for the properties.
    """
    if data[pos + 4 : pos + 6] != b"\x02\x00" or data[pos + 8 : pos + 12] != b"\x00\x53\x13\xc0" or stop < pos + 14:
        return None
    fields: list[Any] = []
    count = data[pos + 13]
    if pos + 13 + data[pos + 12] != stop or not 4 <= count <= 11:
        return None
    pos += 14
    try:
        while pos < stop:
            byte = data[pos]
            if byte == 0x40:
                fields.append(None)
                pos += 1
            elif len(fields) < 8:
                if byte == 0x70:
                    fields.append(_U32(data, pos + 1)[0])
                    pos += 5
                elif byte == 0x52:
                    fields.append(data[pos + 1])
                    pos += 2
                elif byte == 0x43:
                    fields.append(0)
                    pos += 1
                else:
                    return None
            elif byte in (0x41, 0x42) and len(fields) < 10:
                fields.append(byte == 0x41)
                pos += 1
            elif byte == 0x56 and len(fields) < 10 and data[pos + 1] <= 1:
                fields.append(data[pos + 1] == 1)
                pos += 2
            else:
                return None
    except (IndexError, struct.error):
        return None
    if pos != stop or len(fields) != count:
        return None
    fields += [None] * (11 - count)
    return fields


def disposition_frame(channel: int, role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """Return a disposition with all six fields; ``state`` is encoded already."""
    tail = state + b"\x40"
    size = 26 + len(tail)
    settled_byte = 0x41 if settled else 0x42
    role_byte = 0x41 if role else 0x42
    if size - 13 > 255:
        # An error with a long text: the fields go into a list with wide sizes.
        fields = struct.pack(">BBIBIB", role_byte, 0x70, first, 0x70, last, settled_byte) + tail
        body = b"\x00\x53\x15\xd0" + struct.pack(">II", len(fields) + 4, 6) + fields
        return frame(channel, body)
    return _DISPOSITION(size, 0x0200, channel, 0x0053, 0x15, 0xC0, size - 13, 6, role_byte, 0x70, first,
                        0x70, last, settled_byte) + tail  # fmt: skip


class TransferTemplate:
    """Packs the transfers of one link: all but size, delivery-id and tag is constant.

    size | 02 00 channel 00 53 14 c0 size 0b handle 70 | delivery-id | a0 10 prefix | counter | 43 42 42 40...

    Settled ones have an empty tag (AMQP 1.0 part 2, 2.6.7), and are packed by themselves.

    Attributes:
        pack: ``struct`` packer of (size, head, delivery-id, tag prefix with its constructor, tag counter, tail).
        head: Bytes between size and delivery-id.
        overhead: Size of the frame without payload.
        pack_settled: ``struct`` packer of (size, head, delivery-id, tail) of a settled delivery.
        head_settled, overhead_settled: The same of a settled delivery.
    """

    __slots__ = ("head", "head_settled", "overhead", "overhead_settled", "pack", "pack_settled")

    #: What follows the delivery-id of a settled one: an empty tag, message-format 0, settled, more=false, five nulls.
    TAIL_SETTLED: Final = b"\xa0\x00\x43\x41\x42\x40\x40\x40\x40\x40"
    #: What follows the tag of an unsettled one.
    TAIL_UNSETTLED: Final = b"\x43\x42\x42\x40\x40\x40\x40\x40"
    #: ``overhead`` with a handle of four bytes.
    OVERHEAD_MAX: Final = 50

    def __init__(self, channel: int, handle: int) -> None:
        encoded = bytes((0x52, handle)) if handle < 256 else b"\x70" + handle.to_bytes(4, "big")
        start = b"\x02\x00" + channel.to_bytes(2, "big") + b"\x00\x53\x14\xc0"
        fields = len(encoded) + 1 + 4 + 2 + 16 + len(self.TAIL_UNSETTLED)
        self.head = start + bytes((fields + 1, 11)) + encoded + b"\x70"
        self.pack = struct.Struct(f">I{len(self.head)}sI10sQ{len(self.TAIL_UNSETTLED)}s").pack
        self.overhead = 4 + len(self.head) + 4 + 10 + 8 + len(self.TAIL_UNSETTLED)
        fields = len(encoded) + 1 + 4 + len(self.TAIL_SETTLED)
        self.head_settled = start + bytes((fields + 1, 11)) + encoded + b"\x70"
        self.pack_settled = struct.Struct(f">I{len(self.head_settled)}sI{len(self.TAIL_SETTLED)}s").pack
        self.overhead_settled = 4 + len(self.head_settled) + 4 + len(self.TAIL_SETTLED)


def transfer_head(
    handle: int,
    delivery_id: int,
    tag: bytes | None,
    message_format: int | None,
    settled: bool,
    more: bool,
    state: bytes,
) -> bytes:
    """Return the body of a transfer frame up to its payload, with all eleven fields; ``state`` is encoded already.

    Args:
        handle: Our handle of the link.
        delivery_id: Repeated on continuation frames.
        tag: At most 32 bytes; None on continuation frames.
        message_format: None on continuation frames.
        settled: Whether the delivery is settled.
        more: Whether frames of this delivery follow.
        state: For instance a transactional state; ``40`` for none.
    """
    fields = bytearray(struct.pack(">BIBI", 0x70, handle, 0x70, delivery_id))
    fields += b"\x40" if tag is None else bytes((0xA0, len(tag))) + tag
    fields += b"\x40" if message_format is None else struct.pack(">BI", 0x70, message_format)
    fields += bytes((0x41 if settled else 0x42, 0x41 if more else 0x42, 0x40)) + state + b"\x40\x40\x40"
    if len(fields) < 255:
        return b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields
    return b"\x00\x53\x14\xd0" + struct.pack(">II", len(fields) + 4, 11) + fields
