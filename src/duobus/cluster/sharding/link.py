"""A client's link on a sharded entity: one proxied link for each shard, and what is common to both directions.

The server that the client is connected to is the entity's front: it makes a *shard link* to the owner of each shard,
itself among them, over the connections that it has in the client's name (decisions 0024, 0029). A shard without an
owner is left out and looked for again at every tick; so the loss of a store or a server takes from the entity what lies
there, and nothing else. When a shard link ends that has given the client something, the client's link ends, too: the
client attaches again and goes on with the shards that are there. A link on which a client sends goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import RELEASED, Link, Rejected, Source, Target, Transfers
from duobus.amqp import Error as AmqpError
from duobus.cluster.proxy.link import ProxiedLink, ProxiedSession
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import DetachForced, NotAllowed, NotImplementedYet, ServerBusy, ServiceBusError
from duobus.gateway.amqp.attach import TRANSFER_DESTINATION
from duobus.gateway.amqp.links.counting_link import TELLS
from duobus.gateway.amqp.links.link import about_entity, summarize_attach
from duobus.gateway.amqp.links.session_link import needs_session, wanted_session
from duobus.model.address import Address, not_found
from duobus.model.descriptions import TOPIC

if TYPE_CHECKING:
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer

#: How long an attach waits for the owner of any shard: they find each other within a lease and some beats.
ATTACH_MS: Final = 5_000
#: Why a shard link may end while the client's link goes on: its shard has another owner, or is just being made.
ROUTING: Final = frozenset(
    (
        DetachForced.condition,
        "amqp:connection:forced",
        "amqp:not-found",
        "amqp:internal-error",
        "com.microsoft:server-busy",
    )
)


def demand_direction(link: Link, address: Address, sharded: ShardedEntityMap) -> None:
    """Refuse a link that wants to send or receive where that is not done.

    Raises:
        EntityNotFound: A topic has no such sub-queue.
        NotAllowed: It receives from a topic, or sends to a subscription or a sub-queue.
    """
    path = sharded.row.path
    if sharded.kind == TOPIC and address.sub_queue:
        raise not_found(f"sb://{sharded.row.namespace}/{'/'.join(address.segments())}")
    if link.is_sender and sharded.kind == TOPIC:
        raise NotAllowed(f"Nothing can be received from the topic '{path}'. Receive from a subscription of it.")
    if not link.is_sender and address.sub_queue:
        raise NotAllowed("Messages cannot be sent to a dead-letter queue. Send to the entity itself.")
    if not link.is_sender and sharded.topic is not None:
        raise NotAllowed(f"Messages cannot be sent to a subscription. Send to its topic '{sharded.topic.row.path}'.")


def demand_ordinary(link: Link, sharded: ShardedEntityMap, sub_queue: int) -> None:
    """Refuse a link that wants something which is not offered over several shards.

    Raises:
        NotAllowed: A session of what has none, or none of what requires one.
        NotImplementedYet: To browse.
    """
    remote = link.remote
    source: Any = None if remote is None else remote.source
    is_session = wanted_session(getattr(source, "filter", None))[0]
    if is_session:
        what = "The entity does" if not sub_queue else "Dead-letter queues do"
        raise NotAllowed(f"{what} not require sessions, so no session can be accepted from it.")
    if link.is_sender and sharded.about.requires_session and not sub_queue:
        raise needs_session(sharded.kind, sharded.about.name)
    if getattr(source, "distribution_mode", None) == "copy":
        raise NotImplementedYet("Browsing by a link is not offered. Use peek-message of $management.")


class ShardLink(ProxiedLink):
    """The link with the owner of one shard.

    Attributes:
        whole: The client's link, of which it is a part.
        index: Of the shard.
        address: Where its owner is.
        is_open: The owner has accepted it.
        is_busy: Its owner has refused something for now; it gets no message in turn before the next tick.
        unanswered: What was sent on it and not answered.
        granted: Credit that its owner has, and has neither used nor given back.
    """

    __slots__ = ("address", "granted", "index", "is_busy", "is_open", "unanswered", "whole")

    def __init__(self, whole: ShardedLink, index: int, address: str) -> None:
        super().__init__(whole.peer, whole.link, whole.segments, whole.owners)
        self.whole = whole
        self.index = index
        self.address = address
        self.is_busy = False
        self.is_open = False
        self.unanswered = 0
        self.granted = 0

    def settled(self, number: int, state: Any) -> None:
        """See Answered."""
        self.unanswered -= number
        if isinstance(state, Rejected) and state.error is not None:
            self.is_busy = self.is_busy or str(state.error.condition) == ServerBusy.condition

    @property
    def can_reach(self) -> bool:
        """Whether what is sent on it can reach the owner, as far as this server knows."""
        return self.uplink is not None and self._upstream is not None and not self._upstream.is_gone

    def does(self, coordinator: object) -> bool:
        """Whether this is the coordinator of its owner."""
        return self._upstream is not None and self._upstream.coordinator is coordinator

    def take(self, event: Transfers) -> None:
        """Pass one delivery of a transaction on."""
        self._in_state(event)

    def _note_sent(self, session: ProxiedSession, owner_id: int, event: Transfers) -> int:
        """See ProxiedLink: its answer is waited for, as that of every other delivery."""
        self.unanswered += 1
        return session.note_sent(owner_id, event.first_delivery_id, event.payloads, self)

    @property
    def pending(self) -> int:
        """What came from the owner and the client has no credit for."""
        return len(self._held)

    def attach(self, upstream: UpstreamConnection, session: ProxiedSession) -> None:
        """See ProxiedLink; at the shard's own address."""
        remote, whole = self.link.remote, self.whole
        # Its connection may have taken longer than the client, or the answers of others.
        if remote is None or self.uplink is not None or whole.branches.get(self.index) is not self:
            return
        self._upstream, self.session = upstream, session
        address = whole.target_of(self.index)
        attach = session.owner.attach_receiver if self.link.is_sender else session.owner.attach_sender
        self.uplink = attach(
            whole.next_name(),
            Source(address=address if self.link.is_sender else "front"),
            Target(address="front" if self.link.is_sender else address),
            snd_settle_mode=2 if remote.snd_settle_mode is None else remote.snd_settle_mode,
            rcv_settle_mode=remote.rcv_settle_mode or 0,
            properties={TELLS: True} if self.link.is_sender else whole.properties_of(self.index),
        )
        self.uplink.context = self
        if self.link.is_sender:
            self.uplink.tags = []
            self.uplink.told = 0

    def answered(self) -> None:
        """See ProxiedLink."""
        remote = None if self.uplink is None else self.uplink.remote
        if remote is None or (remote.source if self.link.is_sender else remote.target) is None:
            return
        self.is_open = self._is_accepted = True
        self._owners.proxied_links += 1
        self.whole.opened(self, remote.max_message_size)

    def owner_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """See ProxiedLink."""
        del closed
        self.uplink = None
        self.whole.ended(self, error)

    def lost(self, text: str) -> None:
        """See ProxiedLink."""
        del text
        self.uplink = None
        self.whole.ended(self, None)

    def owner_flow(self) -> None:
        """See ProxiedLink: credit is a matter of all shard links together."""
        if self.uplink is not None and self.is_open:
            self.whole.shard_flow(self)
            if self.uplink is not None and self.uplink.echo:
                self.uplink.flow()
                self._write()

    def owner_transfers(self, event: Transfers) -> None:
        """See ProxiedLink."""
        super().owner_transfers(event)
        self.whole.given(self, event)

    def give_back(self) -> None:
        """Give messages back that the client has no credit for any more; their deliveries don't count."""
        while self._held and self.session is not None:
            owner_id, *_ = self._held.popleft()
            self.session.owner.disposition(True, owner_id, owner_id, RELEASED, True)
        self._write()

    def write(self) -> None:
        """Have what was made for the owner written."""
        self._write()


