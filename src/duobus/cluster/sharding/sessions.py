"""A client accepts a session of a sharded queue: the owner of one shard gives it, and the link is proxied from then on.

A named session is asked for at the shard of its id, which has all of it. For the next available one the shards are
asked in turn, one after the other, whether they have one now; none is locked in vain by that. Only when all have said
no, they are asked to wait, all at a time, and the first that answers has the client: the links to the others are
detached, and a session that another one has locked meanwhile is free again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Error as AmqpError
from duobus.amqp import Link, Source, Target
from duobus.broker import string_key
from duobus.cluster.proxy.link import ProxiedLink, ProxiedSession
from duobus.cluster.sharding.link import ATTACH_MS, ROUTING, ShardedEndpoint
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import DetachForced, OperationTimeout, ServiceBusError, StoreUnavailable
from duobus.gateway.amqp.arguments import is_integer
from duobus.gateway.amqp.links.session_link import TIMEOUT, WAIT_DEFAULT_MS, WAIT_MAX_MS, wanted_session
from duobus.model.address import Address, not_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer

#: How much later than the client's time the wait ends here: the owners end it first, unless one is silent.
_GRACE_MS: Final = 500


def wants_session(link: Link) -> bool:
    """Whether a client that receives asks for a session.

    Raises:
        ArgumentInvalid: It asks for something that is no session id.
    """
    return link.remote is not None and wanted_session(getattr(link.remote.source, "filter", None))[0]


class ShardSessionLink(ProxiedLink):
    """A link to the owner of one shard on which a session is asked for; the client's own link once there is one.

    Attributes:
        index: Of the shard.
        address: Where its owner is.
        session_id: The session that it holds; None before.
    """

    __slots__ = ("_search", "_wait_ms", "address", "index", "session_id")

    def __init__(self, search: SessionSearch, index: int, address: str, wait_ms: int) -> None:
        super().__init__(search.peer, search.link, search.segments, search.owners)
        self.is_entity = True
        self.index = index
        self.address = address
        self.session_id: str | None = None
        self._search: SessionSearch | None = search
        self._wait_ms = wait_ms

    def attach(self, upstream: UpstreamConnection, session: ProxiedSession) -> None:
        """See ProxiedLink; at the shard's own address, for as long as the client still waits."""
        remote, search = self.link.remote, self._search
        if remote is None or self.uplink is not None or search is None:
            return
        self._upstream, self.session = upstream, session
        source: Any = remote.source
        self.uplink = session.owner.attach_receiver(
            search.next_name(),
            Source(address=search.address_of(self.index), filter=source.filter),
            Target(address="front"),
            snd_settle_mode=2 if remote.snd_settle_mode is None else remote.snd_settle_mode,
            rcv_settle_mode=remote.rcv_settle_mode or 0,
            properties={**(remote.properties or {}), TIMEOUT: self._wait_ms},
            desired_capabilities=remote.desired_capabilities,
        )
        self.uplink.context = self
        self.uplink.tags = []

    def answered(self) -> None:
        """See ProxiedLink: it has a session, and becomes the client's link."""
        remote = None if self.uplink is None else self.uplink.remote
        search, asked = self._search, self.link.remote
        if remote is None or remote.source is None or search is None or asked is None:
            return
        self._search = None
        _, self.session_id = wanted_session(getattr(remote.source, "filter", None))
        # The client asked for the queue, and gets its own words back.
        remote.source.address = getattr(asked.source, "address", None)
        remote.target = asked.target
        search.found(self)
        super().answered()

    def owner_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """See ProxiedLink."""
        search, self._search = self._search, None
        if search is None:
            super().owner_detached(error, closed=closed)
            return
        self.uplink = None
        search.declined(self, error)

    def lost(self, text: str) -> None:
        """See ProxiedLink."""
        search, self._search = self._search, None
        if search is None:
            super().lost(text)
            return
        self.uplink = None
        search.declined(self, None)

    def close(self) -> None:
        """See ProxiedLink."""
        self._search = None
        super().close()


