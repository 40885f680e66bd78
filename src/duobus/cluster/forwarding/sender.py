"""RemoteForwarder: brings messages that are forwarded to entities of other servers there, and asks what origins have.

To a forwarder (``forwarder.py``) an entity of another server is a destination like any other, with one fragment whose
message broker is ``RemoteBroker``: what is submitted there is sent to the server that owns the entity by then, which
may be this one. The owner's answer says that it is durable (``receiver.py``).

A batch is *in doubt* from the moment at which it may have left this server until its outcome is known. Until
then it stays taken, as it does when a store of this server fails while it writes one: it is sent again, to the
present owner, until the owner knows it or accepts it. Otherwise it would go elsewhere, or expire, and be there as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from duobus.broker.entities.message_ids import identify
from duobus.cluster.directory import HERE, MOVING, UNKNOWN
from duobus.cluster.forwarding.protocol import (
    ASKED_MAX,
    ForwardReply,
    ForwardRequest,
    InDoubt,
    OriginQuery,
    ReceivedQuery,
    RegisterOrigin,
    Request,
)
from duobus.errors import ServiceBusError, StoreUnavailable
from duobus.fragment.commands import Group
from duobus.fragment.forward_dedup import QueryForwarded, RecordForwarded
from duobus.fragment.send import Run
from duobus.model.address import not_found
from duobus.model.descriptions import ACTIVE
from duobus.model.metadata import MessageMetadata
from duobus.telemetry.logs import Log

if TYPE_CHECKING:
    from duobus.broker.forwarding.batches import InDoubtQuery, InFlightBatch
    from duobus.cluster.directory import Directory
    from duobus.cluster.forwarding.receiver import ForwardReceiver, OriginRegistration
    from duobus.cluster.owners import StoreOwners
    from duobus.cluster.shards import ShardedEntityMap
    from duobus.fragment.forward_dedup import Origin

#: Pauses before a batch in doubt is sent again, in seconds: the first, and the longest of its doublings.
AGAIN_FIRST_S: Final = 0.1
AGAIN_MAX_S: Final = 1.0
#: How often it is checked whether the server that was given a batch still has the destination.
LOOK_S: Final = 0.5
#: Routes that are kept open though nothing goes there now, and names of which it is known that no entity has them.
ROUTES_MAX: Final = 10_000
ABSENT_MAX: Final = 10_000
#: For how long such names are believed to be unused, in seconds: longer than the pauses of a forwarder.
ABSENT_S: Final = 10.0
#: Messages without a key that go to the same shard, one after the other: as many as a forwarder takes at once.
NEIGHBOURS: Final = 500


class ClusterConnection(Protocol):
    """A connection to another server.

    Attributes:
        is_gone: It has ended.
    """

    is_gone: bool

    def ask(self, make: Callable[[int], Request]) -> asyncio.Future[ForwardReply]:
        """Send the request that ``make`` gives for a number; ConnectionError when no answer can come any more."""


class ClusterConnections(Protocol):
    """What connects to other servers."""

    async def get(self, address: str, namespace: str) -> ClusterConnection:
        """The connection to a server for a namespace, made when there is none.

        Raises:
            ConnectionError: It cannot be made.
        """

    def close(self) -> None:
        """End all of them."""


class _RemoteDescription:
    """As much as is asked of a destination's properties before it is there; the owner asks for the rest."""

    __slots__ = ()

    status: Final = ACTIVE
    max_message_size_bytes: Final = 1 << 62
    requires_session: Final = False


class RemoteBroker:
    """Stands where a message broker does: what is submitted is sent to another server."""

    __slots__ = ("_remote",)

    def __init__(self, remote: RemoteForwarder) -> None:
        self._remote = remote

    def submit(self, command: Group | QueryForwarded) -> None:
        """Send a batch, which is a RecordForwarded and its Run, or a query."""
        in_flight: Any = command.reply
        self._remote.submit(in_flight, command, is_in_doubt=False)


class RemoteFragment:
    """The one fragment that an entity of another server seems to have; see FragmentHandle.

    Attributes:
        path: Of the shard that it stands for; None when it stands for the whole destination.
    """

    __slots__ = ("broker", "fragment", "path", "store", "submit")

    online: Final = True

    def __init__(self, broker: RemoteBroker, path: str | None = None) -> None:
        self.path = path
        self.broker = self.store = broker
        self.submit = broker.submit
        self.fragment = None


