"""TlsEngine: the server's side of one TLS connection, without a socket: bytes in, bytes out.

OpenSSL works on two buffers in memory. What a socket has brought is put into the first one in pieces, and what OpenSSL
says is taken from the second one after each piece, because such a buffer never gets smaller again: a connection keeps
the memory of the largest piece that it ever had.
"""

from __future__ import annotations

import ssl
from typing import Final

#: Bytes that are read from a socket at a time, as many as asyncio reads of a connection without TLS.
READ_BYTES: Final = 256 << 10
#: Bytes that are encrypted or decrypted before the buffer of OpenSSL is emptied: two full records.
PIECE_BYTES: Final = 32 << 10
#: Bytes that OpenSSL may answer by itself after the handshake: tickets, alerts, refusals of a renegotiation. Whoever
#: makes it say more wants to fill the memory of the server, or to keep its processor busy.
OWN_OUTPUT_MAX: Final = 16 << 10


class TlsBuffers:
    """Room for what is read at once; all connections of one event loop share it.

    Attributes:
        received: Where a socket puts what it has.
        decrypted: Where that is decrypted to. No plaintext is longer than its records.
    """

    __slots__ = ("decrypted", "received")

    def __init__(self) -> None:
        self.received = memoryview(bytearray(READ_BYTES))
        # A part of a record may wait from the read before.
        self.decrypted = memoryview(bytearray(READ_BYTES + PIECE_BYTES))


class TlsEngine:
    """One connection.

    Attributes:
        ssl_object: The connection as the ``ssl`` module sees it.
        is_open: The handshake is done.
        has_ended: The other side has said that it sends nothing any more (``close_notify``).
    """

    __slots__ = ("_decrypted", "_incoming", "_outgoing", "_own_output", "has_ended", "is_open", "ssl_object")

    def __init__(self, context: ssl.SSLContext, buffers: TlsBuffers) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._decrypted = buffers.decrypted
        self._own_output = 0
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        self.has_ended = False

    def shake_hands(self, data: memoryview) -> bytes:
        """Take bytes of the handshake, PIECE_BYTES at most, and return the answer; ``is_open`` says when it is done.

        Raises:
            ssl.SSLError: The handshake has failed; ``take_output`` has the alert.
        """
        self._incoming.write(data)
        try:
            self.ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read()
        self.is_open = True
        return self._outgoing.read()

    def receive(self, data: memoryview | bytes) -> bytes:
        """Take bytes from the socket, at most READ_BYTES, and return what they say, as far as records are whole.

        Raises:
            ssl.SSLError: The bytes are no TLS, were changed on their way, or make this side answer too much;
                ``take_output`` has the alert.
        """
        incoming, decrypted, tls = self._incoming, self._decrypted, self.ssl_object
        size = 0
        for pos in range(0, len(data) or 1, PIECE_BYTES):
            incoming.write(data[pos : pos + PIECE_BYTES])
            try:
                # A record is taken from the buffer as a whole: with nothing there, and nothing left of a record,
                # OpenSSL need not be asked, which would answer with an exception.
                while incoming.pending or tls.pending():
                    # With a buffer, the number of bytes that were read.
                    got = tls.read(len(decrypted) - size, decrypted[size:])
                    if not got:
                        self.has_ended = True
                        return bytes(decrypted[:size])
                    size += got  # type: ignore[operator]
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                # How the same looks after ``end``.
                self.has_ended = True
                break
        return bytes(decrypted[:size])

    def take_output(self) -> bytes:
        """Return what OpenSSL has to say by itself.

        Raises:
            ssl.SSLError: The other side makes it say more than OWN_OUTPUT_MAX.
        """
        if not self._outgoing.pending:
            return b""
        output = self._outgoing.read()
        if self.is_open:
            self._own_output += len(output)
            if self._own_output > OWN_OUTPUT_MAX:
                raise ssl.SSLError("the other side makes the server answer without end")
        return output

    def encrypt(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Return the records of some bytes, as few as can be."""
        tls, outgoing = self.ssl_object, self._outgoing
        if len(data) <= PIECE_BYTES:
            tls.write(data)
            return [outgoing.read()]
        view = memoryview(data)
        records = []
        for pos in range(0, len(view), PIECE_BYTES):
            tls.write(view[pos : pos + PIECE_BYTES])
            records.append(outgoing.read())
        return records

    def end(self) -> bytes:
        """Say that nothing follows any more (``close_notify``), and return the record of that."""
        try:
            self.ssl_object.unwrap()
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # The other side is in the middle of something that will not be heard.
            self.has_ended = True
        return self._outgoing.read()
