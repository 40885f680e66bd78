"""The events of listeners and pairs of relays; ``Reporter`` and ``Event`` are those of the other pairs."""

from __future__ import annotations

from dataclasses import dataclass

from duobus.ha.events import Event, Reporter

__all__ = [
    "BothFailed",
    "DuplicateAnswered",
    "EndpointFailed",
    "Event",
    "ListenerOffline",
    "ListenerOnline",
    "RelayRolesSwapped",
    "Reporter",
    "RequestReissued",
    "TokenNotRenewed",
]

# ``entity`` of each event is host and path of an endpoint.


@dataclass(frozen=True, slots=True)
class ListenerOnline(Event):
    """A listener is registered with its relay."""


@dataclass(frozen=True, slots=True)
class ListenerOffline(Event):
    """A listener is not registered any more, or could not register.

    Attributes:
        retry_ms: Time until the listener tries again.
    """

    error: str
    retry_ms: int


@dataclass(frozen=True, slots=True)
class TokenNotRenewed(Event):
    """A listener got no new token; the old one lasts for ``left_ms``."""

    error: str
    left_ms: int


@dataclass(frozen=True, slots=True)
class DuplicateAnswered(Event):
    """A request came a second time, and got the answer that it had got before."""

    request_id: str


@dataclass(frozen=True, slots=True)
class EndpointFailed(Event):
    """An endpoint of a pair failed in a manner that makes the pair try the other endpoint, where that is allowed."""

    error: str


@dataclass(frozen=True, slots=True)
class RequestReissued(Event):
    """A request, or the opening of a connection, was sent to the other endpoint.

    Attributes:
        backup: Host and path of the other endpoint.
        request_id: The id, which is the same at both endpoints.
    """

    backup: str
    request_id: str


@dataclass(frozen=True, slots=True)
class RelayRolesSwapped(Event):
    """The backup answered what the active endpoint did not, and is the active endpoint from now on.

    Attributes:
        active: Host and path of the endpoint that is active now; ``entity`` is the one that was.
    """

    active: str
    error: str


@dataclass(frozen=True, slots=True)
class BothFailed(Event):
    """Both endpoints failed; the roles are as they were. ``entity`` is the active endpoint."""

    error: str
    second: str
