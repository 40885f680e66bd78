"""Errors of relays, and what each error means for a pair of endpoints. Pure.

Only an error of the relay itself makes a pair use the other endpoint. An answer that the service behind the relay gave
is no error here, whatever its status: such an answer is returned.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from duobus.model.relay.limits import CLOSE_ABNORMAL, CLOSE_ERROR, CLOSE_GONE, CLOSE_UNAUTHORIZED

#: Statuses of the relay itself that tell of an outage.
OUTAGE_STATUSES: Final = frozenset({404, 410, 500, 502, 503, 504})
#: Statuses that the relay itself gives to a handshake; any other status was chosen by the listener.
RELAY_STATUSES: Final = OUTAGE_STATUSES | {400, 401, 403, 429}
#: Codes of closes that the application did not ask for.
BROKEN_CODES: Final = frozenset({CLOSE_GONE, CLOSE_ABNORMAL, CLOSE_UNAUTHORIZED, CLOSE_ERROR})
_NO_LISTENER: Final = re.compile(r"\bno\b[^.]{0,40}\blisteners?\b", re.IGNORECASE)
_TRACKING: Final = re.compile(r"TrackingId:\s*([\w.-]{1,128})", re.IGNORECASE)


class RelayError(Exception):
    """Parent of the errors of relays.

    Attributes:
        endpoint: Host and path of the endpoint that failed.
        second: The error of the other endpoint, when both endpoints of a pair failed.
    """

    #: Whether a pair tries the other endpoint.
    is_outage: ClassVar[bool] = True

    def __init__(self, text: str, endpoint: str = "") -> None:
        super().__init__(f"{endpoint}: {text}" if endpoint else text)
        self.endpoint = endpoint
        self.second: BaseException | None = None

    @property
    def precedes_delivery(self) -> bool:
        """Whether it is certain that the service has not seen the request."""
        return False

    @property
    def fails_over(self) -> bool:
        """Whether a pair tries the other endpoint."""
        return self.is_outage


class ConnectFailed(RelayError):
    """The relay cannot be reached: its name has no address, it refuses connections, or TLS fails."""

    @property
    def precedes_delivery(self) -> bool:
        """See RelayError."""
        return True


class TokenFailed(ConnectFailed):
    """The credential gave no token; ``__cause__`` says why. Nothing was sent."""


class RelayTimeout(RelayError, TimeoutError):
    """There was no answer in time. The service may have done what was asked."""


class ConnectionDropped(RelayError):
    """The connection to the relay broke before the whole answer was there. The service may have done what was asked."""


class RelayRefused(RelayError):
    """The relay itself refused; the request has not been answered by a listener.

    Attributes:
        status: 404, 410, 500, 502, 503 and 504 tell of an outage. 400, 401, 403 and 429 have to be mended by you.
        reason: What the relay said.
        tracking_id: The id under which the relay's log has the refusal; empty where the relay named none.
    """

    def __init__(self, status: int, reason: str, endpoint: str = "") -> None:
        super().__init__(f"the relay answered {status}: {reason or 'no reason'}{_ADVICE.get(status, '')}", endpoint)
        self.status = status
        self.reason = reason
        found = _TRACKING.search(reason)
        self.tracking_id = found[1] if found else ""

    @property
    def precedes_delivery(self) -> bool:
        """See RelayError."""
        return self.status == 404 or (self.status == 502 and _NO_LISTENER.search(self.reason) is not None)

    @property
    def fails_over(self) -> bool:
        """See RelayError."""
        return self.status in OUTAGE_STATUSES


class ListenerRejected(RelayError):
    """The listener did not take the WebSocket connection: an answer of the service, which no other endpoint changes.

    Attributes:
        status: The status that the listener chose.
        description: The text beside the status.
    """

    is_outage = False

    def __init__(self, status: int, description: str, endpoint: str = "") -> None:
        super().__init__(f"the listener rejected the connection with {status}: {description}", endpoint)
        self.status = status
        self.description = description


class StreamClosed(RelayError):
    """A WebSocket connection ended without the application's doing. Connect again.

    Attributes:
        code: 1001, 1008 or 1011 as the relay sent them, or 1006 when the connection just broke.
        reason: The text beside the code.
    """

    def __init__(self, code: int, reason: str, endpoint: str = "") -> None:
        super().__init__(f"the connection was closed with {code}: {reason or 'no reason'}", endpoint)
        self.code = code
        self.reason = reason


def handshake_error(status: int, reason: str, endpoint: str, *, is_of_listener: bool) -> RelayError:
    """The error that an answer other than 101 to a WebSocket handshake is.

    Args:
        status: Status of the answer.
        reason: Reason phrase of the answer.
        endpoint: Host and path.
        is_of_listener: Whether the answer has come through the relay (the header ``Via``).
    """
    if is_of_listener or status not in RELAY_STATUSES:
        return ListenerRejected(status, reason, endpoint)
    return RelayRefused(status, reason, endpoint)


_ADVICE: Final = {
    401: ". Check the key, its name, and the clock of this machine.",
    403: ". The key's rule lacks the right: Listen for listeners, Send for senders.",
    404: ". Check the path, and that a listener runs.",
    429: ". Try again later.",
}


class AnswerTooLarge(RelayError):
    """The answer has more bytes than the caller allows. Ask for less, or allow more with ``body_max``."""

    is_outage = False


class BodyTooLarge(RelayError):
    """The body of a request has more bytes than the listener allows. Allow more with ``body_max``, or stream it."""

    is_outage = False


class ConnectionTaken(RelayError):
    """The pending connection was accepted or rejected before: its address works once."""

    is_outage = False
