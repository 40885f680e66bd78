"""SocketTransport: the transport of a connection, which the event loop of a server calls when bytes are there.

What lies above is a protocol that takes bytes, or one with a buffer of its own: a ``TlsTransport``.

asyncio's own transports do the same. For each read there are an entry in a list of what is ready, a handle in a line of
handles, and a context in which it is run; the loop of a server calls what watches a socket at once
(``server/turn_selector.py``). Where messages come one at a time that is a part of what each costs (decision 0071).

As with asyncio's: what the socket does not take waits, and the protocol is told when too much does; a connection that
is lost is told to the protocol once, never within a call of the protocol's own.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Final, Protocol, cast

#: Of one read. What a client sends in a burst comes in few reads, and each connection has its turn.
READ_BYTES: Final = 256 << 10
#: Bytes that wait for a socket beyond which the protocol is told to pause, until another limit is set; as asyncio's.
HIGH_BYTES: Final = 64 << 10


class WatchingLoop(Protocol):
    """An event loop that calls what watches a file at once, without a handle."""

    def watch(self, file: int, events: int, call: Callable[[int], None]) -> None:
        """See ``TurnLoop.watch``."""

    def unwatch(self, file: int) -> None:
        """See ``TurnLoop.unwatch``."""


class SocketTransport(asyncio.Transport):
    """One connection.

    Args:
        loop: A loop that watches; see ``watching``.
        sock: The connection, which does not block; this owns it from now on.
        protocol: Whom to feed.
    """

    __slots__ = (
        "_events",
        "_exception",
        "_high",
        "_is_closing",
        "_is_ended",
        "_is_paused",
        "_is_reading",
        "_loop",
        "_low",
        "_number",
        "_protocol",
        "_reads_into",
        "_sock",
        "_unsent",
        "_unsent_bytes",
        "_watching",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        extra: dict[str, Any] = {"socket": sock}
        for name, ask in (("sockname", sock.getsockname), ("peername", sock.getpeername)):
            try:
                extra[name] = ask()
            except OSError:
                # The peer is gone already, which the first read tells.
                extra[name] = None
        super().__init__(extra)
        self._loop = loop
        self._watching = cast("WatchingLoop", loop)
        self._sock = sock
        self._number = sock.fileno()
        self.set_protocol(protocol)
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        # What the socket has not taken, and whether the protocol was told that this is much.
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_paused = False
        self._is_reading = True
        # Nothing more is read or written; and the protocol has been, or is about to be, told so.
        self._is_closing = self._is_ended = False
        # What the socket is watched for; 0 for nothing.
        self._events = 0
        protocol.connection_made(self)
        self._watch()

    # -- the side of the loop -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the loop watch for what is wanted of the socket now."""
        events = EVENT_READ if self._is_reading and not self._is_closing else 0
        if self._unsent:
            events |= EVENT_WRITE
        if self._is_ended:
            events = 0
        if events == self._events:
            return
        self._events = events
        if events:
            self._watching.watch(self._number, events, self._on_ready)
        else:
            self._watching.unwatch(self._number)

    def _on_ready(self, events: int) -> None:
        # What came before it in this turn may have ended or paused it.
        events &= self._events
        if events == EVENT_READ:
            self._read()
        elif events:
            self._send_rest()
            if events & self._events & EVENT_READ:
                self._read()

    def _read(self) -> None:
        buffered, data = self._reads_into, b""
        try:
            if buffered is None:
                data = self._sock.recv(READ_BYTES)
                number = len(data)
            else:
                number = self._sock.recv_into(buffered.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        try:
            if not number:
                self._on_eof()
            elif buffered is None:
                self._protocol.data_received(data)
            else:
                buffered.buffer_updated(number)
        except Exception as error:  # noqa: BLE001 - as asyncio does: a fault in one connection ends that connection
            self._fail(error)

    def _on_eof(self) -> None:
        if self._protocol.eof_received():
            self.pause_reading()
        else:
            self.close()

    def _send_rest(self) -> None:
        """Send of what waits as much as the socket takes."""
        unsent = self._unsent
        try:
            while unsent:
                number = self._sock.send(unsent[0])
                self._unsent_bytes -= number
                if number < len(unsent[0]):
                    unsent[0] = unsent[0][number:]
                    break
                unsent.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error)
            return
        if self._is_paused and self._unsent_bytes <= self._low:
            self._is_paused = False
            try:
                self._protocol.resume_writing()
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(error)
                return
        if not unsent and self._is_closing:
            self._end(None)
        else:
            self._watch()

    def _fail(self, error: Exception) -> None:
        """End the connection for a fault of its protocol."""
        about: dict[str, Any] = {"message": "a connection failed", "exception": error, "protocol": self._protocol}
        self._loop.call_exception_handler(about | {"transport": self})
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        """Drop what waits, and have the protocol told at the next turn."""
        if self._is_ended:
            return
        self._is_closing = self._is_ended = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._watch()
        self._loop.call_soon(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        # The protocol holds this object: without the way back, neither waits for the collector.
        protocol = self._protocol
        self.set_protocol(_NOBODY)
        try:
            protocol.connection_lost(error)
        finally:
            self._sock.close()

    # -- the side of the protocol -------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio.WriteTransport: sent at once, as far as the socket takes it."""
        if self._is_closing or not data:
            return
        if self._unsent:
            self._keep(data)
            return
        try:
            number = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            number = 0
        except OSError as error:
            self._end(error)
            return
        if number < len(data):
            self._keep(memoryview(data)[number:])
            self._watch()

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        # What is no ``bytes`` may change once this has returned.
        kept = memoryview(bytes(data))
        self._unsent.append(kept)
        self._unsent_bytes += len(kept)
        if self._unsent_bytes > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio.WriteTransport."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio.WriteTransport: a connection is closed as a whole."""
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.WriteTransport."""
        if high is None:
            high = HIGH_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        if self._unsent_bytes > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio.WriteTransport."""
        return self._low, self._high

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio.BaseTransport."""
        self._protocol = cast("asyncio.Protocol", protocol)
        self._reads_into = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio.BaseTransport."""
        return self._protocol

    def is_reading(self) -> bool:
        """See asyncio.ReadTransport."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._is_reading = False
        self._watch()

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._is_reading = True
        self._watch()

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._is_closing

    def close(self) -> None:
        """Send what waits, then end the connection."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._unsent:
            self._watch()
        else:
            self._end(None)

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self._end(None)


#: The protocol of a connection that is lost.
_NOBODY: Final = asyncio.Protocol()


def watches(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop calls what watches a socket at once: that of a server does."""
    return hasattr(loop, "watch")
