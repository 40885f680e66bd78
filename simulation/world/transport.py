"""One end of a simulated TCP connection: asyncio's transport over an in-memory pipe.

A pipe carries bytes in one direction and never loses or reorders them: trouble shows as a stall or a reset, as
in TCP. It holds a bounded number of bytes (what kernels on both sides would hold); what does not fit waits
in the transport's own buffer and makes the protocol pause. What a kernel would still do for a dead process
(send what it took over, then reset) runs outside every node.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any

from simulation.world.loop import INCARNATION, Incarnation

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.world.network import Route, SimulatedNetwork

DATA = 0
FIN = 1
RST = 2

# asyncio's own default.
_HIGH_WATER = 64 * 1024


class Pipe:
    """One direction of a connection: segments under way, each with its time of arrival.

    Attributes:
        cut: True stalls this one pipe, whatever its route does.
        silent: True: nothing that comes to a dead end is answered with a reset (somebody on the way forgot us).
        sink: The end that reads; set right after construction.
        source: The end that writes; set right after construction.
    """

    __slots__ = ("_inflight", "_last", "_network", "_timer", "cut", "held", "route", "silent", "sink", "source")

    sink: SimulatedTransport
    source: SimulatedTransport

    def __init__(self, network: SimulatedNetwork, route: Route) -> None:
        self._network = network
        self.route = route
        self._inflight: deque[tuple[float, int, bytes]] = deque()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.cut = False
        self.silent = False

    def room(self) -> int:
        """Return how many bytes can be taken over now."""
        return max(0, self._network.capacity - self.held)

    def send(self, kind: int, data: bytes = b"") -> None:
        """Put a segment under way; data may be split in two that travel separately."""
        rng = self._network.random
        if len(data) > 1 and rng.random() < self._network.split_probability:
            at = rng.randrange(1, len(data))
            self._put(kind, data[:at])
            data = data[at:]
        self._put(kind, data)

    def _put(self, kind: int, data: bytes) -> None:
        self.held += len(data)
        self._last = max(self._last, self._network.loop.time() + self.route.draw_latency())
        self._inflight.append((self._last, kind, data))
        self.resume()

    def resume(self) -> None:
        """Go on delivering, unless something blocks; called after every change of what blocks."""
        if self._timer is None and self._inflight and not self.cut and not self.route.cut:
            when = max(self._inflight[0][0], self.route.clogged_until)
            self._timer = self._network.loop.call_at(when, self._arrive, context=self._network.context)

    def _arrive(self) -> None:
        self._timer = None
        now = self._network.loop.time()
        blocked = self.cut or self.route.cut or self.route.clogged_until > now
        while not blocked and self._inflight and self._inflight[0][0] <= now:
            _, kind, data = self._inflight.popleft()
            self.sink.receive(kind, data)
        self.resume()

    def taken(self, size: int) -> None:
        """Give back ``size`` bytes of room: the reader has them."""
        self.held -= size
        self.source.schedule_flush()

    def clear(self) -> None:
        """Forget what is under way."""
        self.held -= sum(len(data) for _, _, data in self._inflight)
        self._inflight.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SimulatedTransport(asyncio.Transport):
    """asyncio's Transport as protocols know it; made by SimulatedNetwork only.

    Attributes:
        life: The life of the node it belongs to; None for the test driver.
        gone: True when this end no longer exists, for its own node or at all.
    """

    def __init__(
        self, network: SimulatedNetwork, context: Context, outgoing: Pipe, incoming: Pipe, extra: dict[str, Any]
    ) -> None:
        super().__init__(extra)
        self._network = network
        self._context = context
        self.life: Incarnation | None = context.get(INCARNATION)
        self._out = outgoing
        self._in = incoming
        outgoing.source = self
        incoming.sink = self
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[tuple[int, bytes]] = deque()
        #: What waits to be handed to the pipe, as it was written, and its bytes: large messages are not copied again.
        self._outbox: deque[bytes] = deque()
        self._outbox_size = 0
        self._high = _HIGH_WATER
        self._low = _HIGH_WATER // 4
        self._pump_due = self._flush_due = False
        self._paused_reading = self._paused_protocol = False
        self._closing = self._finishing = self._eof_written = self._reset_seen = False
        self.gone = False

    # --- the network's side ---

    def start(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Make the protocol, tell it, and begin to read; runs in the context of the owner."""
        protocol = self._protocol = factory()
        protocol.connection_made(self)
        self._schedule_pump()
        return protocol

    def start_unless_gone(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Start an accepted end, unless the connection broke before the server looked."""
        if not self.gone:
            self.start(factory)

    def call_in_context(self, callback: Callable[..., object], *args: object) -> None:
        """Schedule a callback of the owner's; dropped when its node has died."""
        self._network.loop.call_soon(callback, *args, context=self._context)

    def receive(self, kind: int, data: bytes) -> None:
        """Take a segment that has arrived at this end's kernel."""
        if self.gone:
            # Without an answer nothing is acknowledged, so the writer's pipe stays full.
            if kind == DATA and not self._in.silent and self._in.route.target.powered:
                self._out.send(RST)
            return
        self._inbox.append((kind, data))
        self._schedule_pump()
        if kind == RST:
            self._reset_seen = True
            if self._outbox:
                # A writer finds out at once, even one that is closing or does not read.
                self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def vanish(self, error: Exception | None) -> None:
        """Cease to exist without a word to the peer; the protocol learns of ``error``."""
        self._drop()
        self._network.forget(self)
        self.call_in_context(self._tell_lost, error)

    def die(self, farewell: bool) -> None:
        """The node was killed: no callback any more; its kernel, if it lives, says farewell to the peer."""
        if self.gone:
            return
        kind = RST if any(arrived == DATA for arrived, _ in self._inbox) else FIN
        self._drop()
        if farewell:
            self._out.send(kind)
        self._network.forget(self)

    def _drop(self) -> None:
        self.gone = self._closing = self._finishing = True
        self._forget_outbox()
        self._in.held -= sum(len(data) for _, data in self._inbox)
        self._inbox.clear()

    def schedule_flush(self) -> None:
        """There is room in the pipe; hand over what waits, soon."""
        if self._outbox and not self._flush_due:
            self._flush_due = True
            self.call_in_context(self._flush)

    # --- reading ---

    def _schedule_pump(self) -> None:
        if self._inbox and self._protocol is not None and not (self._pump_due or self._paused_reading or self._closing):
            self._pump_due = True
            self.call_in_context(self._pump)

    def _pump(self) -> None:
        """Hand one piece of the stream to the protocol."""
        self._pump_due = False
        if not self._inbox or self._paused_reading or self._closing:
            return
        kind = self._inbox[0][0]
        try:
            if kind == DATA:
                self._deliver(self._take_chunk())
            elif kind == FIN:
                self._inbox.popleft()
                if not self._protocol.eof_received():  # type: ignore[union-attr]
                    self.close()
            else:
                self._inbox.popleft()
                self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        except Exception as error:  # noqa: BLE001 - a protocol may raise anything; asyncio ends the connection then
            self._network.loop.call_exception_handler(
                {"message": "protocol raised", "exception": error, "transport": self, "protocol": self._protocol}
            )
            self._fail(error)
        self._schedule_pump()

    def _take_chunk(self) -> bytes:
        """Take all that has arrived, or a random part of it, across the borders of segments."""
        inbox = self._inbox
        parts: list[bytes] = []
        while inbox and inbox[0][0] == DATA:
            parts.append(inbox.popleft()[1])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        rng = self._network.random
        if len(data) > 1 and rng.random() < self._network.split_probability:
            at = rng.randrange(1, len(data))
            inbox.appendleft((DATA, data[at:]))
            data = data[:at]
        return data

    def _deliver(self, data: bytes) -> None:
        self._in.taken(len(data))
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)  # type: ignore[union-attr]
            return
        while data and not self._closing:
            space = memoryview(protocol.get_buffer(len(data)))
            size = min(len(data), len(space))
            space[:size] = data[:size]
            data = data[size:]
            protocol.buffer_updated(size)

    def pause_reading(self) -> None:
        """Stop handing data to the protocol."""
        self._paused_reading = True

    def resume_reading(self) -> None:
        """Go on handing data to the protocol."""
        self._paused_reading = False
        self._schedule_pump()

    def is_reading(self) -> bool:
        """Tell whether the protocol gets data."""
        return not self._paused_reading and not self._closing

    # --- writing ---

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes; after the end of the connection they are dropped, as asyncio does.

        Raises:
            RuntimeError: ``write_eof`` was called before.
        """
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if self._reset_seen:
            self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self._outbox.append(bytes(data))
        self._outbox_size += len(self._outbox[-1])
        self._flush()
        if self._outbox_size > self._high and not self._paused_protocol:
            self._paused_protocol = True
            self._protocol.pause_writing()  # type: ignore[union-attr]

    def write_eof(self) -> None:
        """Close the writing half once everything written is out."""
        if not (self._eof_written or self._closing):
            self._eof_written = True
            self._flush()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def _flush(self) -> None:
        self._flush_due = False
        if self._finishing:
            return
        size = min(self._out.room(), self._outbox_size)
        if size:
            self._out.send(DATA, self._take_outbox(size))
        if self._paused_protocol and self._outbox_size <= self._low:
            self._paused_protocol = False
            self._protocol.resume_writing()  # type: ignore[union-attr]
        if not self._outbox:
            if self._closing:
                self._finish(None)
            elif self._eof_written:
                self._out.send(FIN)

    def _take_outbox(self, size: int) -> bytes:
        """Take so many bytes off, which wait here."""
        self._outbox_size -= size
        parts: list[bytes] = []
        while size:
            data = self._outbox.popleft()
            if len(data) > size:
                self._outbox.appendleft(data[size:])
                data = data[:size]
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _forget_outbox(self) -> None:
        self._outbox.clear()
        self._outbox_size = 0

    def get_write_buffer_size(self) -> int:
        """Return the bytes written but not yet taken over by the kernel."""
        return self._outbox_size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return (low, high) water marks in bytes."""
        return (self._low, self._high)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks as asyncio does."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    # --- the end ---

    def close(self) -> None:
        """Send what is buffered, then end; ``connection_lost(None)`` follows."""
        if not self._closing:
            self._closing = True
            if not self._outbox:
                self._finish(None)

    def abort(self) -> None:
        """End at once; what is buffered is lost and the peer sees a reset."""
        self._fail(None)

    def is_closing(self) -> bool:
        """Tell whether the end has begun."""
        return self._closing

    def _fail(self, error: Exception | None) -> None:
        if not self._finishing:
            self._closing = True
            self._forget_outbox()
            self._finish(error, RST)

    def _finish(self, error: Exception | None, kind: int = FIN) -> None:
        self._finishing = True
        self.call_in_context(self._end, error, kind)

    def _end(self, error: Exception | None, kind: int) -> None:
        if not self.gone:
            # A kernel that closes a socket with unread data resets the connection.
            unread = any(arrived == DATA for arrived, _ in self._inbox)
            if not self._reset_seen and not (self._eof_written and kind == FIN and not unread):
                self._out.send(RST if unread else kind)
            self._drop()
            self._network.forget(self)
            self._tell_lost(error)

    def _tell_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol go on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol  # type: ignore[return-value]
