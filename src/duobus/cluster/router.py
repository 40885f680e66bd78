"""Links on entities that another server has: proxied to it, whole batches at a time (decision 0024).

A client's link is answered by the owner of its entity, over a connection that this server makes to the owner's own
server in the client's name: with its host name, its login, its tokens. So the owner checks every right itself and a
server can do no more to the entities of another than its clients may; and whatever the owner can do for a link, it can
do here: sending, receiving, sessions, ``$management`` with all of its operations.

    client <--link-- this server --link--> owner         one connection to each owner for each connection of a client

Delivery ids are translated per session, tags and payloads pass as they are, credit is the other side's: nothing waits
here but what a peer has no credit for. When the connection to the owner ends, so do the links, and their client
attaches again; what it was told by then is durable with the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import (
    ANONYMOUS,
    PLAIN,
    ConnectionSettings,
    Link,
    OpenReceived,
    Rejected,
    Session,
    SessionEnded,
    TransactionalState,
    plain_response,
)
from duobus.broker import lock_lost
from duobus.cluster import directory
from duobus.cluster.connection import CONNECT_S, FRAME_SIZE, IDLE_MS, connect
from duobus.cluster.proxy.entity_link import LOOK_S, MOVING_S, ProxiedEntityLink
from duobus.cluster.proxy.link import ProxiedLink
from duobus.cluster.proxy.upstream import UpstreamConnection
from duobus.cluster.proxy.via_link import BorrowedViaLink, RemoteViaLink, demand_same
from duobus.cluster.sharding.link import ShardedEndpoint, ShardedLink, demand_direction, demand_ordinary
from duobus.cluster.sharding.management import ShardedManagementNode
from duobus.cluster.sharding.receiver import ShardedReceiver
from duobus.cluster.sharding.sender import ShardedSender
from duobus.cluster.sharding.sessions import SessionSearch, wants_session
from duobus.cluster.sharding.via_link import ShardedViaLink, demand_beside
from duobus.errors import DetachForced, ServerBusy, Unauthorized
from duobus.gateway.amqp.attach import is_via_session
from duobus.gateway.amqp.links.link import first_of, via_entity, via_shard
from duobus.gateway.tls import untrusted
from duobus.model.address import Address, not_found
from duobus.model.descriptions import Right

if TYPE_CHECKING:
    from duobus.amqp import Transfers
    from duobus.broker import Queue
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.shards import ShardedEntityMap
    from duobus.gateway.amqp.peer import Peer
    from duobus.gateway.amqp.router import RouterListener

#: In the properties of open: a connection that another server has made for a client. Its links are proxied no more.
PROXIED: Final = "com.duobus:passed-by"
#: Tokens that are kept to be shown to owners: those put last.
TOKENS_MAX: Final = 100

#: What ``OwnerDirectory.where`` says beside an owner's address.
HERE: Final = directory.HERE
MOVING: Final = directory.MOVING
UNKNOWN: Final = directory.UNKNOWN


class ClusterRouter:
    """What one connection of a client has at other servers.

    Attributes:
        is_proxied: It is itself one that another server has made.
        has_others: Other servers may have created entities that this one has not heard of yet.
        listener: Itself.
        tokens: Audience to token, as the client has put them.
    """

    def __init__(self, peer: Peer, owners: OwnerDirectory) -> None:
        self.is_proxied = False
        self.has_others = True
        self.listener: RouterListener | None = self
        self.tokens: dict[str, str] = {}
        self._peer = peer
        self._owners = owners
        self._hostname: str | None = None
        self._login: tuple[str, str] | None = None
        self._upstreams: dict[str, UpstreamConnection] = {}
        # A dict, for simulations must do the same every time.
        self._sharded_links: dict[ShardedEndpoint, None] = {}
        # Which shard is asked first for the next available session.
        self._turn = 0
        self._nodes: dict[tuple[str, ...], ShardedManagementNode] = {}
        # Links of the client, and those beside them on which its transactions send.
        self._vias: dict[Link, RemoteViaLink | ShardedViaLink] = {}
        # What a transaction settles of others' deliveries at this moment: the client's range, and their number.
        self._named: dict[tuple[int, int], int] = {}
        # What begins when every owner is ready to do transactions.
        self._starting: list[Callable[[], None]] = []

    # -- what the client has shown ------------------------------------------------------------------------------

    def opened(self, event: OpenReceived) -> None:
        """The client has opened its connection."""
        self._hostname = event.hostname
        self.is_proxied = any(str(key) == PROXIED for key in event.properties)
        self.has_others = not self.is_proxied
        if self.is_proxied:
            self._peer.engine.settings.idle_time_out_ms = IDLE_MS

    def logged_in(self, name: str, key: str) -> None:
        """The client's login was good."""
        self._login = name, key

    def token_put(self, audience: str, token: str) -> None:
        """A token of the client was good here: the others want to see it, too."""
        self.tokens.pop(audience, None)
        self.tokens[audience] = token
        if len(self.tokens) > TOKENS_MAX:
            del self.tokens[next(iter(self.tokens))]
        for upstream in self._upstreams.values():
            upstream.put_token(audience, token)

    # -- links --------------------------------------------------------------------------------------------------

    def knows(self, address: Address) -> bool:
        """Whether another server has the entity of an address, as far as this one knows.

        The server that the client is connected to has looked already when this one was asked by it. Subscriptions are
        known to the server that has their topic.
        """
        namespace = self._peer.namespace or ""
        return (
            self.is_proxied
            # It may exist: an attach is told so.
            or not self._owners.knows_catalog
            or self._owners.sharded_entity_of(namespace, address.key) is not None
            or self._owners.where(namespace, address.key) not in (HERE, UNKNOWN)
        )

    async def learn(self) -> None:
        """Look for entities that others have created meanwhile."""
        await self._owners.refresh()

    def route(self, link: Link, address: Address, again: Callable[[], None], *, is_last: bool) -> bool:
        """Whether a link is answered by somebody else, or later by ``again``; ``is_last``: it is not asked again.

        Raises:
            DetachForced: The entity moves just now.
            Unauthorized: The client has no right there.
        """
        peer = self._peer
        sharded = None if self.is_proxied else self._owners.sharded_entity_of(peer.namespace or "", address.entity_key)
        where = UNKNOWN if sharded else self._where(address)
        if where == UNKNOWN and is_last and not sharded:
            self._demand_known(address)
            return False
        if self.is_proxied and link.remote is not None and is_via_session(link.remote):
            # It is not this entity's: see attaching.
            return False
        beside = self._needs_via(link, address, where, sharded)
        if beside is not None:
            self._attach_via(beside, link, address.path, again)
            return True
        if where == HERE:
            return False
        if not any(peer.allows(address.segments(), right) for right in (Right.LISTEN, Right.SEND, Right.MANAGE)):
            raise Unauthorized(
                "Unauthorized access. A claim (Send, Listen or Manage) is required to perform this operation. "
                f"Resource: 'sb://{peer.namespace}/{address.path}'. Put a token that has one."
            )
        if sharded is not None:
            self._route_sharded(link, address, sharded)
            return True
        if where == UNKNOWN or (where == MOVING and not self.is_proxied and not is_last):
            # It may have been created a moment ago, by another server; or it has an owner in a moment.
            peer.spawn(self._refresh(link, again) if where == UNKNOWN else self._await_owner(link, address, again), 0)
            return True
        if where == MOVING or self.is_proxied:
            raise DetachForced(f"'{address.path}' moves to another server. Attach again.")
        upstream = self.upstream(where)
        if link.is_sender and not address.is_management:
            demand_same(peer, link.session, address.path, upstream)
        proxied = (
            ProxiedLink(peer, link, address.segments(), self._owners)
            if address.is_management
            else ProxiedEntityLink(peer, link, address, self._owners, self.upstream)
        )
        peer.add_endpoint(link, proxied)
        upstream.attach(proxied)
        return True

    def _where(self, address: Address) -> str:
        """Who has what is not sharded; UNKNOWN for what a sharded topic does not have, as far as this server knows."""
        namespace = self._peer.namespace or ""
        if address.subscription is not None and self._owners.sharded_entity_of(namespace, address.key) is not None:
            return UNKNOWN
        return self._owners.where(namespace, address.key)

    def _needs_via(
        self, link: Link, address: Address, where: str, sharded: ShardedEntityMap | None
    ) -> ProxiedLink | None:
        """The link on an entity of another server by way of which transactions send on a link; None when they do not.

        It is asked for once: from then on there is a link beside it.
        """
        if link.is_sender or address.is_management or self.is_proxied or link in self._vias:
            return None
        first = first_of(self._peer, link.session)
        if not isinstance(first, ProxiedLink) or (where in (MOVING, UNKNOWN) and sharded is None):
            return None
        if isinstance(first, ShardedLink):
            is_itself = sharded is not None and sharded.row.entity_id == first.sharded_entity.row.entity_id
            return None if is_itself else first
        return first if sharded is not None or where == HERE or not first.is_of(self.upstream(where)) else None

    def _attach_via(self, first: ProxiedLink, link: Link, path: str, again: Callable[[], None]) -> None:
        """Make a link beside a client's own, by way of the first entity of its session."""
        if isinstance(first, ShardedLink):
            whole = self._vias[link] = ShardedViaLink(first, link, path, again)
            self._sharded_links[whole] = None
            whole.start()
        else:
            via = self._vias[link] = RemoteViaLink(self._peer, link, path, self._owners, again)
            first.attach_beside(via)

    def send_via(self, link: Link, event: Transfers) -> bool:
        """Have a transaction send something by way of its session's first entity; False when that is the link's own."""
        via = self._vias.get(link)
        if via is not None:
            via.take(event)
            return True
        proxied = self._peer.endpoint_of(link)
        # On a link of this server's own the link does it itself.
        queue = via_entity(self._peer, link.session) if isinstance(proxied, ProxiedLink) else None
        if queue is None or not isinstance(proxied, ProxiedLink):
            return False
        BorrowedViaLink(self._peer, link, queue, proxied.segments, proxied.path).take(event)
        return True

    def demand_first(self, session: Session, shard: str | None) -> Queue:
        """See LinkRouter."""
        via = via_entity(self._peer, session) if shard is None else via_shard(self._peer, session, shard)
        if via is None:
            raise DetachForced(
                "The session does not begin with a coordinator and an entity of this server. Attach again."
            )
        return via

    def _route_sharded(self, link: Link, address: Address, sharded: ShardedEntityMap) -> None:
        """Answer a link on a sharded entity, together with the owners of its shards."""
        if address.is_management:
            node = self._nodes.get(address.segments())
            if node is None:
                node = ShardedManagementNode(self._peer, address, sharded, self._owners, self.upstream)
                self._nodes[address.segments()] = node
            node.serve(link, address.segments())
            return
        whole: ShardedEndpoint
        demand_direction(link, address, sharded)
        if link.is_sender:
            demand_beside(self._peer, link.session, address.path, sharded)
        arguments = self._peer, link, address, sharded, self._owners, self.upstream
        if link.is_sender and sharded.about.requires_session and not address.sub_queue and wants_session(link):
            self._turn += 1
            whole = SessionSearch(*arguments, self._turn)
        else:
            demand_ordinary(link, sharded, address.sub_queue)
            whole = ShardedReceiver(*arguments) if link.is_sender else ShardedSender(*arguments)
        self._peer.add_endpoint(link, whole)
        self._sharded_links[whole] = None
        whole.start()

    async def _refresh(self, link: Link, again: Callable[[], None]) -> None:
        await self._owners.refresh()
        if not self._peer.is_gone and link.remote is not None:
            again()
            self._peer.write_soon()

    def _demand_known(self, address: Address) -> None:
        """Refuse what no server has, as far as that is for this one to say.

        Raises:
            EntityNotFound: A sharded topic has no such subscription.
            ServerBusy: Nobody can say now whether the entity exists.
        """
        path = address.path
        if not self._owners.knows_catalog and not self.is_proxied:
            raise ServerBusy(
                f"Whether '{path}' exists is not known: the catalog's database is not reached. Try again in a moment."
            )
        namespace = self._peer.namespace or ""
        if address.subscription is not None and self._owners.sharded_entity_of(namespace, address.key) is not None:
            raise not_found(f"sb://{namespace}/{path}/Subscriptions/{address.subscription}")

    async def _await_owner(self, link: Link, address: Address, again: Callable[[], None]) -> None:
        """Attach once the entity has an owner: a refusal would have the client wait for longer, and try again."""
        for _ in range(round(MOVING_S / LOOK_S)):
            if self._owners.where(self._peer.namespace or "", address.key) != MOVING or self._peer.is_gone:
                break
            await asyncio.sleep(LOOK_S)
        if not self._peer.is_gone and link.remote is not None:
            again()
            self._peer.write_soon()

    def upstream(self, address: str) -> UpstreamConnection:
        """The connection to a server, made when there is none."""
        upstream = self._upstreams.get(address)
        if upstream is None or upstream.is_gone:
            upstream = self._upstreams[address] = UpstreamConnection(self._peer, self, self._settings(), self.tokens)
            self._peer.spawn(self._connect(upstream, address), 0)
        return upstream

    def _settings(self) -> ConnectionSettings:
        mechanism, response = ANONYMOUS, b""
        if self._login is not None:
            mechanism, response = PLAIN, plain_response(*self._login)
        return ConnectionSettings(
            container_id=self._peer.engine.settings.container_id,
            hostname=self._hostname,
            max_frame_size=FRAME_SIZE,
            idle_time_out_ms=IDLE_MS,
            mechanisms=(mechanism,),
            sasl_response=response,
            properties={PROXIED: self._owners.node_id},
        )

    async def _connect(self, upstream: UpstreamConnection, address: str) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await connect(upstream, address, self._owners.context)
        except SSLCertVerificationError as error:
            upstream.fail(untrusted(address, error))
        except (OSError, TimeoutError) as error:
            upstream.fail(f"the server at {address} cannot be reached ({type(error).__name__})")

    # -- transactions -------------------------------------------------------------------------------------------

    def coordinate(self, start: Callable[[], None]) -> None:
        """The client has attached to the coordinator: owners are asked to do its transactions before it may begin."""
        for upstream in self._upstreams.values():
            upstream.coordinate()
        self._starting.append(start)
        self.coordinated()

    def coordinated(self) -> None:
        """An owner is ready to do transactions, or gone."""
        coordinators = [upstream.coordinator for upstream in self._upstreams.values() if not upstream.is_gone]
        # One that is only being connected to has its coordinator before its first link.
        if all(one is None or one.is_ready or one.is_gone for one in coordinators):
            starting, self._starting = self._starting, []
            for start in starting:
                start()

    # -- events of the client's connection ----------------------------------------------------------------------

    def dispositions(self, session: Session, ranges: list[tuple[int, int, bool, Any]]) -> None:
        """The client settles what it has received."""
        self._named.clear()
        for first, last, settled, state in ranges:
            if isinstance(state, TransactionalState):
                self._note_named(session, first, last, state, settled=settled)
        for upstream in self._upstreams.values():
            upstream.client_settles(session, ranges)

    def _note_named(self, session: Session, first: int, last: int, state: TransactionalState, *, settled: bool) -> None:
        number = sum(upstream.number_of(session, first, last) for upstream in self._upstreams.values())
        self._named[first, last] = number
        # From here on the session has deliveries, so that those of this server are looked for in any case.
        own = self._peer.deliveries_of(session).settle(first, last, mark=False)
        if not number and not own and not settled:
            session.disposition(False, first, last, Rejected(self._peer.error(lock_lost(), "$coordinator")), True)

    def named(self, first: int, last: int) -> int:
        """How many of the deliveries that the client names in a transaction at this moment are other servers'."""
        return self._named.get((first, last), 0)

    def session_ended(self, event: SessionEnded) -> None:
        """A session of the client is gone, and all its links."""
        for upstream in self._upstreams.values():
            upstream.end_session(event.session)

    def resume(self) -> None:
        """The client's socket takes more again."""
        for upstream in self._upstreams.values():
            upstream.see_to_reading()

    def tick(self, monotonic_ms: int) -> None:
        """Heartbeats."""
        for whole in list(self._sharded_links):
            whole.tick(monotonic_ms)
            if whole.is_over:
                self._sharded_links.pop(whole, None)
        for address, upstream in list(self._upstreams.items()):
            upstream.tick(monotonic_ms)
            if upstream.is_gone:
                del self._upstreams[address]
        for link in [link for link, via in self._vias.items() if via.is_over]:
            self._vias.pop(link).end()

    def node_links(self) -> list[ProxiedLink]:
        """Links with owners that are no endpoints: of management nodes of sharded queues, and beside others."""
        wholes = [*self._nodes.values(), *self._vias.values()]
        return [link for whole in wholes for link in whole.parts()]

    def close(self) -> None:
        """The client is gone: its locks are given back by those who gave them."""
        for upstream in self._upstreams.values():
            upstream.abort()
        self._upstreams.clear()
        self._nodes.clear()
        self._sharded_links.clear()
        self._vias.clear()
        self.tokens.clear()