class SessionSearch(ShardedEndpoint):
    """The client's link as long as it has no session.

    Attributes:
        wanted: The session that the client has named; None: the next available one.
    """

    __slots__ = ("_attempts", "_is_waiting", "_order", "_until_ms", "wanted")

    def __init__(
        self,
        peer: Peer,
        link: Link,
        address: Address,
        sharded_entity: ShardedEntityMap,
        owners: OwnerDirectory,
        connect: Callable[[str], UpstreamConnection],
        turn: int,
    ) -> None:
        super().__init__(peer, link, address, sharded_entity, owners, connect)
        self.is_entity = True
        remote = link.remote
        assert remote is not None  # it is the peer's attach that brought us here
        _, self.wanted = wanted_session(getattr(remote.source, "filter", None))
        self._attempts: dict[int, ShardSessionLink] = {}
        number = len(sharded_entity.shares)
        if self.wanted is None:
            self._order = [(turn + step) % number for step in range(number)]
        else:
            self._order = [sharded_entity.of_key(string_key(self.wanted))]
        # Those in order are asked one after the other first, whoever they are.
        self._is_waiting = False
        wait_ms: Any = (remote.properties or {}).get(TIMEOUT)
        given_ms = min(int(wait_ms), WAIT_MAX_MS) if is_integer(wait_ms) else WAIT_DEFAULT_MS
        self._until_ms = self._now_ms() + (max(0, given_ms) if self.wanted is None else ATTACH_MS)

    def _now_ms(self) -> int:
        return self.peer.server.clock.monotonic_ms()

    def parts(self) -> Sequence[ProxiedLink]:
        """See ProxiedLink."""
        return tuple(self._attempts.values())

    def start(self) -> None:
        """Ask the first shard."""
        if self.wanted is not None:
            self._is_waiting = True
            self._ask(self._order[0])
        else:
            self._ask_next()

    def _ask_next(self) -> None:
        """Ask the next shard whether it has a session now; behind the last one all are asked to wait."""
        while self._order and not self.is_over:
            if self._ask(self._order.pop(0)):
                return
        if not self.is_over:
            self._is_waiting = True
            self._ask_all()

    def _ask_all(self) -> None:
        """Have every shard that has a server wait for a session."""
        indices = range(len(self.sharded_entity.shares)) if self.wanted is None else self._order
        for index in indices:
            if index not in self._attempts and not self.is_over:
                self._ask(index)

    def _ask(self, index: int) -> bool:
        """Ask a shard; False when it has no server now."""
        address = self.owners.address_of(self.sharded_entity.store_of(index))
        if ":" not in address:
            return False
        wait_ms = max(0, self._until_ms - self._now_ms()) if self._is_waiting else 0
        attempt = self._attempts[index] = ShardSessionLink(self, index, address, wait_ms)
        self.connect(address).attach(attempt)
        return True

    # -- what the shards answer ---------------------------------------------------------------------------------

    def found(self, attempt: ShardSessionLink) -> None:
        """A shard has given a session: the client's link is proxied there from now on."""
        self._attempts.pop(attempt.index, None)
        self._close()
        self.peer.add_endpoint(self.link, attempt)

    def declined(self, attempt: ShardSessionLink, error: AmqpError | None) -> None:
        """A shard has refused, or its server is gone."""
        if self._attempts.get(attempt.index) is not attempt:
            return
        del self._attempts[attempt.index]
        condition = "" if error is None else str(error.condition)
        is_routing = error is None or condition in ROUTING
        if not self._is_waiting and (is_routing or condition == OperationTimeout.condition):
            self._ask_next()
        elif error is not None and not is_routing:
            self._end(error.condition, error.description, error.info)
        # What has no server now is looked for at every tick.

    def tick(self, monotonic_ms: int) -> None:
        """Follow the shards to their owners; called about twice a second."""
        if self.is_over:
            return
        if not self.follow():
            self._end_with(not_found(f"sb://{self.peer.namespace}/{self._address.path}"))
            return
        for index, attempt in list(self._attempts.items()):
            if self.owners.address_of(self.sharded_entity.store_of(index)) != attempt.address:
                # It may be silent for long: a machine that stands still, or is gone.
                attempt.close()
                self.declined(attempt, None)
        if self.is_over:
            return
        if monotonic_ms >= self._until_ms + _GRACE_MS:
            self._end_with(self._nothing())
        elif self._is_waiting:
            self._ask_all()

    def _nothing(self) -> ServiceBusError:
        """Why the search has ended."""
        if self.wanted is None:
            return OperationTimeout(
                f"No session of '{self._address.path}' with messages became free in time. Try again."
            )
        if not self._attempts:
            return StoreUnavailable(
                f"The part of '{self._address.path}' where the session '{self.wanted}' belongs has no server now. Try "
                "again in a few seconds.",
                self.sharded_entity.slots_of(self._order[0]),
            )
        return DetachForced(f"The server of the session '{self.wanted}' does not answer. Attach again.")

    def _close(self) -> None:
        self.is_over = True
        attempts = list(self._attempts.values())
        self._attempts.clear()
        for attempt in attempts:
            attempt.close()
