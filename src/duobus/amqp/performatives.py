"""Frame bodies and termini from one table of fields (part 2, section 2.7; part 3, section 3.5; wire contract, chapter 2).

Each class names its fields with their types; reading, checking and writing follow from that. Written are always
all fields, nulls included, under a descriptor of three bytes: weak decoders index past short lists. Transfers,
flows and dispositions are written elsewhere from templates, because they are many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from duobus.amqp.conditions import Error, encode_error, error_from
from duobus.codec import Array, DecodeError, Described, Symbol, UByte, UInt, ULong, UShort, encode_into

P = TypeVar("P", bound="Performative")

#: Name, type and whether it is mandatory, for each field in order.
Field = tuple[str, str, bool]


class Performative:
    """Parent of the frame bodies; keyword arguments set fields, the rest are None."""

    __slots__ = ()
    CODE: ClassVar[int]
    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        for name, _, _ in self.FIELDS:
            setattr(self, name, values.pop(name, None))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(values))}")

    @classmethod
    def read(cls: type[P], fields: Any) -> P:
        """Return the performative that a decoded list holds.

        Raises:
            DecodeError: Too many fields, a mandatory one missing, or one of the wrong type or range.
        """
        if not isinstance(fields, list) or len(fields) > len(cls.FIELDS):
            raise DecodeError(f"{cls.__name__.lower()} is a list of at most {len(cls.FIELDS)} fields")
        values: dict[str, Any] = {}
        for (name, kind, required), value in zip(cls.FIELDS, fields, strict=False):
            if value is not None:
                values[name] = _READ[kind](value, f"{cls.__name__.lower()}.{name}")
        for name, _, required in cls.FIELDS:
            if required and values.get(name) is None:
                raise DecodeError(f"{cls.__name__.lower()}.{name} is missing")
        return cls(**values)

    def write(self, out: bytearray) -> None:
        """Append the encoding, with every field."""
        out += bytes((0, 0x53, self.CODE))
        body = bytearray()
        for name, kind, _ in self.FIELDS:
            value = getattr(self, name)
            if value is None:
                body.append(0x40)
            else:
                _WRITE[kind](body, value)
        if len(body) < 255:
            out += bytes((0xC0, len(body) + 1, len(self.FIELDS)))
        else:
            out += b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(self.FIELDS).to_bytes(4, "big")
        out += body

    def to_bytes(self) -> bytes:
        """Return the encoding, with every field."""
        out = bytearray()
        self.write(out)
        return bytes(out)

    def replace(self: P, **changes: Any) -> P:
        """Return a copy with some fields changed."""
        values = {name: getattr(self, name) for name, _, _ in self.FIELDS}
        values.update(changes)
        return type(self)(**values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Performative):
            return NotImplemented
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name, _, _ in self.FIELDS
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name, _, _ in self.FIELDS if getattr(self, name) is not None]
        return f"{type(self).__name__}({', '.join(given)})"


class Source(Performative):
    """Where the messages of a link come from."""

    __slots__ = (
        "address",
        "capabilities",
        "default_outcome",
        "distribution_mode",
        "durable",
        "dynamic",
        "dynamic_node_properties",
        "expiry_policy",
        "filter",
        "outcomes",
        "timeout",
    )
    CODE = 0x28
    FIELDS = (
        ("address", "any", False),
        ("durable", "uint", False),
        ("expiry_policy", "symbol", False),
        ("timeout", "uint", False),
        ("dynamic", "bool", False),
        ("dynamic_node_properties", "fields", False),
        ("distribution_mode", "symbol", False),
        ("filter", "fields", False),
        ("default_outcome", "any", False),
        ("outcomes", "symbols", False),
        ("capabilities", "symbols", False),
    )
    address: Any
    durable: int | None
    expiry_policy: str | None
    timeout: int | None
    dynamic: bool | None
    dynamic_node_properties: dict[Any, Any] | None
    distribution_mode: str | None
    filter: dict[Any, Any] | None
    default_outcome: Any
    outcomes: list[str] | None
    capabilities: list[str] | None


class Target(Performative):
    """Where the messages of a link go to."""

    __slots__ = ("address", "capabilities", "durable", "dynamic", "dynamic_node_properties", "expiry_policy", "timeout")
    CODE = 0x29
    FIELDS = (
        ("address", "any", False),
        ("durable", "uint", False),
        ("expiry_policy", "symbol", False),
        ("timeout", "uint", False),
        ("dynamic", "bool", False),
        ("dynamic_node_properties", "fields", False),
        ("capabilities", "symbols", False),
    )
    address: Any
    durable: int | None
    expiry_policy: str | None
    timeout: int | None
    dynamic: bool | None
    dynamic_node_properties: dict[Any, Any] | None
    capabilities: list[str] | None


class Coordinator(Performative):
    """The target of a link that declares and discharges transactions (part 4, section 4.5.1)."""

    __slots__ = ("capabilities",)
    CODE = 0x30
    FIELDS = (("capabilities", "symbols", False),)
    capabilities: list[str] | None


class Open(Performative):
    """Names the container and its limits."""

    __slots__ = (
        "channel_max",
        "container_id",
        "desired_capabilities",
        "hostname",
        "idle_time_out",
        "incoming_locales",
        "max_frame_size",
        "offered_capabilities",
        "outgoing_locales",
        "properties",
    )
    CODE = 0x10
    FIELDS = (
        ("container_id", "string", True),
        ("hostname", "string", False),
        ("max_frame_size", "uint", False),
        ("channel_max", "ushort", False),
        ("idle_time_out", "uint", False),
        ("outgoing_locales", "symbols", False),
        ("incoming_locales", "symbols", False),
        ("offered_capabilities", "symbols", False),
        ("desired_capabilities", "symbols", False),
        ("properties", "fields", False),
    )
    container_id: str
    hostname: str | None
    max_frame_size: int | None
    channel_max: int | None
    idle_time_out: int | None
    outgoing_locales: list[str] | None
    incoming_locales: list[str] | None
    offered_capabilities: list[str] | None
    desired_capabilities: list[str] | None
    properties: dict[Any, Any] | None


class Begin(Performative):
    """Begins a session on a channel."""

    __slots__ = (
        "desired_capabilities",
        "handle_max",
        "incoming_window",
        "next_outgoing_id",
        "offered_capabilities",
        "outgoing_window",
        "properties",
        "remote_channel",
    )
    CODE = 0x11
    FIELDS = (
        ("remote_channel", "ushort", False),
        ("next_outgoing_id", "uint", True),
        ("incoming_window", "uint", True),
        ("outgoing_window", "uint", True),
        ("handle_max", "uint", False),
        ("offered_capabilities", "symbols", False),
        ("desired_capabilities", "symbols", False),
        ("properties", "fields", False),
    )
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None
    offered_capabilities: list[str] | None
    desired_capabilities: list[str] | None
    properties: dict[Any, Any] | None


class Attach(Performative):
    """Attaches a link to a session. ``role`` is True when its sender is the receiver of messages."""

    __slots__ = (
        "desired_capabilities",
        "handle",
        "incomplete_unsettled",
        "initial_delivery_count",
        "max_message_size",
        "name",
        "offered_capabilities",
        "properties",
        "rcv_settle_mode",
        "role",
        "snd_settle_mode",
        "source",
        "target",
        "unsettled",
    )
    CODE = 0x12
    FIELDS = (
        ("name", "string", True),
        ("handle", "uint", True),
        ("role", "bool", True),
        ("snd_settle_mode", "ubyte", False),
        ("rcv_settle_mode", "ubyte", False),
        ("source", "source", False),
        ("target", "target", False),
        ("unsettled", "map", False),
        ("incomplete_unsettled", "bool", False),
        ("initial_delivery_count", "uint", False),
        ("max_message_size", "ulong", False),
        ("offered_capabilities", "symbols", False),
        ("desired_capabilities", "symbols", False),
        ("properties", "fields", False),
    )
    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None
    rcv_settle_mode: int | None
    source: Source | None
    target: Target | Coordinator | None
    unsettled: dict[Any, Any] | None
    incomplete_unsettled: bool | None
    initial_delivery_count: int | None
    max_message_size: int | None
    offered_capabilities: list[str] | None
    desired_capabilities: list[str] | None
    properties: dict[Any, Any] | None


class Flow(Performative):
    """Session windows and, with a handle, a link's credit."""

    __slots__ = (
        "available",
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing_window",
        "properties",
    )
    CODE = 0x13
    FIELDS = (
        ("next_incoming_id", "uint", False),
        ("incoming_window", "uint", True),
        ("next_outgoing_id", "uint", True),
        ("outgoing_window", "uint", True),
        ("handle", "uint", False),
        ("delivery_count", "uint", False),
        ("link_credit", "uint", False),
        ("available", "uint", False),
        ("drain", "bool", False),
        ("echo", "bool", False),
        ("properties", "fields", False),
    )
    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None
    delivery_count: int | None
    link_credit: int | None
    available: int | None
    drain: bool | None
    echo: bool | None
    properties: dict[Any, Any] | None


