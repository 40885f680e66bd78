"""What is dropped because its link or session has ended: its transaction must not be committed without it (I34)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.amqp.attachment import DETACHING
from duobus.amqp.delivery_states import DeliveryState, TransactionalState, state_from
from duobus.amqp.errors import ProtocolViolation
from duobus.amqp.events import WorkDropped
from duobus.amqp.performatives import Disposition, Transfer

if TYPE_CHECKING:
    from duobus.amqp.events import Event
    from duobus.amqp.fields import Performative
    from duobus.amqp.frame_reader import Inbound
    from duobus.amqp.session import Session


def note_dropped(connection: Inbound, performative: Performative, events: list[Event]) -> None:
    """A frame that came in is not looked at any more; say so if it is part of a transaction."""
    if isinstance(performative, (Transfer, Disposition)) and performative.state is not None:
        note_lost(connection, state_from(performative.state), events)


def note_lost(connection: Inbound, state: DeliveryState | None, events: list[Event]) -> None:
    """What has this state is not done; say so if it is part of a transaction."""
    if isinstance(state, TransactionalState):
        # What comes after it in this read, such as the discharge of its transaction, is told after it.
        connection.generation += 1
        events.append(WorkDropped(state))


def take_transfer(session: Session, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
    """Have a session take one transfer frame of any kind, or drop it if its link has ended.

    Raises:
        ProtocolViolation: See ``Session.on_transfer``; it is not taken then.
    """
    connection = session.connection
    link = session.link_of(transfer.handle)
    if link is not None and link.state == DETACHING:
        session.count_incoming(1)
        note_dropped(connection, transfer, events)
        # The first frame of a delivery says what it is part of, and may have come while the link still was there.
        note_lost(connection, link.cut, events)
        link.cut = None
        return
    try:
        session.on_transfer(transfer, payload, events, connection.generation)
    except ProtocolViolation:
        note_dropped(connection, transfer, events)
        raise
