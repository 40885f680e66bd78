"""The front's side: one ``Queue`` of the product over this server's own fragments and those of others.

The catalog stays as it is: a sharded queue is an entry without fragments, and each of its shards is an entity in one
store (decision 0029). What changes is who answers a client's link: here a link of the product on one Queue over all
fragments, in place of one proxied link for each shard.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duobus.amqp import Link, Rejected, TransactionalState, Transfers
from duobus.broker import Queue
from duobus.broker.entities.placement import order_of_turns
from duobus.cluster.node import ClusterNode
from duobus.cluster.router import HERE, ClusterRouter
from duobus.cluster.scale_unit import ClusteredScaleUnit
from duobus.cluster.sharding.link import demand_ordinary
from duobus.cluster.shards import ShardedQueueMap
from duobus.errors import NotAllowed, ServiceBusError, Unauthorized
from duobus.gateway.amqp.links.incoming_link import IncomingLink
from duobus.gateway.amqp.links.link import about_entity, summarize_attach
from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
from duobus.model.address import Address
from duobus.model.descriptions import QUEUE, QueueDescription, Right, from_json
from prototypes.remote_fragment.fragment import OwnerConnection, RemoteFragment, RemoteStore, connect, offer
from prototypes.remote_fragment.owner import FragmentService
from prototypes.remote_fragment.protocol import FragmentKey
from prototypes.remote_fragment.runs import RunsReceiver

if TYPE_CHECKING:
    from duobus.gateway.amqp.peer import Peer

SETTLED = 1
#: Sharded queues whose names begin like this are received from in today's way with one change: see ``runs.py``.
RUNS = "runs"


class Fronts:
    """The sharded queues of which this server has a Queue over all fragments, and its connections to the owners.

    Args:
        wants: Whether a queue of this path is served in this way.
        port_of: The address of another server for clients to its address for fronts.
    """

    def __init__(
        self,
        unit: ClusteredScaleUnit,
        node: ClusterNode,
        service: FragmentService,
        *,
        wants: Callable[[str], bool],
        port_of: Callable[[str], tuple[str, int]],
    ) -> None:
        self._unit = unit
        self._node = node
        self._service = service
        self._wants = wants
        self._port_of = port_of
        self._queues: dict[tuple[str, str], Queue] = {}
        self._remote: dict[FragmentKey, RemoteFragment] = {}
        self._stores: dict[int, RemoteStore] = {}
        self._connections: dict[str, OwnerConnection] = {}

    def find(self, namespace: str, key: str) -> Queue | None:
        """The queue of this path, if it is served in this way."""
        return self._queues.get((namespace.lower(), key))

    async def look(self) -> None:
        """Follow the catalog and the owners: called about ten times a second."""
        for place, sharded in self._unit.directory.sharded.items():
            if self._wants(place[1]):
                await self._follow(place, sharded)
        self._service.offered()

    async def _follow(self, place: tuple[str, str], sharded: ShardedQueueMap) -> None:
        queue = self._queues.get(place)
        if queue is None:
            handles: list[Any] = [
                self._remote_fragment(share.entity_id, slot.fragment_no, slot.store_id)
                for share in sharded.shares
                for slot in share.slots
            ]
            about = from_json(sharded.row.description, QueueDescription)
            queue = self._queues[place] = Queue(sharded.row.entity_id, place[0], about, handles)
            for scheduler in queue.schedulers.values():
                # What no receiver of this server waits for is told to the other servers.
                scheduler.watchers[self._service] = None
        slot = 0
        for index, share in enumerate(sharded.shares):
            store_id = sharded.store_of(index)
            owner = self._node.owner_of(store_id)
            if owner != HERE:
                await self._see_connection(store_id, owner)
            home = self._unit.namespace(place[0]).queues.get(share.path.lower())
            own = {} if owner != HERE or home is None else {handle.number: handle for handle in home.fragments}
            for row in share.slots:
                key = share.entity_id, row.fragment_no
                handle = own.get(row.fragment_no)
                if handle is None:
                    self._service.handles.pop(key, None)
                else:
                    self._service.handles[key] = handle
                self._put(queue, slot, handle or self._remote_fragment(*key, store_id))
                slot += 1

    def _put(self, queue: Queue, message: int, handle: Any) -> None:
        """Have a fragment used by this handle from now on. What clients hold of the former one has lost its locks."""
        if queue.fragments[message] is handle and handle.schedulers.get((0, 0)) is queue.schedulers[0]:
            return
        # What the constructors of Queue and Placement do for all fragments.
        queue.fragments[message] = queue._by_number[handle.number] = handle
        handle.slot, handle.slots = message, len(queue.fragments)
        handle.schedulers = {(queue.source_no, sub): scheduler for sub, scheduler in queue.schedulers.items()}
        queue.placement._order, queue.placement._at = order_of_turns(queue.fragments), 0
        offer(handle)

    def _remote_fragment(self, entity_id: int, number: int, store_id: int) -> RemoteFragment:
        key = entity_id, number
        found = self._remote.get(key)
        if found is None:
            store = self._stores.setdefault(store_id, RemoteStore(store_id))
            found = self._remote[key] = RemoteFragment(key, store)
        return found

    async def _see_connection(self, store_id: int, owner: str) -> None:
        """Connect to the owner of a store, where there is one, and have the fragments of the store use that."""
        connection = self._connections.get(owner)
        if ":" in owner and (connection is None or connection.is_gone):
            connection = None
            with suppress(OSError):
                connection = self._connections[owner] = await connect(self._port_of(owner), self._remote)
        store = self._stores.setdefault(store_id, RemoteStore(store_id))
        if connection is not store.connection:
            for handle in self._remote.values():
                if handle.store is store:
                    handle.fragment = None
            store.connection = connection
            if connection is not None:
                connection.ask_all()


class PlainIncomingLink(IncomingLink):
    """An IncomingLink without transactions: one commit cannot cover the stores of several servers."""

    __slots__ = ()

    def _in_state(self, event: Transfers) -> None:
        error = NotAllowed(f"'{self.queue.path}' is spread over several servers, and can be no part of a transaction.")
        if isinstance(event.state, TransactionalState):
            self._peer.transactions.doom(event.state.txn_id, error)
        if not event.settled:
            state = Rejected(self._peer.error(error, self.queue.path))
            self._link.settle(event.first_delivery_id, event.first_delivery_id, state)


class FrontRouter(ClusterRouter):
    """Answers links on queues of ``Fronts`` here; all others as ever, ``$management`` too."""

    def __init__(self, peer: Peer, owners: ClusterNode, fronts: Fronts) -> None:
        super().__init__(peer, owners)
        self._fronts = fronts

    def _route_sharded(self, link: Link, address: Address, sharded: ShardedQueueMap) -> None:
        queue = self._fronts.find(self._peer.namespace or "", address.key)
        if link.is_sender and address.key.startswith(RUNS) and not address.is_management:
            whole = RunsReceiver(self._peer, link, address, sharded, self._owners, self.upstream)
            self._peer.add_endpoint(link, whole)
            self._sharded_links[whole] = None
            whole.start()
            return
        if queue is None or address.is_management:
            super()._route_sharded(link, address, sharded)
            return
        demand_ordinary(link, sharded.about, address.sub_queue)
        try:
            self._attach(link, address, queue)
        except ServiceBusError as error:
            described = self._peer.error(error, address.path)
            link.refuse(described.condition, described.description, described.info)
        assert link.remote is not None
        link.remote = summarize_attach(link.remote)

    def _attach(self, link: Link, address: Address, queue: Queue) -> None:
        """The plain part of ``gateway/amqp/attach.py``; the right is checked here and by no owner."""
        peer, remote = self._peer, link.remote
        assert remote is not None
        right = Right.LISTEN if link.is_sender else Right.SEND
        if not peer.allows(address.segments(), right):
            raise Unauthorized(f"Unauthorized access. Resource: 'sb://{peer.namespace}/{address.path}'.")
        size_max = queue.description.max_message_size_bytes
        if not link.is_sender:
            sender = PlainIncomingLink(peer, link, queue, address.segments())
            properties = {"com.microsoft:max-message-batch-size": size_max, **about_entity(QUEUE)}
            link.accept(max_message_size=size_max, properties=properties)
            peer.add_endpoint(link, sender)
            sender.start()
            return
        if remote.source is not None and isinstance(remote.source.filter, dict):
            remote.source.filter = None
        receiver = OutgoingLink(
            peer,
            link,
            queue,
            address.segments(),
            sub_queue=address.sub_queue,
            is_removing=remote.snd_settle_mode == SETTLED,
            deliveries=peer.deliveries_of(link.session),
        )
        link.accept(max_message_size=size_max, properties=about_entity(QUEUE))
        peer.add_endpoint(link, receiver)
