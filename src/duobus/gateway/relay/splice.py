"""Two WebSockets joined: what comes in on one goes out on the other, as it comes and as fast as that side reads."""

from __future__ import annotations

from collections.abc import Callable

from duobus.gateway.relay.websocket_end import WebSocketEnd
from duobus.model.relay.frames import NO_CODE, Piece
from duobus.model.relay.limits import CLOSE_ABNORMAL, CLOSE_ERROR, CLOSE_NORMAL


class SplicedEnd:
    """What is told of one of two joined WebSockets, and has the other one do it.

    Args:
        own: The end of which it is told.
        other: The other end.
        counted: Is told how many messages have ended, and of bytes, with every piece that was handed on.
    """

    __slots__ = ("_counted", "_other", "_own")

    def __init__(self, own: WebSocketEnd, other: WebSocketEnd, counted: Callable[[int, int], None]) -> None:
        self._own = own
        self._other = other
        self._counted = counted

    def received(self, piece: Piece) -> None:
        """See Receiver."""
        self._other.send_piece(piece)
        self._counted(piece.is_last, len(piece.data))
        if self._other.is_full:
            self._other.hold(self._own)

    def ponged(self) -> None:
        """See Receiver: pings are answered by the relay, on each side for itself."""

    def ended(self, code: int, reason: str) -> None:
        """See Receiver: the code goes on, but for those that no frame may carry."""
        if code == CLOSE_ABNORMAL:
            self._other.close(CLOSE_ERROR, "The other side of the relay is gone.")
        else:
            self._other.close(CLOSE_NORMAL if code == NO_CODE else code, reason)
