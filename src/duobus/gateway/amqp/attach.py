"""What an attach asks for, whether it may have it, and the endpoint that serves it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Attach, Coordinator, Link, Source, Target
from duobus.broker import Queue
from duobus.codec import Described
from duobus.errors import (
    DetachForced,
    InvalidField,
    NotAllowed,
    NotImplementedYet,
    QuotaExceeded,
    ServiceBusError,
    Unauthorized,
)
from duobus.gateway.amqp.arguments import map_of
from duobus.gateway.amqp.entity_status import demand_receiving, demand_sending
from duobus.gateway.amqp.links.counting_link import CountingLink, wants_telling
from duobus.gateway.amqp.links.link import ADDRESS_MAX, about_entity, demand_one_entity, is_short, summarize_attach
from duobus.gateway.amqp.links.session_link import attach_session, needs_session, wanted_session
from duobus.gateway.amqp.links.via_link import ViaLink
from duobus.gateway.amqp.management.cbs_node import CBS, CbsNode
from duobus.gateway.amqp.management.node import ManagementNode
from duobus.gateway.amqp.management.request_node import ReplyLink, RequestLink, RequestNode
from duobus.gateway.amqp.transactions.coordinator import attach_coordinator
from duobus.model.address import Address, parse_address
from duobus.model.descriptions import SUBSCRIPTION, TOPIC, Right

if TYPE_CHECKING:
    from duobus.gateway.amqp.links.link import Endpoint
    from duobus.gateway.amqp.peer import Peer

#: From the TCP connection to ``open`` and to the first token (Azure: AMQP protocol guide).
HANDSHAKE_MS, TOKEN_MS = 10_000, 20_000

SETTLED = 1
MAX_BATCH_SIZE = "com.microsoft:max-message-batch-size"
#: Asks that messages be sent on to another entity when they are committed (Azure: transaction processing).
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
#: Property of an attach by another server: what comes on the link is for its address, by way of the session's first
#: entity.
VIA_SESSION: Final = "com.duobus:via-session"
#: The selector of JMS: name and code of the filter that a source describes (AMQP filter registry).
SELECTOR, SELECTOR_CODE = "apache.org:selector-filter:string", 0x468C_0000_0004


def attach(peer: Peer, link: Link, *, is_last: bool = False) -> None:
    """Accept a link and start it, or refuse it with the error that the SDK needs (AMQP 1.0 part 2, 2.6.3).

    Or pass it on: its entity is another server's. ``is_last``: the catalog was just read for it.
    """
    text = _address_text(link)
    try:
        if peer.server.is_closing:
            raise DetachForced("The server is shutting down. Attach again.")
        if not link.is_sender and isinstance(_remote(link).target, Coordinator):
            attach_coordinator(peer, link)
            link.remote = summarize_attach(_remote(link))
            return
        _check_supported(link)
        if not text:
            raise NotImplementedYet("A link needs the address of an entity; anonymous nodes are not offered.")
        attach_to_node = peer.server.nodes.get(text)
        if attach_to_node is not None:
            attach_to_node(peer, link)
            link.remote = summarize_attach(_remote(link))
            return
        address = parse_address(text)
        again = partial(attach, peer, link, is_last=True)
        if not address.is_cbs and peer.router.route(link, address, again, is_last=is_last):
            return
        if address.is_cbs:
            _attach_node(peer, link, CbsNode(peer, CBS), ())
        elif address.is_management:
            _attach_management(peer, link, address, text)
        elif link.is_sender:
            _attach_receiver(peer, link, address)
        else:
            _attach_sender(peer, link, address)
    except ServiceBusError as error:
        described = peer.error(error, text or "")
        link.refuse(described.condition, described.description, described.info)
    link.remote = summarize_attach(_remote(link))


def _remote(link: Link) -> Attach:
    remote = link.remote
    assert remote is not None  # it is the peer's attach that brought us here
    return remote


def _address_text(link: Link) -> str | None:
    """The node that a client means: what it receives from, or what it sends to."""
    remote = _remote(link)
    terminus = remote.source if link.is_sender else remote.target
    address = getattr(terminus, "address", None)
    if address is None and link.is_sender is False:
        # JavaScript's $cbs and $management senders leave one terminus empty (Azure: AMQP protocol guide).
        address = getattr(remote.source, "address", None) if not isinstance(terminus, Target) else None
    return address if isinstance(address, str) else None


def _check_supported(link: Link) -> None:
    for terminus in (_remote(link).source, _remote(link).target):
        if not is_short(getattr(terminus, "address", None) or ""):
            raise InvalidField(f"An address is a string of {ADDRESS_MAX} characters at most.")
        if terminus is not None and not isinstance(terminus, (Source, Target)):
            raise NotImplementedYet("A coordinator is a target that you send to. Attach to it as a sender.")
        if getattr(terminus, "dynamic", False):
            raise NotImplementedYet("Dynamic nodes are not offered. Create the entity, then attach to it.")
    if link.is_sender and _has_selector(getattr(_remote(link).source, "filter", None)):
        # Left out of the echo, it would go unnoticed: Qpid JMS does not look there, and would get everything.
        raise NotImplementedYet("Selectors are not offered. Receive from a subscription whose rule has the filter.")


def _has_selector(filters: object) -> bool:
    """Whether a source asks for a selector, whatever key a client gives it in the map of filters."""
    return any(
        str(key) == SELECTOR or (isinstance(value, Described) and value.descriptor in (SELECTOR, SELECTOR_CODE))
        for key, value in map_of(filters).items()
    )


def _authorize(peer: Peer, address: Address, right: Right, name: str) -> None:
    if not peer.allows(address.segments(), right):
        raise Unauthorized(
            f"Unauthorized access. '{name}' claim(s) are required to perform this operation. "
            f"Resource: 'sb://{peer.namespace}/{address.path}'. Put a token that has it."
        )


def _demand_room(queue: Queue, limit: int) -> None:
    number = sum(len(scheduler.receivers) for scheduler in queue.schedulers.values())
    if number >= limit:
        raise QuotaExceeded(
            f"The {queue.kind} '{queue.path}' has {number} receivers of at most {limit}. Close some, or raise the "
            "quota (--quota receivers=...)."
        )


def _attach_sender(peer: Peer, link: Link, address: Address) -> None:
    """The client sends."""
    if peer.router.is_proxied and is_via_session(_remote(link)):
        _attach_via_session(peer, link, address)
        return
    _authorize(peer, address, Right.SEND, "Send")
    queue = peer.server.unit.namespace(peer.namespace or "").resolve(address)
    if address.sub_queue:
        raise NotAllowed("Messages cannot be sent to a dead-letter queue. Send to the entity itself.")
    if queue.kind == SUBSCRIPTION:
        raise NotAllowed(f"Messages cannot be sent to a subscription. Send to its topic '{queue.top.path}'.")
    demand_sending(queue)
    size_max = queue.description.max_message_size_bytes
    destination = _destination_of(peer, link)
    if destination is None:
        endpoint = peer.server.link_kinds.incoming(peer, link, queue, address.segments())
    else:
        endpoint = ViaLink(peer, link, queue, address.segments(), destination)
    link.accept(max_message_size=size_max, properties={MAX_BATCH_SIZE: size_max, **about_entity(queue.kind)})
    peer.add_endpoint(link, endpoint)
    endpoint.start()


def _property(link: Link, name: str) -> Any:
    """A property of the client's attach; None when it has none of this name."""
    return next((value for key, value in (_remote(link).properties or {}).items() if str(key) == name), None)


