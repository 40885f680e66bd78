"""One connection with one session and one link: what sender and receiver share.

Everything runs on one thread. The handshake blocks; afterwards the socket does not, and the loop of `exchange` calls
`feed` with what was read and `flush` when the socket takes bytes again.
"""

import socket
import ssl
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from benchmarks.load import wire
from benchmarks.load.wire import Described, Frame, LoadError, unpack_u32

WINDOW = 0x7FFFFFFF
MAX_FRAME = 1024 * 1024
READ_BYTES = 256 * 1024


class Target(NamedTuple):
    """Where to send to and receive from, and as whom; an empty `user` means SASL ANONYMOUS.

    `settles_second` is the receiver settle mode that receivers ask for: second (1) or, for peers that refuse it, first
    (0). In either they send their dispositions unsettled and wait for the peer to settle.

    `confirms_settlements` is False for a peer that answers no disposition of a receiver. Receivers then settle for
    themselves with their disposition, as clients of such a peer do, and nothing tells when the peer has written that.

    `authority` is the file of the certificate authority (PEM) that vouches for the peer; with one the connection is
    over TLS.

    `wants_durable` says that the peer keeps only what the header calls durable. Where it keeps everything the field is
    null, as the SDKs of Service Bus leave it; a message has the same size either way.
    """

    host: str
    port: int
    address: str
    user: str = ""
    password: str = ""
    hostname: str = ""
    settles_second: bool = True
    wants_durable: bool = False
    confirms_settlements: bool = True
    authority: str = ""


