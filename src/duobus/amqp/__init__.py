"""The AMQP 1.0 engine: bytes in, events and bytes out, for both ends of a connection. Pure; imports ``codec`` only."""

from duobus.amqp.connection import Connection
from duobus.amqp.delivery_states import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Declared,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from duobus.amqp.errors import EngineMisuse, Error
from duobus.amqp.events import (
    AttachReceived,
    Closed,
    Dispositions,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    OpenReceived,
    SaslInitReceived,
    SessionBegun,
    SessionEnded,
    SessionFlow,
    TransferRefused,
    Transfers,
    WorkDropped,
)
from duobus.amqp.interleaved_transfers import send_shared
from duobus.amqp.link import ATTACHED, DETACHED, HELD, Link
from duobus.amqp.performatives import Attach, Coordinator, Source, Target
from duobus.amqp.sasl import ANONYMOUS, EXTERNAL, MECHANISMS, MSSBCBS, PLAIN, parse_plain, plain_response
from duobus.amqp.session import Session
from duobus.amqp.settings import ConnectionSettings

__all__ = [
    "ATTACHED",
    "DETACHED",
    "HELD",
    "Connection",
    "ConnectionSettings",
    "Session",
    "Link",
    "send_shared",
    "Error",
    "EngineMisuse",
    "Event",
    "SaslInitReceived",
    "OpenReceived",
    "SessionBegun",
    "SessionEnded",
    "SessionFlow",
    "AttachReceived",
    "LinkAttached",
    "LinkDetached",
    "LinkFlow",
    "Transfers",
    "TransferRefused",
    "WorkDropped",
    "Dispositions",
    "Closed",
    "DeliveryState",
    "ACCEPTED",
    "RELEASED",
    "Accepted",
    "Released",
    "Rejected",
    "Modified",
    "Received",
    "Declared",
    "TransactionalState",
    "Attach",
    "Source",
    "Target",
    "Coordinator",
    "MSSBCBS",
    "PLAIN",
    "ANONYMOUS",
    "EXTERNAL",
    "MECHANISMS",
    "parse_plain",
    "plain_response",
]