class RemoteEntity:
    """An entity of another server as a destination; see Destination."""

    __slots__ = ("description", "fragments", "is_deleted", "is_partitioned", "path", "placement")

    def __init__(self, path: str, broker: RemoteBroker) -> None:
        self.path = path
        self.description = _RemoteDescription()
        self.fragments: Any = [RemoteFragment(broker)]
        self.placement: Any = None
        self.is_deleted = False
        self.is_partitioned = False

    def prepare(self, batch: Any) -> None:
        """The owner does that."""

    def fragment_of_count(self, count: int) -> Any:
        """See Destination."""
        del count


class ShardedDestination:
    """A sharded queue as a destination: each of its shards seems to be a fragment; see Destination.

    Attributes:
        entity_id: By what the catalog knows the queue.
    """

    __slots__ = (
        "_handles",
        "description",
        "entity_id",
        "fragments",
        "is_deleted",
        "is_partitioned",
        "path",
        "placement",
    )

    def __init__(self, sharded: ShardedEntityMap, broker: RemoteBroker) -> None:
        self.entity_id = sharded.row.entity_id
        self.path = sharded.row.path
        self.description = sharded.about
        self.is_deleted = False
        self.is_partitioned = True
        self.placement: Any = None
        self._handles: list[Any] = [RemoteFragment(broker, share.path) for share in sharded.shares]
        # By slot, so that a key leads to its shard.
        self.fragments: Any = [self._handles[sharded.at_slot(slot)] for slot in range(sharded.slots)]

    def prepare(self, batch: Any) -> None:
        """Messages get their identity: without a key it tells where they go. Their use is noted by the owners."""
        if self.description.requires_duplicate_detection:
            identify(batch, is_partitioned=True)

    def fragment_of_count(self, count: int) -> Any:
        """See Destination; neighbours go together."""
        return self._handles[count // NEIGHBOURS % len(self._handles)]


class _RemoteTask:
    """Something that another server is asked to do."""

    __slots__ = ("command", "in_flight", "is_in_doubt", "origin")

    def __init__(
        self,
        in_flight: InFlightBatch | InDoubtQuery,
        command: Group | QueryForwarded,
        origin: Origin,
        *,
        is_in_doubt: bool,
    ) -> None:
        self.in_flight = in_flight
        self.command = command
        self.origin = origin
        self.is_in_doubt = is_in_doubt

    def demand_current(self) -> None:
        """Raise StoreUnavailable when the origin is not this server's any more, or has begun another life."""
        if not self.in_flight.is_current:
            raise StoreUnavailable("The store of what forwards is away.")

    def run_here(
        self, receiver: ForwardReceiver, registration: OriginRegistration
    ) -> Awaitable[ServiceBusError | None]:
        """Have it done here, where the destination is by now."""
        raise NotImplementedError

    def request(self, number: int, registration_no: int) -> Request:
        """What is asked of the destination's owner."""
        raise NotImplementedError

    def answered(self, reply: ForwardReply) -> bool:
        """The owner has done it; False when more is to be asked."""
        return True


class _RemoteBatch(_RemoteTask):
    """Messages to be carried."""

    __slots__ = ("note", "run")

    def __init__(self, in_flight: InFlightBatch, group: Group, is_in_doubt: bool) -> None:
        note, run = group.members
        assert isinstance(note, RecordForwarded)
        assert isinstance(run, Run)
        super().__init__(in_flight, group, note.origin, is_in_doubt=is_in_doubt)
        self.note = note
        self.run = run

    @property
    def _metadata(self) -> list[MessageMetadata]:
        extra = self.run.batch.extra or {}
        return [extra.get(index) or MessageMetadata() for index in range(self.run.batch.n)]

    def run_here(
        self, receiver: ForwardReceiver, registration: OriginRegistration
    ) -> Awaitable[ServiceBusError | None]:
        """See _RemoteTask."""
        done = receiver.take(registration, self.note.counts, self.run.batch.payloads, self._metadata)
        self.is_in_doubt = True
        return done

    def request(self, number: int, registration_no: int) -> Request:
        """See _RemoteTask."""
        self.is_in_doubt = True
        return ForwardRequest(number, registration_no, self.note.counts, self.run.batch.payloads, self._metadata)


class _RemoteQuery(_RemoteTask):
    """The question which messages of an origin its destination has; it changes nothing, so it is never in doubt."""

    __slots__ = ("ask", "first")

    def __init__(self, question: InDoubtQuery, ask: QueryForwarded) -> None:
        super().__init__(question, ask, ask.origin, is_in_doubt=False)
        self.ask = ask
        self.first = 0

    async def run_here(self, receiver: ForwardReceiver, registration: OriginRegistration) -> ServiceBusError | None:
        """See _RemoteTask."""
        self.ask.taken = await receiver.ask(registration, 0)
        return None

    def request(self, number: int, registration_no: int) -> Request:
        """See _RemoteTask."""
        return ReceivedQuery(number, registration_no, self.first)

    def answered(self, reply: ForwardReply) -> bool:
        """See _RemoteTask."""
        self.ask.taken += reply.taken
        if len(reply.taken) < ASKED_MAX:
            return True
        self.first = max(reply.taken) + 1
        return False


class _Route:
    """The route from one origin, in one life of it, to one destination.

    Attributes:
        jobs: What the other server is to be asked, in order.
        registration_no: Where the origin is registered: the connection, and the number there.
        is_driven: A task sees to it.
    """

    __slots__ = ("epoch", "is_driven", "jobs", "namespace", "origin", "path", "registration_no")

    def __init__(self, namespace: str, path: str, origin: Origin, epoch: int) -> None:
        self.namespace = namespace
        self.path = path
        self.origin = origin
        self.epoch = epoch
        self.jobs: deque[_RemoteTask] = deque()
        self.registration_no: tuple[ClusterConnection, int] | None = None
        self.is_driven = False


class RemoteForwarder:
    """What is forwarded to entities of other servers.

    Args:
        receiver: Takes what turns out to be for an entity of this server.
        directory: Gives the newest directory of all entities.
    """

    __slots__ = (
        "_absent",
        "_asking",
        "_broker",
        "_connections",
        "_directory",
        "_entities",
        "_gone",
        "_log",
        "_looks",
        "_owners",
        "_receiver",
        "_routes",
        "_sharded",
        "_tasks",
    )

    def __init__(self, receiver: ForwardReceiver, directory: Callable[[], Directory]) -> None:
        self._receiver = receiver
        self._directory = directory
        self._owners: StoreOwners | None = None
        self._connections: ClusterConnections | None = None
        self._broker = RemoteBroker(self)
        self._log = Log("forwarding")
        self._entities: dict[tuple[str, str], RemoteEntity] = {}
        self._sharded: dict[tuple[str, str], ShardedDestination] = {}
        self._routes: dict[tuple[str, str, Origin], _Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # How often the catalog was read for this, and how often it had been, and when, at the first miss.
        self._looks = 0
        self._absent: dict[tuple[str, str] | int, tuple[int, float]] = {}
        # Messages that their origin does not have, since the last time that somebody wanted to know.
        self._gone: dict[Origin, set[int]] = {}
        self._asking: set[Origin] = set()

    @property
    def owners(self) -> StoreOwners | None:
        """Who has which store; None while there are no other servers."""
        return self._owners

    async def connection_to(self, store_id: int, namespace: str) -> ClusterConnection:
        """A connection to the server that has a store, for a namespace.

        Raises:
            ConnectionError: It cannot be made, or the store has no server.
        """
        if self._owners is None or self._connections is None:
            raise ConnectionError("this server knows no others")
        address = self._owners.owner_of(store_id)
        if address in (HERE, MOVING):
            raise ConnectionError(f"messaging store {store_id} moves between servers")
        return await self._connections.get(address, namespace)

    def connect(self, owners: StoreOwners, connections: ClusterConnections) -> None:
        """From now on there are other servers."""
        self._owners = owners
        self._connections = connections

    def stop(self) -> None:
        """Carry nothing more; what is under way is sent again by the next owner of its origin."""
        for task in list(self._tasks):
            task.cancel()
        if self._connections is not None:
            self._connections.close()

    # -- destinations -------------------------------------------------------------------------------------------

    def find(self, namespace: str, path: str) -> RemoteEntity | ShardedDestination | None:
        """See namespace.RemoteEntities."""
        key = namespace.lower(), path.lower()
        sharded = self._directory().sharded.get(key)
        if sharded is not None:
            return self._find_sharded(key, sharded)
        where = self._where(*key)
        if where == UNKNOWN:
            if self._is_absent(key):
                return None
            raise StoreUnavailable(f"Another server may have created '{path}' a moment ago.")
        if where == HERE:
            raise StoreUnavailable(f"The store of '{path}' is being opened, or it is being deleted.")
        found = self._entities.get(key)
        if found is None:
            if len(self._entities) >= ROUTES_MAX:
                self._entities.clear()
            found = self._entities[key] = RemoteEntity(path, self._broker)
        return found

    def knows(self, namespace: str, path: str) -> bool:
        """See namespace.RemoteEntities."""
        return self._directory().store_of(namespace, path.lower()) is not None

    def _find_sharded(self, key: tuple[str, str], sharded: ShardedEntityMap) -> ShardedDestination:
        found = self._sharded.get(key)
        if found is None or found.entity_id != sharded.row.entity_id:
            if len(self._sharded) >= ROUTES_MAX:
                self._sharded.clear()
            found = self._sharded[key] = ShardedDestination(sharded, self._broker)
        found.description = sharded.about
        return found

    def _where(self, namespace: str, key: str) -> str:
        return MOVING if self._owners is None else self._owners.where(namespace, key)

    def _is_absent(self, key: tuple[str, str] | int) -> bool:
        """Whether the catalog, read since this was missed first, does not have it."""
        missed, now_s = self._absent.get(key), asyncio.get_running_loop().time()
        if missed is None or now_s - missed[1] > ABSENT_S:
            if len(self._absent) >= ABSENT_MAX:
                self._absent.clear()
            self._absent[key] = self._looks, now_s
            self._spawn(self.refresh())
            return False
        return self._looks > missed[0]

    async def refresh(self) -> None:
        """See namespace.RemoteEntities."""
        if self._owners is not None:
            await self._owners.refresh()
        self._looks += 1

    # -- carrying -----------------------------------------------------------------------------------------------

    def submit(self, in_flight: Any, command: Group | QueryForwarded, *, is_in_doubt: bool) -> None:
        """Send a batch to its destination; the in-flight batch gets the group back as it does from a message broker.

        The same for a question.
        """
        job: _RemoteTask = (
            _RemoteQuery(in_flight, command)
            if isinstance(command, QueryForwarded)
            else _RemoteBatch(in_flight, command, is_in_doubt)
        )
        namespace, path = in_flight.destination
        handle: Any = command.handle if isinstance(command, QueryForwarded) else command.members[0].handle
        if isinstance(handle, RemoteFragment) and handle.path is not None:
            path = handle.path
        key = namespace.lower(), path.lower(), job.origin
        epoch = in_flight.life.epoch
        route = self._routes.get(key)
        if route is None or route.epoch != epoch:
            if len(self._routes) >= ROUTES_MAX:
                self._routes = {one: kept for one, kept in self._routes.items() if kept.jobs}
            route = self._routes[key] = _Route(namespace.lower(), path, job.origin, epoch)
        route.jobs.append(job)
        if not route.is_driven:
            route.is_driven = True
            self._spawn(self._drive(route))

    async def _drive(self, route: _Route) -> None:
        delay_s = AGAIN_FIRST_S
        try:
            while route.jobs:
                job = route.jobs[0]
                error = await self._try(route, job)
                if isinstance(error, StoreUnavailable) and job.is_in_doubt and job.in_flight.is_current:
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, AGAIN_MAX_S)
                    continue
                delay_s = AGAIN_FIRST_S
                route.jobs.popleft()
                job.command.error = error
                job.in_flight.ready.append(job.command)
                job.in_flight.wake()
        finally:
            route.is_driven = False

    async def _try(self, route: _Route, job: _RemoteTask) -> ServiceBusError | None:
        """Send a batch once; None when it is there, durable."""
        was_in_doubt = job.is_in_doubt
        try:
            job.demand_current()
            where = self._where(route.namespace, route.path.lower())
            if where == UNKNOWN and self._is_absent((route.namespace, route.path.lower())):
                return not_found(f"sb://{route.namespace}/{route.path}")
            if where in (MOVING, UNKNOWN):
                raise StoreUnavailable(f"'{route.path}' moves to another server.")
            if where == HERE:
                error = await self._run_here(route, job)
            else:
                error = await self._ship(route, job, where)
        except ConnectionError as lost:
            return StoreUnavailable(f"The server of '{route.path}' cannot be reached: {lost}")
        except ServiceBusError as refused:
            error = refused
        # It was heard what became of it; of what was sent before that is known only if this was taken or refused.
        job.is_in_doubt = was_in_doubt or isinstance(error, InDoubt)
        if error is not None and type(error).transient and not isinstance(error, StoreUnavailable):
            return StoreUnavailable(str(error))
        return error

    async def _run_here(self, route: _Route, job: _RemoteTask) -> ServiceBusError | None:
        """The destination has come to this server."""
        route.registration_no = None
        registration: OriginRegistration = self._receiver.register(
            route.namespace, route.path, route.origin, route.epoch
        )
        return await job.run_here(self._receiver, registration)

    async def _ship(self, route: _Route, job: _RemoteTask, where: str) -> ServiceBusError | None:
        """Send it to the server at ``where``."""
        assert self._connections is not None
        connection = await self._connections.get(where, route.namespace)
        if route.registration_no is None or route.registration_no[0] is not connection:
            origin, epoch, path = route.origin, route.epoch, route.path
            landed = await self._answer(
                route, where, connection.ask(lambda number: RegisterOrigin(number, origin, epoch, path))
            )
            error = landed.error()
            if error is not None:
                return error
            route.registration_no = connection, landed.registration_no
        registration_no = route.registration_no[1]
        while True:
            # Nothing may happen between this look and the sending.
            job.demand_current()
            reply = await self._answer(
                route, where, connection.ask(lambda number: job.request(number, registration_no))
            )
            error = reply.error()
            if isinstance(error, StoreUnavailable):
                # The registration may have ended.
                route.registration_no = None
            if error is not None or job.answered(reply):
                return error

    async def _answer(self, route: _Route, where: str, answer: asyncio.Future[ForwardReply]) -> ForwardReply:
        """Wait for an answer as long as the server that was asked has the destination.

        Raises:
            ConnectionError: It has it no more, or the connection has ended.
        """
        while True:
            done, _ = await asyncio.wait((answer,), timeout=LOOK_S)
            if done:
                return answer.result()
            if self._where(route.namespace, route.path.lower()) != where:
                # Its next owner ends what is still under way to this one, by a generation of its own.
                route.registration_no = None
                answer.cancel()
                raise ConnectionError("it has moved")

    def arrived(self, origin: Origin, epoch: int) -> None:
        """See namespace.RemoteEntities."""
        self._receiver.arrived(origin, epoch)

    # -- what origins have --------------------------------------------------------------------------------------

    def gone(self, origin: Origin, counts: list[int]) -> list[int]:
        """See namespace.RemoteEntities: what was heard since it was asked last time; and ask again for the rest."""
        found = self._gone.pop(origin, set())
        gone = [count for count in counts if count in found]
        rest = [count for count in counts if count not in found][:ASKED_MAX]
        if rest and origin not in self._asking and self._owners is not None:
            self._asking.add(origin)
            self._spawn(self._inquire(origin, rest))
        return gone

    async def _inquire(self, origin: Origin, counts: list[int]) -> None:
        try:
            gone = await self._still(origin, counts)
        except (ServiceBusError, ConnectionError, TimeoutError):
            # It is asked again.
            return
        finally:
            self._asking.discard(origin)
        if gone:
            self._gone.setdefault(origin, set()).update(gone)

    async def _still(self, origin: Origin, counts: list[int]) -> list[int]:
        assert self._owners is not None
        assert self._connections is not None
        store_id = self._directory().store_of_id(origin[0])
        if store_id is None:
            # The entity was deleted with all that was in it.
            return counts if self._is_absent(origin[0]) else []
        where = self._owners.owner_of(store_id)
        if where == MOVING:
            return []
        if where == HERE:
            return self._receiver.gone(origin, counts)
        connection = await self._connections.get(where, self._directory().namespace_of_id(origin[0]))
        async with asyncio.timeout(LOOK_S * 10):
            reply = await connection.ask(lambda number: OriginQuery(number, origin, counts))
        return [] if reply.error() is not None else reply.gone

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("a task of forwarding failed", error=repr(task.exception()))
