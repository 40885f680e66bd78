"""Writing what belongs to many links of a session in one pass: a turn has one or two deliveries for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.amqp.frames import MASK, TransferTemplate
from duobus.codec import digit_runs

if TYPE_CHECKING:
    from duobus.amqp.link import Link
    from duobus.amqp.session import Session


def send_shared(
    session: Session,
    parts: list[tuple[Link, int]],
    tags: list[tuple[bytes, int, int]],
    heads: list[bytes],
    payloads: list[Any],
) -> int:
    """Write unsettled deliveries of several links, as ``Link.send_run`` does for one; return the first delivery id.

    Args:
        session: Of all the links.
        parts: Whose they are, in order: (link, number); each has the credit, and is attached.
        tags: Of all deliveries, in order: (first 8 bytes, counter of the first, number); each delivery adds one. No
            part has deliveries of two of these.
        heads: Header and annotations of each message.
        payloads: Bare message of each, of the same number.
    """
    n = len(heads)
    start = session.next_delivery_id
    connection = session.connection
    room = connection.peer_frame_max - TransferTemplate.OVERHEAD_MAX
    if not session.can_write(n) or start + n > MASK or max(map(len, heads)) + max(map(len, payloads)) > room:
        _send_apart(parts, tags, heads, payloads)
        return start
    tail = TransferTemplate.TAIL_UNSETTLED
    templates: list[TransferTemplate] = []
    for link, number in parts:
        link.delivery_count = (link.delivery_count + number) & MASK
        link.credit -= number
        if number == 1:
            templates.append(link.template)
        else:
            templates += [link.template] * number
    sizes = [
        template.overhead + len(head) + len(payload)
        for template, head, payload in zip(templates, heads, payloads, strict=True)
    ]
    prefixes: list[bytes] = []
    counters: list[int] = []
    for prefix, first, number in tags:
        prefixes += [b"\xa0\x10" + prefix] * number
        counters += digit_runs(first, number)
    # A frame's start, its message's head and its payload, in turn.
    pieces = [b""] * (3 * n)
    pieces[0::3] = [
        template.pack(size, template.head, delivery_id, tag, counter, tail)
        for delivery_id, (template, size, tag, counter) in enumerate(
            zip(templates, sizes, prefixes, counters, strict=True), start
        )
    ]
    pieces[1::3] = heads
    pieces[2::3] = payloads
    connection.out.extend(pieces)
    connection.output_size += sum(sizes)
    session.wrote_transfers(n)
    session.next_delivery_id = (start + n) & MASK
    return start


def _send_apart(
    parts: list[tuple[Link, int]], tags: list[tuple[bytes, int, int]], heads: list[bytes], payloads: list[Any]
) -> None:
    """The same link by link, where the window, a large message or the end of the ids asks for a closer look."""
    at = 0
    left = iter(tags)
    prefix, first, number_of_tags = next(left)
    for link, number in parts:
        while not number_of_tags:
            prefix, first, number_of_tags = next(left)
        end = at + number
        link.send_run(prefix, first, heads[at:end], payloads[at:end], False)
        at = end
        first += number
        number_of_tags -= number
