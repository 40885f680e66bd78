"""Writing what belongs to many links of a session in one pass: a turn has one or two deliveries for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.amqp.frames import MASK, TransferTemplate

if TYPE_CHECKING:
    from duobus.amqp.link import Link
    from duobus.amqp.session import Session


def send_shared(
    session: Session,
    parts: list[tuple[Link, int]],
    prefix: bytes,
    first: int,
    heads: list[bytes],
    payloads: list[bytes],
) -> int:
    """Write unsettled deliveries of several links, as ``Link.send_run`` does for one; return the first delivery id.

    Args:
        session: Of all the links.
        parts: Whose they are, in order: (link, number); each has the credit, and is attached.
        prefix: First 8 bytes of every tag.
        first: Counter of the first tag; each delivery adds one.
        heads: Header and annotations of each message.
        payloads: Bare message of each, of the same number.
    """
    n = len(heads)
    start = delivery_id = session.next_delivery_id
    connection = session.connection
    room = connection.peer_frame_max - TransferTemplate.OVERHEAD_MAX
    if not session.can_write(n) or start + n > MASK or max(map(len, heads)) + max(map(len, payloads)) > room:
        at = 0
        for link, number in parts:
            end = at + number
            link.send_run(prefix, first + at, heads[at:end], payloads[at:end], False)
            at = end
        return start
    tag = b"\xa0\x10" + prefix
    tail = TransferTemplate.TAIL_UNSETTLED
    append = connection.out.append
    counter = first
    index = written = 0
    for link, number in parts:
        template = link.template
        pack = template.pack
        constant = template.head
        overhead = template.overhead
        for _ in range(number):
            head = heads[index]
            payload = payloads[index]
            size = overhead + len(head) + len(payload)
            append(pack(size, constant, delivery_id, tag, counter, tail))
            append(head)
            append(payload)
            delivery_id += 1
            counter += 1
            index += 1
            written += size
        link.delivery_count = (link.delivery_count + number) & MASK
        link.credit -= number
    connection.output_size += written
    session.wrote_transfers(n)
    session.next_delivery_id = delivery_id & MASK
    return start
