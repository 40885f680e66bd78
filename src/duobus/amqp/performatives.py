"""Frame bodies and termini (part 2, section 2.7; part 3, section 3.5; AMQP 1.0 part 1, 1.6).

Transfers, flows and dispositions are written elsewhere from templates, because they are many.
"""

from __future__ import annotations

from typing import Any

from duobus.amqp.errors import Error
from duobus.amqp.fields import TERMINI, Performative


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

    @classmethod
    def of(cls, fields: list[Any]) -> Flow | None:
        """Return the flow with these eleven well-typed fields; None when a mandatory one is missing."""
        flow = cls.__new__(cls)
        (
            flow.next_incoming_id,
            flow.incoming_window,
            flow.next_outgoing_id,
            flow.outgoing_window,
            flow.handle,
            flow.delivery_count,
            flow.link_credit,
            flow.available,
            flow.drain,
            flow.echo,
            flow.properties,
        ) = fields
        return None if None in fields[1:4] else flow


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
    """What the server offers; always an array, pyamqp iterates it (AMQP 1.0 part 5, 5.3)."""

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


#: The bodies of AMQP frames by their descriptors.
PERFORMATIVES: dict[Any, type[Performative]] = {
    kind.CODE: kind for kind in (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)
}
PERFORMATIVES.update({f"amqp:{kind.__name__.lower()}:list": kind for kind in list(PERFORMATIVES.values())})

TERMINI.update(
    {
        ("source", Source.CODE): Source,
        ("source", "amqp:source:list"): Source,
        ("target", Target.CODE): Target,
        ("target", "amqp:target:list"): Target,
        ("target", Coordinator.CODE): Coordinator,
        ("target", "amqp:coordinator:list"): Coordinator,
    }
)
