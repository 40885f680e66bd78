"""What one connection may cost at a time; the rest follows a millisecond later.

A message of somebody else needs four or five turns of the loop from its sender to its receiver, and each of them waits
for whatever else is done in it. So a burst is cut into slices, and between two slices there is time for a whole message
of somebody else: cut into turns alone, it would meet a slice in each of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from duobus.gateway.waits import REST_S

if TYPE_CHECKING:
    from duobus.gateway.amqp.deliveries import DeliveryRun
    from duobus.gateway.amqp.links.link import Endpoint

#: Frames of a connection, other than messages and their settlements, that are taken at a time. Begins, attaches,
#: detaches and ends count several times: it is one of them.
WORK_MAX = 24
#: Messages that a lost connection gives back at a time.
RELEASED_MAX = 50
#: Closing a link costs as much as giving back so many messages.
CLOSING = 5
#: Messages that a receiving link asks for before others are written, and how many to begin with: a client may give any
#: credit and read nothing.
ASKED_MAX, ASKED_FIRST = 1000, 32


class SlowStart:
    """How many messages a receiving link asks for at a time: twice as many whenever its client shows that it reads.

    Attributes:
        asked: So many.
        low: Where links share the pace, each of them asks again when so many are left: half of what it asked for at
            first, until it may ask for all. Otherwise each would ask anew whenever the others have proved something.
    """

    __slots__ = ("_is_proving", "asked", "low")

    def __init__(self) -> None:
        self.asked = ASKED_FIRST
        self.low = ASKED_FIRST // 2
        # Whether messages were written since this was raised.
        self._is_proving = False

    @property
    def is_full(self) -> bool:
        """Whether the client may have as many as anybody."""
        return self.asked == ASKED_MAX

    def wrote(self) -> None:
        """Messages were written for the client."""
        self._is_proving = True

    def on_progress(self) -> bool:
        """The client has settled, or renewed its credit; True when that has made the pace full."""
        if not self._is_proving or self.is_full:
            return False
        self._is_proving = False
        self.asked = min(2 * self.asked, ASKED_MAX)
        if self.is_full:
            self.low = ASKED_MAX // 2
        return self.is_full


def widen(transport: asyncio.Transport, high: int) -> None:
    """Let a connection buffer up to ``high`` bytes, and its socket as much as the system gives it."""
    transport.set_write_buffer_limits(high=high)
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)


def work_off(loop: asyncio.AbstractEventLoop, steps: Iterator[int]) -> None:
    """Do steps, each of which says what it cost, in as many slices as they need."""
    cost = 0
    for step in steps:
        cost += step
        if cost >= RELEASED_MAX:
            loop.call_later(REST_S, work_off, loop, steps)
            return


def ending(endpoints: list[Endpoint], unsettled: list[tuple[DeliveryRun, list[tuple[int, int]]]]) -> Iterator[int]:
    """The steps of a lost connection: its links are closed, then what they delivered goes back, counted (I20)."""
    for endpoint in endpoints:
        endpoint.close()
        yield CLOSING
    for run, ranges in unsettled:
        source_no = run.link.queue.source_no
        unlock = run.handle.unlock
        for first, number in ranges:
            for offset in range(0, number, RELEASED_MAX):
                part = min(RELEASED_MAX, number - offset)
                unlock(source_no, run.prefix, [(first + offset, part)], counted=True)
                yield part