def is_via_session(attach: Attach) -> bool:
    """Whether another server asks for a link on which its client's transactions send by way of another entity."""
    return any(str(key) == VIA_SESSION for key in attach.properties or {})


def _attach_via_session(peer: Peer, link: Link, address: Address) -> None:
    """Another server's client sends in transactions, by way of the entity with which its session began."""
    shard = _property(link, VIA_SESSION)
    via = peer.router.demand_first(link.session, shard if isinstance(shard, str) else None)
    endpoint = ViaLink(peer, link, via, address.segments(), _demand_destination(peer, address))
    link.accept(max_message_size=via.description.max_message_size_bytes, properties=about_entity(via.kind))
    peer.add_endpoint(link, endpoint)
    endpoint.start()


def _destination_of(peer: Peer, link: Link) -> str | None:
    """Where messages go that a client sends via the entity of its link; None when they are for that entity.

    Raises:
        ServiceBusError: There is no such entity, or the client may not send to it.
    """
    text = _property(link, TRANSFER_DESTINATION)
    if text is None:
        return None
    if not is_short(text):
        raise InvalidField(f"{TRANSFER_DESTINATION} is a string of {ADDRESS_MAX} characters at most.")
    return _demand_destination(peer, parse_address(str(text)))


def _demand_destination(peer: Peer, address: Address) -> str:
    """The path of an entity that a client may send to via another one."""
    _authorize(peer, address, Right.SEND, "Send")
    if address.sub_queue or address.is_management or address.is_cbs:
        raise NotAllowed("Messages are sent via an entity to a queue itself, not to a part of it.")
    home = peer.server.unit.namespace(peer.namespace or "")
    if address.subscription is None and not home.is_taken(address.key) and home.has(address.key):
        # Another server has it, and gets the messages when they are durable here.
        return address.path
    return home.resolve(address).path