class Transfer(Performative):
    """One frame of a delivery; the rest of the frame is its content."""

    __slots__ = (
        "aborted",
        "batchable",
        "delivery_id",
        "delivery_tag",
        "handle",
        "message_format",
        "more",
        "rcv_settle_mode",
        "resume",
        "settled",
        "state",
    )
    CODE = 0x14
    FIELDS = (
        ("handle", "uint", True),
        ("delivery_id", "uint", False),
        ("delivery_tag", "binary", False),
        ("message_format", "uint", False),
        ("settled", "bool", False),
        ("more", "bool", False),
        ("rcv_settle_mode", "ubyte", False),
        ("state", "any", False),
        ("resume", "bool", False),
        ("aborted", "bool", False),
        ("batchable", "bool", False),
    )
    handle: int
    delivery_id: int | None
    delivery_tag: bytes | None
    message_format: int | None
    settled: bool | None
    more: bool | None
    rcv_settle_mode: int | None
    state: Any
    resume: bool | None
    aborted: bool | None
    batchable: bool | None


class Disposition(Performative):
    """State or settlement of a range of deliveries. ``role`` is that of whoever sends it."""

    __slots__ = ("batchable", "first", "last", "role", "settled", "state")
    CODE = 0x15
    FIELDS = (
        ("role", "bool", True),
        ("first", "uint", True),
        ("last", "uint", False),
        ("settled", "bool", False),
        ("state", "any", False),
        ("batchable", "bool", False),
    )
    role: bool
    first: int
    last: int | None
    settled: bool | None
    state: Any
    batchable: bool | None