class Link(ABC):
    """A connection, session and link, opened by the constructor.

    Args:
        target: the peer and the entity.
        name: the name of link and container.
        is_receiver: the role of this end.
        timeout: seconds that any step of the handshake may take.

    Raises:
        LoadError: the peer refused a step, with its words.
        OSError: there is no connection.
    """

    __slots__ = (
        "_answered",
        "_is_tls",
        "_out",
        "_rest",
        "credit_limit",
        "frame_limit",
        "frames_out",
        "is_receiver",
        "log",
        "max_frame",
        "name",
        "settled",
        "sock",
        "target",
    )

    def __init__(self, target: Target, name: str, *, is_receiver: bool, timeout: float = 10.0) -> None:
        self.target = target
        self.name = name
        self.is_receiver = is_receiver
        self.settled = 0
        # (time, first, last) of each disposition: latencies and gaps are worked out after the run, not during it
        self.log: list[tuple[float, int, int]] = []
        self.max_frame = 512
        self.credit_limit = 0
        self.frame_limit = 0
        self.frames_out = 0
        self._rest = b""
        self._out = b""
        self._answered: set[int] = set()
        self._is_tls = bool(target.authority)
        self.sock = socket.create_connection((target.host, target.port), timeout=timeout)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._is_tls:
                context = ssl.create_default_context(cafile=target.authority)
                self.sock = context.wrap_socket(self.sock, server_hostname=target.hostname or target.host)
            self._handshake()
        except TimeoutError as error:
            self.sock.close()
            raise LoadError(f"{name}: the peer did not answer within {timeout:g} s") from error
        except BaseException:
            # the caller never gets to see this link, so nobody else could close its socket
            self.sock.close()
            raise
        self.sock.setblocking(False)

    # --- handshake ----------------------------------------------------------------------------------------------------

    def _handshake(self) -> None:
        self._sasl()
        host = self.target.hostname or self.target.host
        none = wire.NULL
        opening = [wire.string(self.name), wire.string(host), wire.uint(MAX_FRAME), wire.ushort(255)]
        window = wire.uint(WINDOW)
        self.sock.sendall(
            wire.AMQP_HEADER
            + wire.frame(wire.described(wire.OPEN, [*opening, *[none] * 6]))
            + wire.frame(wire.described(wire.BEGIN, [none, wire.uint(0), window, window, wire.uint(255), *[none] * 3]))
            + wire.frame(wire.described(wire.ATTACH, self._attach_fields()))
        )
        self._expect_header(wire.AMQP_HEADER)
        # a sender waits for its first credit too, so that the clock of a measurement starts with a link that can send
        while wire.ATTACH not in self._answered or (not self.is_receiver and self.credit_limit == 0):
            self._control(self._next_frame(), 0.0)

    def _sasl(self) -> None:
        self.sock.sendall(wire.SASL_HEADER)
        self._expect_header(wire.SASL_HEADER)
        mechanisms = self._next_frame()
        offered = mechanisms.field(0)
        offered = [offered] if isinstance(offered, str) else (offered or [])
        mechanism = "PLAIN" if self.target.user else "ANONYMOUS"
        if mechanisms.code != wire.SASL_MECHANISMS or mechanism not in offered:
            raise LoadError(f"{self.name}: the peer offers {offered}, not SASL {mechanism}")
        response = f"\0{self.target.user}\0{self.target.password}".encode() if self.target.user else b"load"
        host = wire.string(self.target.hostname or self.target.host)
        fields = [wire.symbol(mechanism), wire.binary(response), host]
        self.sock.sendall(wire.frame(wire.described(wire.SASL_INIT, fields), kind=1))
        outcome = self._next_frame()
        if outcome.code != wire.SASL_OUTCOME or outcome.field(0) != 0:
            raise LoadError(f"{self.name}: SASL {mechanism} failed with code {outcome.field(0)}")

    def _attach_fields(self) -> list[bytes]:
        address = [wire.string(self.target.address)]
        own = [wire.string(f"load-{self.name}")]
        source = wire.described(wire.SOURCE, address if self.is_receiver else own)
        target = wire.described(wire.TARGET, own if self.is_receiver else address)
        role = wire.TRUE if self.is_receiver else wire.FALSE
        # mode 1, second: a receiver settles only after the peer did, which is what workload B waits for
        modes = [wire.ubyte(0), wire.ubyte(1 if self.is_receiver and self.target.settles_second else 0)]
        count = wire.NULL if self.is_receiver else wire.uint(0)
        none = wire.NULL
        return [wire.string(self.name), wire.uint(0), role, *modes, source, target, none, none, count, *[none] * 4]

    def _read_more(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise LoadError(f"{self.name}: the peer closed the connection")
        self._rest += data

    def _expect_header(self, header: bytes) -> None:
        while len(self._rest) < 8:
            self._read_more()
        got, self._rest = self._rest[:8], self._rest[8:]
        if got != header:
            raise LoadError(f"{self.name}: the peer answered with the protocol header {got!r}")

    def _next_frame(self) -> Frame:
        while len(self._rest) < 8 or len(self._rest) < unpack_u32(self._rest)[0]:
            self._read_more()
        size = unpack_u32(self._rest)[0]
        frame = wire.read_frame(self._rest, 0, size)
        self._rest = self._rest[size:]
        return frame

    # --- while the load runs ------------------------------------------------------------------------------------------

    @abstractmethod
    def feed(self, data: bytes, now: float) -> None:
        """Take what was read from the socket at the time `now` (seconds)."""

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._out)

    def read(self) -> bytes | None:
        """Return what the socket has, READ_BYTES or a little more at most; None when it has nothing after all.

        Raises:
            LoadError: the connection broke or ended.
        """
        data: bytes | None
        try:
            data = self._read_records() if self._is_tls else self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise LoadError(f"{self.name}: {error}") from error
        if data == b"":
            raise LoadError(f"{self.name}: the peer closed the connection; {self.state()}")
        return data

    def _read_records(self) -> bytes | None:
        """Read record after record: TLS hands out one at a time, and reads are to be as large as those without TLS."""
        parts = []
        try:
            while part := self.sock.recv(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts) or None
        return b"".join(parts)

    def state(self) -> str:
        """Say how far the link has come, for the report of a failure."""
        return self.name

    def write(self, data: bytes) -> None:
        """Send, and keep what the socket does not take."""
        if self._out:
            self._out += data
            return
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        except OSError as error:
            raise LoadError(f"{self.name}: {error}") from error
        if sent < len(data):
            self._out = data[sent:]

    def flush(self) -> None:
        """Send what an earlier `write` had to keep."""
        data, self._out = self._out, b""
        self.write(data)

    def _control(self, frame: Frame, now: float) -> None:
        """Handle any frame that is no transfer; the hot loops come here for everything they do not know."""
        code = frame.code
        if code in (0, wire.OPEN, wire.BEGIN, wire.ATTACH):
            self._opened(frame)
        elif code == wire.FLOW:
            self._flow(frame)
        elif code == wire.DISPOSITION:
            first = frame.field(1)
            last = first if frame.field(2) is None else frame.field(2)
            self._disposition(bool(frame.field(0)), first, last, bool(frame.field(3)), frame.field(4), now)
        elif code in (wire.DETACH, wire.END, wire.CLOSE):
            error = frame.field(2 if code == wire.DETACH else 0)
            word = {wire.DETACH: "detached the link", wire.END: "ended the session", wire.CLOSE: "closed"}[code]
            raise LoadError(f"{self.name}: the peer {word}, {wire.error_text(error)}")
        else:
            raise LoadError(f"{self.name}: unexpected performative 0x{code:02x}")

    def _opened(self, frame: Frame) -> None:
        self._answered.add(frame.code)
        if frame.code == wire.OPEN:
            announced = frame.field(2)
            self.max_frame = min(MAX_FRAME, 0xFFFFFFFF if announced is None else announced)
        elif frame.code == wire.BEGIN:
            self.frame_limit = frame.field(2)
        elif frame.code == wire.ATTACH and frame.field(5 if self.is_receiver else 6) is None:
            # refused: a detach with the reason follows
            self._answered.discard(wire.ATTACH)

    def _flow(self, frame: Frame) -> None:
        next_in: int | None = frame.field(0)
        self.frame_limit = (next_in or 0) + frame.field(1)
        if frame.field(4) is not None and not self.is_receiver:
            self.credit_limit = (frame.field(5) or 0) + (frame.field(6) or 0)

    def _disposition(self, role: bool, first: int, last: int, settled: bool, state: Any, now: float) -> None:
        """Take a disposition of the peer: everything but accepted is a failure of the measurement."""
        if role == self.is_receiver or not settled:
            return
        if not isinstance(state, Described) or state.code != wire.ACCEPTED:
            raise LoadError(f"{self.name}: deliveries {first} to {last}: {wire.outcome_text(state)}")
        self.settled += last - first + 1
        self.log.append((now, first, last))

    def _fast_disposition(self, data: bytes, pos: int, now: float) -> bool:
        """Take the disposition whose list constructor is at `pos`; False leaves it to the generic decoder.

        It knows the encodings that brokers use for settled, accepted ranges: a boolean, two uints, true, accepted.
        """
        pos += 3 if data[pos] == 0xC0 else 9
        role = data[pos]
        if role != (0x42 if self.is_receiver else 0x41):
            return False
        pos += 1
        ctor = data[pos]
        if ctor == 0x70:
            first = unpack_u32(data, pos + 1)[0]
            pos += 5
        elif ctor == 0x52:
            first = data[pos + 1]
            pos += 2
        else:
            return False
        ctor = data[pos]
        if ctor == 0x70:
            last = unpack_u32(data, pos + 1)[0]
            pos += 5
        elif ctor == 0x52:
            last = data[pos + 1]
            pos += 2
        elif ctor == 0x40:
            last = first
            pos += 1
        else:
            return False
        if data[pos : pos + 4] != b"\x41\x00\x53\x24":
            return False
        self.settled += last - first + 1
        self.log.append((now, first, last))
        return True

    def close(self) -> None:
        """Detach and close in good order; a peer that does not answer within two seconds is left alone."""
        try:
            self.sock.settimeout(2.0)
            detach = [wire.uint(0), wire.TRUE, wire.NULL]
            self.sock.sendall(
                self._out
                + wire.frame(wire.described(wire.DETACH, detach))
                + wire.frame(wire.described(wire.CLOSE, [wire.NULL]))
            )
            while self._next_frame().code != wire.CLOSE:
                pass
        except (OSError, LoadError):
            # the measurement is over and verified; how the peer takes leave does not change it
            pass
        finally:
            self.sock.close()
