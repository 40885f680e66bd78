"""Endpoint: what every link of a connection answers on this side; and what is kept of the client's attach.

A connection calls its links without asking what kind each of them is. What a kind does not care about, it leaves as it
is here: a link on which a client sends takes no notice of flow, a link on which a client receives takes no transfers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from duobus.amqp import Attach, Source, Target
from duobus.broker.transaction import ONE_ENTITY
from duobus.codec import Int
from duobus.errors import OperationCancelled
from duobus.model.address import are_shards_of_one, whole_path
from duobus.model.descriptions import QUEUE, SUBSCRIPTION, TOPIC, Right

if TYPE_CHECKING:
    from duobus.amqp import Session, TransferRefused, Transfers
    from duobus.broker import Queue
    from duobus.gateway.amqp.management.request_node import RequestNode
    from duobus.gateway.amqp.peer import Peer

#: Tells clients what they have attached to; the numbers are those of the .NET and Java SDKs.
ENTITY_TYPE: Final = "com.microsoft:entity-type"
_ENTITY_TYPES: Final = {QUEUE: Int(0), TOPIC: Int(1), SUBSCRIPTION: Int(2)}

#: Characters of either address of a link: both are kept as long as it lives.
ADDRESS_MAX: Final = 1024

#: The segments of an address, and the rights of which one is needed there.
Claim = tuple[tuple[str, ...], tuple[Right, ...]]
ANY_RIGHT: Final = (Right.LISTEN, Right.SEND, Right.MANAGE)


class Endpoint:
    """This side of one link. The base has no slots of its own, so that a link may be a mailbox as well.

    Attributes:
        segments: Of the address that rights are asked for.
        queue: The entity of this server that the link is on; None for a node, or an entity of another server.
        node: The node that the link is on, or None.
        is_entity: The link is on an entity itself.
        is_coordinator: The link declares and discharges transactions.
        closes_first: When the connection is lost, the link is closed before those that free what it waits for.
        needs_every_right: The link ends when its client loses any right at all.
    """

    __slots__ = ()

    segments: tuple[str, ...]
    queue: Queue | None = None
    node: RequestNode | None = None
    is_entity: bool = False
    is_coordinator: ClassVar[bool] = False
    closes_first: ClassVar[bool] = False
    needs_every_right: ClassVar[bool] = False

    @property
    def path(self) -> str:
        """The address, for errors."""
        return "/".join(self.segments)

    # -- events of the client -----------------------------------------------------------------------------------

    def transfers(self, event: Transfers) -> None:
        """Deliveries have come in one read."""

    def refused(self, event: TransferRefused) -> None:
        """The engine did not take a delivery in: it is too large."""

    def flow(self) -> None:
        """The client changed its credit, or wants to drain."""

    def session_flow(self) -> None:
        """The client takes more on the session of the link."""

    def resume(self) -> None:
        """The client's socket takes more again."""

    # -- events of the server -----------------------------------------------------------------------------------

    def deliver_answers(self) -> None:
        """Write what the broker left for the link; called once a turn."""

    @property
    def owes(self) -> bool:
        """Whether the client waits for something that this server has taken."""
        return False

    def stop(self) -> None:
        """Take nothing more from a client that sends: the server, or the entity, is about to go."""

    def demand_enabled(self) -> None:
        """Raise the ServiceBusError of an entity that does not allow the link any more."""

    def entity_changed(self) -> None:
        """The entity has other properties."""

    # -- rights -------------------------------------------------------------------------------------------------

    def needs(self) -> tuple[Claim, ...]:
        """What the client has to be allowed as long as the link lives; none where each use is checked by itself."""
        return ()

    def is_proved(self) -> bool:
        """Whether what the client has shown for the link, beside its tokens, is good still."""
        return True

    # -- the end ------------------------------------------------------------------------------------------------

    def ask_no_more(self) -> None:
        """The connection is gone, and all its links are about to be closed: nothing may be offered to them."""

    def close(self) -> None:
        """The link is gone."""


def summarize_attach(remote: Attach) -> Attach:
    """What is looked at later; the rest of an attach may be large, and nobody needs it any more."""
    addresses = [getattr(terminus, "address", None) for terminus in (remote.source, remote.target)]
    source, target = (address if is_short(address) else None for address in addresses)
    return Attach(
        name=remote.name,
        handle=remote.handle,
        role=remote.role,
        snd_settle_mode=remote.snd_settle_mode,
        rcv_settle_mode=remote.rcv_settle_mode,
        source=Source(address=source),
        target=Target(address=target),
    )


def about_entity(kind: str) -> dict[str, Int]:
    """Properties of the answer to an attach: which kind of entity it is to; a sub-queue is of its entity's kind."""
    return {ENTITY_TYPE: _ENTITY_TYPES[kind]}


def is_short(address: object) -> bool:
    """Whether an address is one that can be kept."""
    return isinstance(address, str) and len(address) <= ADDRESS_MAX


# -- the links of a session that is for transactions across entities ------------------------------------------------


def begins_with_coordinator(peer: Peer, session: Session) -> bool:
    """Whether a session is for transactions across entities."""
    first = next(peer.endpoints_of(session), None)
    return first is not None and first.is_coordinator


def first_of(peer: Peer, session: Session) -> Endpoint | None:
    """The link on the entity on which the transactions of a session work.

    None when the session is not for several entities: one for transactions across entities has its coordinator first.
    """
    endpoints = peer.endpoints_of(session)
    first = next(endpoints, None)
    if first is None or not first.is_coordinator:
        return None
    # One that another server answers has no queue here.
    return next((found for found in endpoints if found.is_entity), None)


def via_entity(peer: Peer, session: Session) -> Queue | None:
    """The entity of this server on which the transactions of a session work, and via which they send to others."""
    first = first_of(peer, session)
    return None if first is None else first.queue


def via_shard(peer: Peer, session: Session, path: str) -> Queue | None:
    """A shard of this server of the entity on which the transactions of a session work; None when it has none."""
    first = via_entity(peer, session)
    if first is None or not are_shards_of_one(first.path, path):
        return None
    queues = (found.queue for found in peer.endpoints_of(session) if found.is_entity)
    return next((queue for queue in queues if queue is not None and queue.path.lower() == path.lower()), None)


def demand_one_entity(peer: Peer, session: Session, queue: Queue) -> None:
    """Refuse a second entity to receive from on a session for transactions across entities.

    Raises:
        OperationCancelled: The session is one of those, and has another entity already.
    """
    first = first_of(peer, session)
    if first is None:
        return
    entity = first.queue
    if entity is None:
        raise second_entity(first.path, queue.path)
    if entity.top is not queue.top and not are_shards_of_one(entity.top.path, queue.top.path):
        raise second_entity(entity.path, queue.path)


def second_entity(first: str, second: str) -> OperationCancelled:
    """Why a session for transactions across entities cannot receive from another one."""
    return OperationCancelled(
        f"{ONE_ENTITY} The session receives from '{whole_path(first)}' and began with a coordinator, so it cannot "
        f"receive from '{whole_path(second)}'. Use another session."
    )
