"""What a relay refuses: a status, a reason phrase that says why, and a text with a tracking id.

Clients of WebSockets show their users the reason phrase and nothing else, so that it has the whole sentence.
"""

from __future__ import annotations

from typing import Final

from duobus.model.relay.headers import description_of

#: The longest reason phrase, in characters.
REASON_LENGTH_MAX: Final = 256


class RelayRefusal(Exception):
    """A handshake or a request is refused.

    Attributes:
        status: The status of HTTP.
        text: Why, as a sentence.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

    @property
    def reason(self) -> str:
        """The reason phrase."""
        return description_of(self.text, REASON_LENGTH_MAX)


class Rejected(RelayRefusal):
    """The listener does not take a sender; status and text are the listener's."""


def no_relay(path: str) -> RelayRefusal:
    """There is no relay for a path."""
    return RelayRefusal(404, f"There is no hybrid connection for '{path}'. Create it, or correct the address.")


def no_listener(path: str, status: int, *, is_known: bool) -> RelayRefusal:
    """Nobody listens; ``is_known``: not at any other server either."""
    where = "" if is_known else " at this server, and not every server that shares its catalog has told of its own"
    return RelayRefusal(status, f"The hybrid connection '{path}' has no listener{where}.")


def disabled(path: str) -> RelayRefusal:
    """The relay is not in use."""
    return RelayRefusal(404, f"The hybrid connection '{path}' is disabled.")