def _attach_receiver(peer: Peer, link: Link, address: Address) -> None:
    """The client receives."""
    _authorize(peer, address, Right.LISTEN, "Listen")
    queue = peer.server.unit.namespace(peer.namespace or "").resolve(address)
    if queue.kind == TOPIC:
        raise NotAllowed(f"Nothing can be received from the topic '{queue.path}'. Receive from a subscription of it.")
    demand_one_entity(peer, link.session, queue)
    demand_receiving(queue, address.sub_queue)
    _demand_room(queue, peer.server.unit.quotas.receivers)
    source: Any = _remote(link).source
    filters = getattr(source, "filter", None)
    is_session, session_id = wanted_session(filters)
    requires_session = queue.description.requires_session and not address.sub_queue
    if is_session and not requires_session:
        what = "The entity does" if not address.sub_queue else "Dead-letter queues do"
        raise NotAllowed(f"{what} not require sessions, so no session can be accepted from it.")
    if requires_session and not is_session:
        raise needs_session(queue.kind, queue.path)
    if getattr(source, "distribution_mode", None) == "copy":
        raise NotImplementedYet("Browsing by a link is not offered. Use peek-message of $management.")
    is_removing = _remote(link).snd_settle_mode == SETTLED
    if requires_session:
        attach_session(peer, link, queue, address, session_id, is_removing=is_removing)
        return
    if isinstance(filters, dict):
        # What is not honoured is left out of the echo, so that clients notice.
        source.filter = None
    maker = CountingLink if wants_telling(_remote(link)) else peer.server.link_kinds.outgoing
    endpoint = maker(
        peer,
        link,
        queue,
        address.segments(),
        sub_queue=address.sub_queue,
        is_removing=is_removing,
        deliveries=peer.deliveries_of(link.session),
    )
    link.accept(max_message_size=queue.description.max_message_size_bytes, properties=about_entity(queue.kind))
    peer.add_endpoint(link, endpoint)


def _attach_management(peer: Peer, link: Link, address: Address, text: str) -> None:
    if not any(peer.allows(address.segments(), right) for right in (Right.LISTEN, Right.SEND, Right.MANAGE)):
        raise Unauthorized(
            "Unauthorized access. A claim (Send, Listen or Manage) is required to perform this operation. "
            f"Resource: 'sb://{peer.namespace}/{address.path}'. Put a token that has one."
        )
    queue = peer.server.unit.namespace(peer.namespace or "").resolve(address)
    node = ManagementNode(peer, _normal(address), queue, address)
    _attach_node(peer, link, node, address.segments(), about_entity(queue.kind))


def _normal(address: Address) -> str:
    return "/".join((*address.segments(), "$management"))


def _attach_node(
    peer: Peer, link: Link, node: RequestNode, segments: tuple[str, ...], properties: dict[str, Any] | None = None
) -> None:
    if link.is_sender:
        link.accept(properties=properties)
        peer.add_endpoint(link, ReplyLink(peer, link, node, segments))
        return
    if node.is_alone and any(_sends_to_one_alone(one, endpoint) for one, endpoint in peer.endpoints()):
        # Clients that have lost a link to it, and do not know whether it is closed, make a new connection of this.
        raise NotAllowed("The connection has a link that sends to $cbs already. Close it, or connect again.")
    endpoint = RequestLink(peer, link, node, segments)
    link.accept(max_message_size=node.request_bytes_max, properties=properties)
    peer.add_endpoint(link, endpoint)
    endpoint.start()


def _sends_to_one_alone(link: Link, endpoint: Endpoint) -> bool:
    return not link.is_sender and endpoint.node is not None and endpoint.node.is_alone
