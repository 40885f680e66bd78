"""The control channel of one listener: what the relay asks of it, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from duobus.auth.authorizer import Grant
from duobus.gateway.relay.listeners import Vigil
from duobus.gateway.relay.usage import UsageCounter
from duobus.gateway.relay.websocket_end import WebSocketEnd
from duobus.model.relay.frames import TEXT, Piece
from duobus.model.relay.limits import (
    CHANNEL_BODY_BYTES_MAX,
    CHANNEL_UNREAD_BYTES_MAX,
    CLOSE_ERROR,
    CLOSE_TOO_LARGE,
    MESSAGE_BYTES_MAX,
)
from duobus.model.relay.messages import (
    Accept,
    MalformedMessage,
    RemoteEndpoint,
    Rendezvous,
    RenewToken,
    Request,
    Response,
    to_relay,
)

#: A response and its body; None for a response that HTTP does not allow.
Answer = tuple[Response, bytes] | None


class ListenerAbout(NamedTuple):
    """What is known of a listener from its handshake.

    Attributes:
        base: Scheme and host by which the listener has come, for addresses of rendezvous.
        remote: Where the listener is.
        id: The id that the listener has chosen; empty where it has chosen none.
        tracking_id: For the log.
        since_ms: When it has come.
    """

    base: str
    remote: RemoteEndpoint | None
    id: str
    tracking_id: str
    since_ms: int


class ChannelOwner(Protocol):
    """Who keeps control channels."""

    def renewed(self, channel: ControlChannel, token: str) -> None:
        """A listener shows a fresh token."""

    def lost(self, channel: ControlChannel) -> None:
        """A listener has closed its channel, or is gone."""


class ControlChannel:
    """One listener.

    Attributes:
        about: What its handshake has told.
        grant: What its token allows; renewed by itself.
    """

    __slots__ = ("_body", "_counted_s", "_expected", "_owner", "_seconds", "_start_ms", "_text", "_waiting", "about",
                 "end", "grant", "vigil")  # fmt: skip

    def __init__(
        self,
        end: WebSocketEnd,
        owner: ChannelOwner,
        grant: Grant,
        about: ListenerAbout,
        seconds: UsageCounter,
        now_ms: int,
    ) -> None:
        self.end = end
        self.grant = grant
        self.about = about
        self.vigil = Vigil(now_ms)
        self._owner = owner
        self._seconds = seconds
        self._start_ms = now_ms
        self._counted_s = 0
        self._text = bytearray()
        # The response whose body is the next binary message, and what has come of that.
        self._expected: Response | None = None
        self._body = bytearray()
        self._waiting: dict[str, Callable[[Answer], None]] = {}

    @property
    def is_fit(self) -> bool:
        """Whether a sender may be sent to it."""
        return self.end.is_open and self.end.unsent_bytes < CHANNEL_UNREAD_BYTES_MAX

    def count_time(self, now_ms: int) -> None:
        """Meter the seconds that the listener has begun since the last call."""
        begun = (now_ms - self._start_ms) // 1000 + 1
        if begun > self._counted_s:
            self._seconds.add(begun - self._counted_s, 0)
            self._counted_s = begun

    # -- what the relay asks ----------------------------------------------------------------------------------------

    def send(self, message: Accept | Request | Rendezvous, body: bytes = b"") -> None:
        """Send a message, and its body right behind it."""
        if isinstance(message, Request) and message.has_body:
            self.end.send_with_body(message.to_json(), body)
        else:
            self.end.send_text(message.to_json())
        if self.end.unsent_bytes > CHANNEL_UNREAD_BYTES_MAX:
            # It does not read; what was sent to it is lost, as it would be anyway.
            self.end.abort()
            self._owner.lost(self)

    def expect(self, request_id: str, answered: Callable[[Answer], None]) -> None:
        """Have ``answered`` called with the answer to a request."""
        self._waiting[request_id] = answered

    def forget(self, request_id: str) -> None:
        """Nobody waits for this answer any more."""
        self._waiting.pop(request_id, None)

    # -- Receiver ---------------------------------------------------------------------------------------------------

    def received(self, piece: Piece) -> None:
        """See Receiver."""
        self.vigil.ponged()
        if piece.opcode == TEXT:
            self._take_text(piece)
        elif self._expected is None:
            # hyco-https sends an empty message after a response that has no body.
            if piece.data:
                self._refuse(CLOSE_ERROR, "A body came without its response.")
        else:
            self._body += piece.data
            if len(self._body) > CHANNEL_BODY_BYTES_MAX:
                self._refuse(CLOSE_TOO_LARGE, "The body is too large for the control channel; use the rendezvous.")
            elif piece.is_last:
                response, self._expected = self._expected, None
                body = bytes(self._body)
                self._body.clear()
                self._answer(response.request_id, (response, body))

    def _take_text(self, piece: Piece) -> None:
        self._text += piece.data
        if len(self._text) > MESSAGE_BYTES_MAX:
            self._refuse(CLOSE_TOO_LARGE, "The message is too long.")
            return
        if not piece.is_last:
            return
        data = bytes(self._text)
        self._text.clear()
        try:
            found = to_relay(data.decode())
        except UnicodeDecodeError:
            self._refuse(CLOSE_ERROR, "The message is not UTF-8.")
            return
        except MalformedMessage as error:
            if error.request_id:
                self._answer(error.request_id, None)
            else:
                self._refuse(CLOSE_ERROR, str(error))
            return
        if isinstance(found, RenewToken):
            self._owner.renewed(self, found.token)
        elif isinstance(found, Response):
            if self._expected is not None:
                self._answer(self._expected.request_id, None)
                self._expected = None
                self._body.clear()
            if found.has_body:
                self._expected = found
            else:
                self._answer(found.request_id, (found, b""))

    def _answer(self, request_id: str, answer: Answer) -> None:
        self.vigil.answered()
        answered = self._waiting.pop(request_id, None)
        if answered is not None:
            answered(answer)

    def _refuse(self, code: int, text: str) -> None:
        self.end.close(code, text)
        self._owner.lost(self)

    def ponged(self) -> None:
        """See Receiver."""
        self.vigil.ponged()

    def ended(self, code: int, reason: str) -> None:
        """See Receiver."""
        self._owner.lost(self)
