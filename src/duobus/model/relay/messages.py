"""The JSON messages of the control channel of a relay, in both directions.

A text message holds one object with one member: ``accept`` and ``request`` go from the relay to a listener,
``response`` and ``renewToken`` from a listener to the relay. Members that are not known are ignored on both sides. A
``request`` or ``response`` whose ``body`` is true is followed by one binary message, the body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from duobus.model.relay.headers import is_name, is_value
from duobus.model.relay.limits import MESSAGE_BYTES_MAX

ACCEPT: Final = "accept"
REQUEST: Final = "request"
RESPONSE: Final = "response"
RENEW_TOKEN: Final = "renewToken"

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_STATUS_MAX: Final = 999
_PORT_MAX: Final = 65_535


class MalformedMessage(ValueError):
    """A message of the control channel is none: no JSON object, or a member that is needed is missing or wrong.

    Attributes:
        request_id: The request that the message is about, where that could be read; else empty.
    """

    def __init__(self, text: str, request_id: str = "") -> None:
        super().__init__(text)
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class RemoteEndpoint:
    """Where a sender is: address and port of its end of the connection to the relay."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Accept:
    """A sender wants to connect by WebSocket; the listener opens ``address`` to accept or to reject.

    Attributes:
        address: One-time address of the rendezvous, to be opened as it is.
        id: The id of the sender's handshake.
        headers: Those of the sender's handshake.
        remote: Where the sender is; older relays do not tell.
    """

    address: str
    id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    remote: RemoteEndpoint | None = None

    def to_json(self) -> str:
        """The text of the message."""
        return _written(ACCEPT, _noted(self.remote, address=self.address, id=self.id, connectHeaders=self.headers))


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request of a sender.

    Attributes:
        address: Address of a rendezvous, for a response that is too large for the control channel.
        id: The id that the response names.
        target: Path and query, without the parameters of the relay.
        method: The method.
        headers: Those of the request.
        has_body: Whether a binary message with the body follows.
        remote: Where the sender is; older relays do not tell.
    """

    address: str
    id: str
    target: str
    method: str
    headers: Mapping[str, str] = field(default_factory=dict)
    has_body: bool = False
    remote: RemoteEndpoint | None = None

    def to_json(self) -> str:
        """The text of the message."""
        return _written(
            REQUEST,
            _noted(
                self.remote,
                address=self.address,
                id=self.id,
                requestTarget=self.target,
                method=self.method,
                requestHeaders=self.headers,
                body=self.has_body,
            ),
        )


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A request that does not fit the control channel: the listener opens ``address`` and gets the request there."""

    address: str

    def to_json(self) -> str:
        """The text of the message."""
        return _written(REQUEST, {"address": self.address})


@dataclass(frozen=True, slots=True)
class Response:
    """A listener's answer to a request.

    Attributes:
        request_id: The id of the request.
        status: The status code.
        description: The reason phrase; may be empty.
        headers: Those of the response.
        has_body: Whether a binary message with the body follows.
    """

    request_id: str
    status: int
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    has_body: bool = False

    def to_json(self) -> str:
        """The text of the message."""
        return _written(
            RESPONSE,
            {
                "requestId": self.request_id,
                "statusCode": self.status,
                "statusDescription": self.description,
                "responseHeaders": dict(self.headers),
                "body": self.has_body,
            },
        )


@dataclass(frozen=True, slots=True)
class RenewToken:
    """A fresh token for the control channel; nothing answers."""

    token: str

    def __repr__(self) -> str:
        # Tokens stay out of tracebacks and logs (I66).
        return "RenewToken()"

    def to_json(self) -> str:
        """The text of the message."""
        return _written(RENEW_TOKEN, {"token": self.token})


ToListener = Accept | Request | Rendezvous
ToRelay = Response | RenewToken


