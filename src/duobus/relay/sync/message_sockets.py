"""A WebSocket whose binary message goes piece by piece, for threads: see ``duobus.relay.aio.message_sockets``.

Both modules are written by hand.
"""

from __future__ import annotations

from duobus.model.relay.limits import CLOSE_NORMAL
from duobus.relay.aio import message_sockets as asynchronous
from duobus.relay.background_loop import loop


class MessageSocket:
    """One open WebSocket that carries a text message and a binary message each way; see the counterpart."""

    def __init__(self, socket: asynchronous.MessageSocket) -> None:
        self._socket = socket
        self.endpoint = socket.endpoint

    def receive_text(self) -> str | None:
        """Return the text message; None when the connection has ended without one."""
        return loop.run(self._socket.receive_text())

    def receive_piece(self) -> bytes:
        """Return the next piece of the binary message; nothing at its end."""
        return loop.run(self._socket.receive_piece())

    def send_text(self, text: str) -> None:
        """Send the text message."""
        loop.run(self._socket.send_text(text))

    def send_piece(self, data: bytes, *, is_first: bool, is_last: bool) -> None:
        """Send a piece of the binary message; wait while the relay reads slowly."""
        loop.run(self._socket.send_piece(data, is_first=is_first, is_last=is_last))

    def finish(self, seconds: float) -> None:
        """Wait until the relay has taken everything and closes, and close then."""
        loop.run(self._socket.finish(seconds))

    def close(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Close the connection; do nothing if it has ended."""
        loop.run(self._socket.close(code, reason))