class Detach(Performative):
    """Detaches a link; ``closed`` says whether for good."""

    __slots__ = ("closed", "error", "handle")
    CODE = 0x16
    FIELDS = (("handle", "uint", True), ("closed", "bool", False), ("error", "error", False))
    handle: int
    closed: bool | None
    error: Error | None


class End(Performative):
    """Ends a session."""

    __slots__ = ("error",)
    CODE = 0x17
    FIELDS = (("error", "error", False),)
    error: Error | None


class Close(Performative):
    """Closes the connection."""

    __slots__ = ("error",)
    CODE = 0x18
    FIELDS = (("error", "error", False),)
    error: Error | None


class SaslMechanisms(Performative):
    """What the server offers; always an array, pyamqp iterates it (wire contract 1.3)."""

    __slots__ = ("mechanisms",)
    CODE = 0x40
    FIELDS = (("mechanisms", "symbols", True),)
    mechanisms: list[str]


class SaslInit(Performative):
    """What the client chose, with its first word."""

    __slots__ = ("hostname", "initial_response", "mechanism")
    CODE = 0x41
    FIELDS = (("mechanism", "symbol", True), ("initial_response", "binary", False), ("hostname", "string", False))
    mechanism: str
    initial_response: bytes | None
    hostname: str | None


class SaslOutcome(Performative):
    """0: welcome. Anything else: not."""

    __slots__ = ("additional_data", "code")
    CODE = 0x44
    FIELDS = (("code", "ubyte", True), ("additional_data", "binary", False))
    code: int
    additional_data: bytes | None