def to_listener(text: str) -> ToListener | None:
    """Return what a relay tells a listener; None for a message whose members are all unknown.

    Raises:
        MalformedMessage: The text is no such message.
    """
    members = _members(text)
    found = _object(members, ACCEPT)
    if found is not None:
        return Accept(_text(found, "address"), _id(found), _headers(found, "connectHeaders"), _remote(found))
    found = _object(members, REQUEST)
    if found is None:
        return None
    address = _text(found, "address")
    if found.get("method") is None:
        return Rendezvous(address)
    return Request(
        address,
        _id(found),
        _text(found, "requestTarget"),
        _text(found, "method"),
        _headers(found, "requestHeaders"),
        found.get("body") is True,
        _remote(found),
    )


def to_relay(text: str) -> ToRelay | None:
    """Return what a listener tells a relay; None for a message whose members are all unknown.

    Raises:
        MalformedMessage: The text is no such message.
    """
    members = _members(text)
    found = _object(members, RESPONSE)
    if found is not None:
        return _response(found)
    found = _object(members, RENEW_TOKEN)
    return None if found is None else RenewToken(_text(found, "token"))


def _response(found: dict[str, Any]) -> Response:
    request_id = _text(found, "requestId")
    try:
        description = found.get("statusDescription")
        return Response(
            request_id,
            _status(found.get("statusCode")),
            description if isinstance(description, str) else "",
            _headers(found, "responseHeaders"),
            found.get("body") is True,
        )
    except MalformedMessage as error:
        # Whoever waits for this response can be told.
        raise MalformedMessage(str(error), request_id) from None


# -- reading and writing --------------------------------------------------------------------------------------------


def _members(text: str) -> dict[str, Any]:
    if len(text) > MESSAGE_BYTES_MAX:
        raise MalformedMessage(f"The message has {len(text)} characters; at most {MESSAGE_BYTES_MAX} are allowed.")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise MalformedMessage("The message is no JSON.") from None
    if not isinstance(found, dict):
        raise MalformedMessage("The message is no JSON object.")
    return found


def _object(members: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = members.get(name)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise MalformedMessage(f"The member '{name}' is no object.")
    return found


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedMessage(f"The member '{name}' is missing or no text.")
    return value


def _id(found: dict[str, Any]) -> str:
    value = found.get("id")
    return value if isinstance(value, str) else ""


def _status(value: Any) -> int:
    """A number, or a number as text: samples of the service show both."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 100 <= value <= _STATUS_MAX:
        raise MalformedMessage("The member 'statusCode' is no status of HTTP.")
    return value


def _headers(found: dict[str, Any], name: str) -> dict[str, str]:
    """Names to values; a number or a truth value is taken as its text, and a list as its items joined."""
    value = found.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedMessage(f"The member '{name}' is no object.")
    headers: dict[str, str] = {}
    for key, given in value.items():
        if given is None:
            continue
        text = _value(given)
        if text is None or not is_name(key) or not is_value(text):
            raise MalformedMessage(f"The member '{name}' holds a header that HTTP does not allow.")
        headers[key] = text.strip(" \t")
    return headers


def _value(given: Any) -> str | None:
    if isinstance(given, str):
        return given
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, int | float):
        return str(given)
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        return ", ".join(given)
    return None


def _remote(found: dict[str, Any]) -> RemoteEndpoint | None:
    value = found.get("remoteEndpoint")
    if not isinstance(value, dict):
        return None
    address, port = value.get("address"), value.get("port")
    if not isinstance(address, str) or not isinstance(port, int) or not 0 <= port <= _PORT_MAX:
        return None
    return RemoteEndpoint(address, port)


def _noted(remote: RemoteEndpoint | None, **members: Any) -> dict[str, Any]:
    if remote is not None:
        members["remoteEndpoint"] = {"address": remote.address, "port": remote.port}
    return members


def _written(name: str, members: Mapping[str, Any]) -> str:
    # ASCII: an unpaired surrogate, which a header can hold, is written as its escape.
    return _ENCODER.encode({name: members})
