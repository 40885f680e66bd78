"""The message of the load: a header, a message-id and a body that ends in the marks of the measurement.

The header says durable where the peer asks for it.

Body, last 24 bytes: 8 bytes that name the run, sender number (uint32), sequence number (uint32), time of sending
(float64, seconds of `time.perf_counter`). They are the last bytes of the whole frame, where a receiver finds them
without walking the message; the rest of the body is filler.
"""

import os
import struct
from collections.abc import Callable

from benchmarks.load import wire

MARKS = struct.Struct(">8sIId")
BODY_MIN = MARKS.size
MARK_PREFIX = b"dblo"


class Run:
    """The identity of one run: messages of another one in the same queue are noticed by it."""

    __slots__ = ("mark", "name")

    def __init__(self) -> None:
        random = os.urandom(4)
        self.mark = MARK_PREFIX + random
        self.name = random.hex()


def sections(
    run: Run, sender: int, body_bytes: int, more_fields: int = 0, more_bytes: int = 0, *, durable: bool = False
) -> tuple[bytes, bytes]:
    """Return the message up to the last 8 characters of its message-id, and from there up to its sequence number.

    The properties may have `more_fields` of `more_bytes` bytes between the two.
    """
    if body_bytes < BODY_MIN:
        raise ValueError(f"a body has at least {BODY_MIN} bytes, not {body_bytes}")
    message_id = f"load-{run.name}-{sender:07d}-"
    properties = bytes((0xA1, len(message_id) + 8)) + message_id.encode()
    head = wire.described(0x70, [wire.TRUE if durable else wire.NULL]) + b"\x00\x53\x73\xc0"
    head += bytes((len(properties) + 8 + more_bytes + 1, 1 + more_fields)) + properties
    filler = bytes(33 + i % 90 for i in range(body_bytes - BODY_MIN))
    data = b"\x00\x53\x75\xb0" + body_bytes.to_bytes(4, "big")
    return head, data + filler + run.mark + sender.to_bytes(4, "big")


def transfer_head(delivery_id: bytes, tag: bytes, message_format: bytes, more: bytes) -> bytes:
    """Encode a transfer of the link with handle 0 up to its payload, its frame header left out; not settled."""
    fields = [b"\x43", delivery_id, tag, message_format, wire.FALSE, more]
    return wire.described(wire.TRANSFER, fields)


class FrameTemplate:
    """A transfer frame with one message, all but its numbers and its time encoded once.

    The whole work per message is one call of `pack`, with the constant parts between what changes:
    `pack(start, n, tag_start, n, id_start, n as 8 hexadecimal digits, rest, n, now)`, where `n` is the number of the
    message and delivery. It is spelled out by `Sender.pump`, since a method around it would cost a fifth more.

    Attributes:
        pack: see above; returns the frame.
        size: bytes of one frame.
        start: frame header and transfer up to its delivery-id.
        tag_start: constructor and length of the delivery-tag.
        id_start: the rest of the transfer, and the message up to the last 8 characters of its message-id.
        rest: the message from there up to the sequence number in its body.
    """

    __slots__ = ("id_start", "pack", "rest", "size", "start", "tag_start")

    def __init__(self, run: Run, sender: int, body_bytes: int, *, durable: bool = False) -> None:
        head, self.rest = sections(run, sender, body_bytes, durable=durable)
        whole = transfer_head(wire.uint(0), wire.binary(bytes(4)), b"\x43", wire.FALSE)
        # descriptor (3 bytes), list8 with size and count (3), handle (1), constructor of the delivery-id (1)
        before_id = 8
        self.size = 8 + len(whole) + len(head) + 8 + len(self.rest) + 4 + 8
        self.start = wire.frame(bytes(self.size - 8))[:8] + whole[:before_id]
        self.tag_start = whole[before_id + 4 : before_id + 6]
        self.id_start = whole[before_id + 10 :] + head
        lengths = [len(part) for part in (self.start, self.tag_start, self.id_start, self.rest)]
        form = ">{}sI{}sI{}s8s{}sId".format(*lengths)
        self.pack: Callable[..., bytes] = struct.Struct(form).pack


class BatchTemplate:
    """The payload of a batch transfer (message format 0x80013700): one data section with a whole message for each."""

    __slots__ = ("_pack", "_rest", "_start", "count", "size")

    def __init__(self, run: Run, sender: int, body_bytes: int, count: int, *, durable: bool = False) -> None:
        head, self._rest = sections(run, sender, body_bytes, durable=durable)
        inner = len(head) + 8 + len(self._rest) + 4 + 8
        self._start = b"\x00\x53\x75\xb0" + inner.to_bytes(4, "big") + head
        self.count = count
        self.size = count * (len(self._start) - len(head) + inner)
        form = f">{len(self._start)}s8s{len(self._rest)}sId"
        self._pack: Callable[..., bytes] = struct.Struct(form).pack

    def payload(self, delivery: int, now: float) -> bytes:
        """Encode the batch with the number `delivery`: its messages follow those of the batch before."""
        pack, start, rest = self._pack, self._start, self._rest
        first = delivery * self.count
        return b"".join([pack(start, b"%08x" % n, rest, n, now) for n in range(first, first + self.count)])