class ShardedEndpoint(ProxiedLink):
    """The client's end of a link that the owners of several shards answer.

    Attributes:
        peer, owners: As in ProxiedLink.
        sharded_entity: The queue, topic or subscription.
        connect: Gives the connection to a server.
        is_over: The client's link has ended, or is another endpoint's.
    """

    __slots__ = ("_address", "_names", "connect", "is_over", "owners", "peer", "sharded_entity")

    def __init__(
        self,
        peer: Peer,
        link: Link,
        address: Address,
        sharded_entity: ShardedEntityMap,
        owners: OwnerDirectory,
        connect: Callable[[str], UpstreamConnection],
    ) -> None:
        super().__init__(peer, link, address.segments(), owners)
        self.peer = peer
        self.owners = owners
        self.sharded_entity = sharded_entity
        self.connect = connect
        self.is_over = False
        self._address = address
        self._names = 0

    def address_of(self, index: int) -> str:
        """The address of a shard, or of the same sub-queue of it."""
        own = Address(self.sharded_entity.shares[index].path, None, self._address.sub_queue)
        return "/".join((own.path, *own.segments()[own.path.count("/") + 1 :]))

    def next_name(self) -> str:
        """A name that no other link of the client's connection has."""
        self._names += 1
        return f"{self._prefix.hex()}-{self._names}"

    def follow(self) -> bool:
        """Know in which stores the shards lie by now: they may have moved.

        Returns:
            False when the entity is gone, or another one of its name is there.
        """
        sharded_entity = self.owners.sharded_entity_of(self.peer.namespace or "", self._address.entity_key)
        if sharded_entity is None or sharded_entity.row.entity_id != self.sharded_entity.row.entity_id:
            return False
        self.sharded_entity = sharded_entity
        return True

    def start(self) -> None:
        """Look for the owners."""
        raise NotImplementedError

    def tick(self, monotonic_ms: int) -> None:
        """Follow the shards to their owners; called about twice a second."""

    def attach_beside(self, other: ProxiedLink) -> None:
        """See ProxiedLink: which of the owners that would be nobody knows yet."""
        other.lost("the session of its first entity is not known yet")

    def _end_with(self, error: ServiceBusError) -> None:
        described = self.peer.error(error, self._address.path)
        self._end(described.condition, described.description, described.info)

    def _end(self, condition: Any = None, text: str | None = None, info: Any = None) -> None:
        if condition is None:
            self._close()
            return
        if self._is_accepted:
            self.link.detach(condition, text, info)
        else:
            self.link.refuse(condition, text, info)
        self.peer.drop_endpoint(self.link)
        self.peer.write_soon()

    def close(self) -> None:
        """The client has detached, or is gone."""
        self._close()

    def _close(self) -> None:
        raise NotImplementedError


