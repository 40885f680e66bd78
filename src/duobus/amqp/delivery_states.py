"""Delivery states: what became of a message (part 3, section 3.4; part 4, section 4.5.5)."""

from __future__ import annotations

from typing import Any, Final

from duobus.amqp.errors import Error, encode_error, error_from
from duobus.codec import DecodeError, Described, Symbol, UInt, ULong, encode_into

_NAMES: Final = {
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
}


class DeliveryState:
    """Parent of all states. Two of the same kind with the same content are equal."""

    __slots__ = ()

    def fields(self) -> list[Any]:
        """Return the content, in the order of the specification."""
        return []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeliveryState):
            return NotImplemented
        return self is other or (type(self) is type(other) and self.fields() == other.fields())

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.fields()))})"


class Accepted(DeliveryState):
    """Processed. There is one instance: ``ACCEPTED``."""

    __slots__ = ()


class Released(DeliveryState):
    """Given back as if it had never been delivered. There is one instance: ``RELEASED``."""

    __slots__ = ()


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


class Received(DeliveryState):
    """How much of a delivery has arrived; says nothing about its outcome."""

    __slots__ = ("section_number", "section_offset")

    def __init__(self, section_number: int, section_offset: int) -> None:
        self.section_number = section_number
        self.section_offset = section_offset

    def fields(self) -> list[Any]:
        """Return both numbers."""
        return [UInt(self.section_number), ULong(self.section_offset)]


class Rejected(DeliveryState):
    """Cannot be processed; ``error`` says why, and may be None."""

    __slots__ = ("error",)

    def __init__(self, error: Error | None = None) -> None:
        self.error = error

    def fields(self) -> list[Any]:
        """Return the error."""
        return [self.error]


class Modified(DeliveryState):
    """Given back with changes.

    Attributes:
        delivery_failed: The delivery counts as failed.
        undeliverable_here: Not to be delivered to this link again; Service Bus takes it as "defer".
        message_annotations: To be merged into those of the message; None for none.
    """

    __slots__ = ("delivery_failed", "message_annotations", "undeliverable_here")

    def __init__(
        self,
        delivery_failed: bool | None = None,
        undeliverable_here: bool | None = None,
        message_annotations: dict[Any, Any] | None = None,
    ) -> None:
        self.delivery_failed = delivery_failed
        self.undeliverable_here = undeliverable_here
        self.message_annotations = message_annotations

    def fields(self) -> list[Any]:
        """Return the three fields."""
        return [self.delivery_failed, self.undeliverable_here, self.message_annotations]


class Declared(DeliveryState):
    """The coordinator's answer to a declare: the transaction ``txn_id`` (bytes) exists."""

    __slots__ = ("txn_id",)

    def __init__(self, txn_id: bytes) -> None:
        self.txn_id = txn_id

    def fields(self) -> list[Any]:
        """Return the transaction's id."""
        return [self.txn_id]


class TransactionalState(DeliveryState):
    """The delivery, or its ``outcome``, belongs to the transaction ``txn_id`` (bytes)."""

    __slots__ = ("outcome", "txn_id")

    def __init__(self, txn_id: bytes, outcome: DeliveryState | None = None) -> None:
        self.txn_id = txn_id
        self.outcome = outcome

    def fields(self) -> list[Any]:
        """Return the transaction's id and the outcome."""
        return [self.txn_id, self.outcome]


_CODES: Final[dict[type[DeliveryState], int]] = {
    Received: 0x23,
    Accepted: 0x24,
    Rejected: 0x25,
    Released: 0x26,
    Modified: 0x27,
    Declared: 0x33,
    TransactionalState: 0x34,
}

ACCEPTED_BYTES: Final = b"\x00\x53\x24\x45"
_RELEASED_BYTES: Final = b"\x00\x53\x26\x45"
# One null element: the form that was measured to work as the answer to a dead-letter (AMQP 1.0 part 3, 3.4).
_REJECTED_BYTES: Final = b"\x00\x53\x25\xc0\x02\x01\x40"


def encode_state(state: DeliveryState | None) -> bytes:
    """Return the bytes of a delivery state; null for None."""
    if state is ACCEPTED:
        return ACCEPTED_BYTES
    if state is None:
        return b"\x40"
    if state is RELEASED:
        return _RELEASED_BYTES
    if isinstance(state, Rejected) and state.error is None:
        return _REJECTED_BYTES
    fields = state.fields()
    body = bytearray()
    for field in fields:
        _encode_field(body, field)
    out = bytearray((0, 0x53, _CODES[type(state)]))
    # An error may be long, so the list's size decides between the two forms.
    if len(body) < 255:
        out += bytes((0xC0, len(body) + 1, len(fields)))
    else:
        out += b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big")
    return bytes(out + body)


def _encode_field(out: bytearray, field: Any) -> None:
    if isinstance(field, Error):
        encode_error(out, field)
    elif isinstance(field, DeliveryState):
        out += encode_state(field)
    elif isinstance(field, dict):
        encode_into(out, {Symbol(key) if type(key) is str else key: value for key, value in field.items()})
    else:
        encode_into(out, field)


def state_from(value: Any) -> DeliveryState | None:
    """Return what a decoded state field says; None for null.

    Raises:
        DecodeError: It is no delivery state, or a field has the wrong type.
    """
    if value is None:
        return None
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise DecodeError(f"a delivery state is expected, not {value!r:.100}")
    descriptor = value.descriptor
    code = _NAMES.get(descriptor, 0) if isinstance(descriptor, str) else descriptor
    reader = _READERS.get(code) if isinstance(code, int) else None
    if reader is None:
        raise DecodeError(f"unknown delivery state {descriptor!r:.100}")
    return reader([*value.value, None, None, None])


def _typed(value: Any, kind: type, name: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise DecodeError(f"{name} may not be of type {type(value).__name__}")
    return value


def _required(value: Any, kind: type, name: str) -> Any:
    if value is None:
        raise DecodeError(f"{name} is missing")
    return _typed(value, kind, name)


def _read_received(fields: list[Any]) -> DeliveryState:
    return Received(_required(fields[0], int, "section-number"), _required(fields[1], int, "section-offset"))


def _read_accepted(fields: list[Any]) -> DeliveryState:
    return ACCEPTED


def _read_rejected(fields: list[Any]) -> DeliveryState:
    return Rejected(error_from(fields[0]))


def _read_released(fields: list[Any]) -> DeliveryState:
    return RELEASED


def _read_modified(fields: list[Any]) -> DeliveryState:
    return Modified(
        _typed(fields[0], bool, "delivery-failed"),
        _typed(fields[1], bool, "undeliverable-here"),
        _typed(fields[2], dict, "message-annotations"),
    )


def _read_declared(fields: list[Any]) -> DeliveryState:
    return Declared(_required(fields[0], bytes, "txn-id"))


def _read_transactional(fields: list[Any]) -> DeliveryState:
    return TransactionalState(_required(fields[0], bytes, "txn-id"), state_from(fields[1]))


_READERS: Final = {
    0x23: _read_received,
    0x24: _read_accepted,
    0x25: _read_rejected,
    0x26: _read_released,
    0x27: _read_modified,
    0x33: _read_declared,
    0x34: _read_transactional,
}
