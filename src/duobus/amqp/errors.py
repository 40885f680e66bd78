"""Error conditions, the error that carries them, and what is raised inside the engine (part 2, section 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from duobus.codec import DecodeError, Described, PassedOver, Symbol, ULong, encode_into

if TYPE_CHECKING:
    from duobus.amqp.link import Link
    from duobus.amqp.session import Session

UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
ILLEGAL_STATE = "amqp:illegal-state"
CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
HANDLE_IN_USE = "amqp:session:handle-in-use"
TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"

_ERROR = 0x1D


class Error:
    """Why a delivery, link, session or connection ended.

    Attributes:
        condition: A symbol such as ``amqp:not-found``.
        description: Text for people; None is written as the empty string, which every SDK takes.
        info: More about the error, keys are symbols; None when there is nothing.
    """

    __slots__ = ("condition", "description", "info")

    def __init__(self, condition: str, description: str | None = None, info: Mapping[str, Any] | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Error):
            return NotImplemented
        return (self.condition, self.description, self.info) == (other.condition, other.description, other.info)

    def __hash__(self) -> int:
        return hash((self.condition, self.description))

    def __repr__(self) -> str:
        return f"Error({self.condition!r}, {self.description!r}, {self.info!r})"


def encode_error(out: bytearray, error: Error | None) -> None:
    """Append an error, always with all three elements: pyamqp hangs on two."""
    if error is None:
        out.append(0x40)
        return
    out += b"\x00\x53\x1d"
    info = None if error.info is None else {Symbol(key): value for key, value in error.info.items()}
    encode_into(out, [Symbol(error.condition), error.description or "", info])


def error_from(value: Any) -> Error | None:
    """Return what a decoded error field says; None for null.

    Raises:
        DecodeError: It is no error. Missing elements are taken as null; an absent condition as the empty one.
    """
    if value is None:
        return None
    if not isinstance(value, Described) or value.descriptor not in (ULong(_ERROR), "amqp:error:list"):
        raise DecodeError(f"an error is expected, not {value!r:.100}")
    fields = value.value
    if not isinstance(fields, list) or len(fields) > 3:
        raise DecodeError("an error is a list of three fields")
    condition, description, info = [*fields, None, None, None][:3]
    if not isinstance(condition, (str, type(None))) or not isinstance(description, (str, type(None))):
        raise DecodeError("an error's condition is a symbol and its description a string")
    if isinstance(info, PassedOver):
        info = None
    if not isinstance(info, (dict, type(None))):
        raise DecodeError("an error's info is a map")
    return Error(str(condition or ""), description, info)


class ProtocolViolation(Exception):
    """The peer broke a rule; ends the endpoint that is named, or the connection.

    Never leaves the engine: it becomes a detach, end or close to the peer, and an event.

    Attributes:
        error: What the peer is told.
        endpoint: The link or session that ends; None for the connection.
    """

    def __init__(self, condition: str, description: str, endpoint: Link | Session | None = None) -> None:
        super().__init__(f"{condition}: {description}")
        self.error = Error(condition, description)
        self.endpoint = endpoint


class EngineMisuse(RuntimeError):
    """Our own side called something that the endpoint's state forbids. A bug of the caller, never of the peer."""
