"""A delivery of several frames, cut while it is written (AMQP 1.0 part 2, section 2.6.14; AMQP 1.0 part 2, 2.6.14)."""

from __future__ import annotations

from typing import Any

from duobus.amqp.frames import transfer_head


class LargeDelivery:
    """What is left to write of one delivery that does not fit into one frame.

    It is cut when its next frame can be written and not before: frames made in advance would hold every message
    of 100 MB that waits for a slow peer a second time.

    Attributes:
        is_done: The last frame was given.
    """

    __slots__ = ("_head", "_last", "_middle", "_next", "_payload", "_pos", "_room", "_size", "is_done")

    def __init__(
        self,
        handle: int,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        state: bytes,
        head: bytes,
        payload: Any,
        body_max: int,
    ) -> None:
        """Make one.

        Args:
            handle: Of the link.
            delivery_id: Of the delivery.
            tag: Of the delivery.
            message_format: Of the delivery.
            settled: Whether it is sent settled.
            state: Encoded delivery state.
            head: First part of the message.
            payload: Second part, bytes or a view of some; kept by reference.
            body_max: Bytes that the peer takes in one frame after the frame's header.
        """
        self._next = transfer_head(handle, delivery_id, tag, message_format, settled, True, state)
        # The SDK for Python takes the tag, which is the lock token, from the last frame.
        self._middle = transfer_head(handle, delivery_id, tag, None, settled, True, state)
        self._last = transfer_head(handle, delivery_id, tag, None, settled, False, state)
        self._head = head
        self._payload = payload
        self._size = len(head) + len(payload)
        self._pos = 0
        self._room = body_max
        self.is_done = False

    def next_body(self) -> bytes:
        """Return the body of the next frame; not to be called when it is done."""
        start = self._next
        room = self._room - len(start)
        if self._pos and self._size - self._pos <= self._room - len(self._last):
            start = self._last
            room = self._size - self._pos
            self.is_done = True
        self._next = self._middle
        pos = self._pos
        self._pos = pos + room
        pos -= len(self._head)
        if pos >= 0:
            body: bytes = start + self._payload[pos : pos + room]
        else:
            part = self._head[pos:][:room]
            body = start + part + self._payload[: room - len(part)]
        return body