class ShardedLink(ShardedEndpoint):
    """The client's end; see ShardedSender and ShardedReceiver.

    Attributes:
        branches: By shard; those without an owner are missing.
        asked_properties: What of the properties of the client's attach its owners have to know.
    """

    __slots__ = ("_since_ms", "_size_max", "asked_properties", "branches")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        remote = self.link.remote
        asked = {} if remote is None else remote.properties or {}
        # Each owner is to send on what the client sends by way of the queue.
        self.asked_properties = {key: value for key, value in asked.items() if str(key) == TRANSFER_DESTINATION}
        self.branches: dict[int, ShardLink] = {}
        self.is_entity = True
        self._since_ms = -1
        self._size_max: int | None = None

    # -- shard links -----------------------------------------------------------------------------------------------

    def target_of(self, index: int) -> str:
        """What a shard link is attached to at the owner."""
        return self.address_of(index)

    def properties_of(self, index: int) -> dict[str, Any]:
        """Properties of the attach of a shard link on which the client sends."""
        del index
        return self.asked_properties

    def parts(self) -> Sequence[ProxiedLink]:
        """See ProxiedLink."""
        return tuple(self.branches.values())

    def start(self) -> None:
        """Look for the owners."""
        for index in range(len(self.sharded_entity.shares)):
            self._look_for(index)

    def _look_for(self, index: int) -> None:
        address = self.owners.address_of(self.sharded_entity.store_of(index))
        shard_link = self.branches.get(index)
        if shard_link is not None and shard_link.address != address:
            # It may be silent for long: a machine that stands still, or is gone.
            shard_link.close()
            self.ended(shard_link, None)
            shard_link = None
        if shard_link is None and ":" in address and not self.is_over:
            shard_link = self.branches[index] = self.shard_link_of(index, address)
            self.connect(address).attach(shard_link)

    def shard_link_of(self, index: int, address: str) -> ShardLink:
        """A shard link to the owner of a shard."""
        return ShardLink(self, index, address)

    def tick(self, monotonic_ms: int) -> None:
        """Follow the shards to their owners; called about twice a second."""
        if self.is_over:
            return
        self._since_ms = monotonic_ms if self._since_ms < 0 else self._since_ms
        if not self.follow():
            self._end_with(not_found(f"sb://{self.peer.namespace}/{self._address.path}"))
            return
        for index in range(len(self.sharded_entity.shares)):
            if not self.is_over:
                self._look_for(index)
        if not self.is_over and not self._is_accepted and monotonic_ms > self._since_ms:
            self._accept(is_late=True)
        if not self.is_over and not self._is_accepted and monotonic_ms - self._since_ms >= ATTACH_MS:
            self._end_with(DetachForced(f"No part of '{self._address.path}' has a server now. Attach again."))

    def opened(self, shard_link: ShardLink, size_max: int | None) -> None:
        """An owner has accepted a shard link."""
        self._size_max = size_max
        if not self._is_accepted:
            self._accept(is_late=False)
        else:
            self.shard_flow(shard_link)
            self.peer.write_soon()

    def _accept(self, *, is_late: bool) -> None:
        """Answer the client, who may use any shard from then on.

        One that does transactions is answered when all owners have done so, or it is late: what belongs to a
        transaction cannot wait for an owner.
        """
        there = self.open_branches
        if not there or (self.peer.transactions.has_coordinators and len(there) < len(self.branches) and not is_late):
            return
        remote = self.link.remote
        assert remote is not None
        if isinstance(remote.source, Source):
            # What is not honoured is left out of the echo.
            remote.source.filter = None
        properties: dict[str, Any] = {**about_entity(self.sharded_entity.kind)}
        if not self.link.is_sender:
            properties["com.microsoft:max-message-batch-size"] = self._size_max
        self._is_accepted = self.link.accept(
            source=remote.source, target=remote.target, max_message_size=self._size_max, properties=properties
        )
        if not self._is_accepted:
            self._close()
            return
        self.link.remote = summarize_attach(remote)
        for shard_link in there:
            self.shard_flow(shard_link)
        self.peer.write_soon()

    def ended(self, shard_link: ShardLink, error: AmqpError | None) -> None:
        """A shard link is no more."""
        if self.branches.get(shard_link.index) is not shard_link:
            return
        del self.branches[shard_link.index]
        if self.is_over:
            return
        if error is not None and str(error.condition) not in ROUTING:
            self._end(str(error.condition), error.description, error.info)
        elif not self.outlives(shard_link):
            self._end_with(DetachForced(f"A part of '{self._address.path}' moves to another server. Attach again."))
        elif not self._is_accepted:
            self._accept(is_late=False)
        else:
            self.shard_gone()
            self.peer.write_soon()

    def _close(self) -> None:
        self.is_over = True
        branches = list(self.branches.values())
        self.branches.clear()
        for shard_link in branches:
            shard_link.close()

    @property
    def open_branches(self) -> list[ShardLink]:
        """Those whose owner has accepted them, in order."""
        found = (self.branches.get(index) for index in range(len(self.sharded_entity.shares)))
        return [
            shard_link for shard_link in found if shard_link is not None and shard_link.is_open and shard_link.can_reach
        ]

    # -- to be said by the direction ----------------------------------------------------------------------------

    def shard_flow(self, shard_link: ShardLink) -> None:
        """The owner of a shard link has changed its credit, or told what there is."""
        raise NotImplementedError

    def shard_gone(self) -> None:
        """A shard link has ended on which nothing was under way."""

    def given(self, shard_link: ShardLink, event: Transfers) -> None:
        """A shard has given messages."""

    def outlives(self, shard_link: ShardLink) -> bool:
        """Whether the client's link goes on, though a shard link has ended."""
        raise NotImplementedError

    def owner_flow(self) -> None:
        """See ProxiedLink; its shard links hear of owners."""