def _read_any(value: Any, name: str) -> Any:
    return value


def _instance_of(kind: type) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise DecodeError(f"{name} may not be of type {type(value).__name__}")
        return value

    return read


def _unsigned(bits: int) -> Callable[[Any, str], int]:
    # The width is checked, not the exact type: some clients write a small number as another integer type.
    def read(value: Any, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << bits:
            raise DecodeError(f"{name} must be an unsigned integer of {bits} bits, not {value!r:.50}")
        return int(value)

    return read


def _read_symbols(value: Any, name: str) -> list[str]:
    # "Multiple" fields: one symbol may stand without its array.
    items = value.items if isinstance(value, Array) else [value]
    if not all(isinstance(item, str) for item in items):
        raise DecodeError(f"{name} must hold symbols")
    return items


def _read_error(value: Any, name: str) -> Error | None:
    return error_from(value)


_TERMINI: dict[Any, type[Performative]] = {
    0x28: Source,
    "amqp:source:list": Source,
    0x29: Target,
    "amqp:target:list": Target,
    0x30: Coordinator,
    "amqp:coordinator:list": Coordinator,
}


def _terminus(*allowed: type[Performative]) -> Callable[[Any, str], Performative]:
    def read(value: Any, name: str) -> Performative:
        if not isinstance(value, Described) or not isinstance(value.descriptor, (int, str)):
            raise DecodeError(f"{name} must be a terminus, not {value!r:.50}")
        kind = _TERMINI.get(value.descriptor)
        if kind not in allowed:
            raise DecodeError(f"{name} may not be described as {value.descriptor!r:.50}")
        return kind.read(value.value)

    return read


_READ: dict[str, Callable[[Any, str], Any]] = {
    "any": _read_any,
    "bool": _instance_of(bool),
    "ubyte": _unsigned(8),
    "ushort": _unsigned(16),
    "uint": _unsigned(32),
    "ulong": _unsigned(64),
    "binary": _instance_of(bytes),
    "string": _instance_of(str),
    "symbol": _instance_of(str),
    "symbols": _read_symbols,
    "map": _instance_of(dict),
    "fields": _instance_of(dict),
    "error": _read_error,
    "source": _terminus(Source),
    "target": _terminus(Target, Coordinator),
}


def _write_as(kind: Callable[[Any], Any]) -> Callable[[bytearray, Any], None]:
    def write(out: bytearray, value: Any) -> None:
        encode_into(out, kind(value))

    return write


def symbol_keys(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the map with its plain string keys as symbols: what AMQP calls *fields*."""
    return {Symbol(key) if type(key) is str else key: value for key, value in values.items()}


def _symbols(values: list[str]) -> Array:
    return Array(Symbol, [Symbol(value) for value in values])


def _as_it_is(value: Any) -> Any:
    return value


def _write_performative(out: bytearray, value: Performative) -> None:
    value.write(out)


_WRITE: dict[str, Callable[[bytearray, Any], None]] = {
    "any": encode_into,
    "bool": _write_as(bool),
    "ubyte": _write_as(UByte),
    "ushort": _write_as(UShort),
    "uint": _write_as(UInt),
    "ulong": _write_as(ULong),
    "binary": _write_as(_as_it_is),
    "string": _write_as(str),
    "symbol": _write_as(Symbol),
    "symbols": _write_as(_symbols),
    "map": _write_as(_as_it_is),
    "fields": _write_as(symbol_keys),
    "error": encode_error,
    "source": _write_performative,
    "target": _write_performative,
}
