"""The table of leases that servers share beside their catalog; what it is for is in cluster/leases.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from duobus.clock import SLEW_DIVISOR

#: Of servers that lay partitioned queues over the stores of all of them, with all their features (decision 0066), and
#: of those that do so with topics (decision 0069). As long as one tells less, new entities are placed as it expects.
PLACEMENT_OF_QUEUES: Final = 1
PLACEMENT_OF_TOPICS: Final = 2
#: Of this version.
PLACEMENT: Final = PLACEMENT_OF_TOPICS
#: The table continues the time at a store by its own clock. The table writes down what the store's holder tells only if
#: both differ by more than TIMES_APART_MS, or if the last note is older than TIME_FRESH_MS. In milliseconds.
TIMES_APART_MS: Final = 500
TIME_FRESH_MS: Final = 60_000
#: Without a holder the table continues the time at a store for so long, in milliseconds. If the database's clock was
#: set ahead meanwhile, messages expire too early by at most this, and they do not come back (decision 0042).
TIME_LASTS_MS: Final = 5 * 60_000


class NodeDetails(msgspec.Struct, frozen=True):
    """What a server tells of itself beside its addresses; servers of earlier versions tell nothing.

    Attributes:
        version: Of duobus.
        weight: Its share of the stores in proportion to the weights of the others; 0: none while others have some.
        labels: What it is called by preferences, as in ``zone=a``.
        load: Processors that it uses, as a mean of the last seconds: 0.8 is four fifths of one.
        is_drained: It has been told to give its stores away, and goes on serving clients.
        keeps_own: It knows that the lease of a store may lie in the store's own database (decision 0067).
        placement: How it lays partitioned entities over stores: ``PLACEMENT``, or less for an earlier version.
        moves_fragments: It knows of fragments that are set aside for a move (decision 0070).
    """

    version: str = ""
    weight: int = 1
    labels: tuple[str, ...] = ()
    load: float = 0.0
    is_drained: bool = False
    keeps_own: bool = False
    placement: int = 0
    moves_fragments: bool = False


class NodeEntry(msgspec.Struct, frozen=True):
    """A server that is alive.

    Attributes:
        node_id: Its id, another one after each start.
        address: For AMQP, host and port.
        http_address: For HTTP; by it operators name the server.
        is_leaving: It wants no stores: it stops, or it is drained.
        details: What else it tells; None: it is of an earlier version.
        since_ms: How long it has been there, by the table's clock.
    """

    node_id: str
    address: str
    http_address: str
    is_leaving: bool
    details: NodeDetails | None = None
    since_ms: int = 0


class LeaseEntry(msgspec.Struct, frozen=True):
    """A lease.

    Attributes:
        store_id: The store.
        node_id: Its holder, or None.
        term: Raised whenever somebody gets the lease.
        is_over: Whether the lease is free or its time over, by the table's own clock.
        since_ms: How long its holder has had it, by that clock.
        left_ms: How much of its time is left.
    """

    store_id: int
    node_id: str | None
    term: int
    is_over: bool
    since_ms: int = 0
    left_ms: int = 0


class Exchange(msgspec.Struct, frozen=True):
    """What a server tells the table.

    Attributes:
        me: The server.
        lease_ms: For how long it is to count as alive, and its leases are prolonged.
        renew, claim, give_back: Store id to the term that the server has (renew, give_back) or has seen (claim).
        gone: Ids of servers that take no connections any more. One that has no session with the database either has
            ended, and its leases with it.
        hand_over: Leases that this server has here, by store id and term, to be taken out of the catalog's table
            because from now on the store's own database keeps them; refused while a server is alive that does not know
            of this.
        adopt: Leases that were handed over, by store id and term, to be this server's in the store's own database
            unless there is one already.
        create: Stores whose lease has been nowhere for longer than a lease lasts, with the last term that was seen.
        broker_ms: Broker time of this server; 0: a server of an earlier version does not tell (decision 0076).
    """

    me: NodeEntry
    lease_ms: int
    renew: dict[int, int]
    claim: dict[int, int]
    give_back: dict[int, int]
    gone: tuple[str, ...] = ()
    hand_over: dict[int, int] = {}
    adopt: dict[int, int] = {}
    create: dict[int, int] = {}
    broker_ms: int = 0


class Table(msgspec.Struct, frozen=True):
    """The table after an exchange, in one moment.

    Attributes:
        nodes: Servers that are alive.
        leases: All of them.
        revision: The catalog's.
        preferences: Number of a store to where it should be: a server's HTTP address, or a label as in ``zone=a``.
        drained: HTTP addresses of the servers that are to give their stores away.
        times: Claimed store to the broker time of its former holder, continued until now; only if that holder told it.
    """

    nodes: tuple[NodeEntry, ...]
    leases: tuple[LeaseEntry, ...]
    revision: int
    preferences: dict[int, str] = {}
    drained: tuple[str, ...] = ()
    times: dict[int, int] = {}


class LeaseTable(ABC):
    """Blocks; one thread at a time calls. Every method may raise StoreFailed, and the object stays usable."""

    @abstractmethod
    def exchange(self, told: Exchange) -> Table:
        """Note that a server is alive, prolong, give and take back its leases, and show the table: one transaction."""

    @abstractmethod
    def wait(self, limit_s: float) -> bool:
        """Do nothing until something in the catalog or a lease may have changed (True), or the time is over."""

    @abstractmethod
    def forget(self, node_id: str) -> None:
        """Forget a server that has stopped in good order."""

    @abstractmethod
    def prefer(self, store_id: int, where: str | None) -> None:
        """Note where a store should be, for all servers and until this is called again; None: anywhere. Durable."""

    @abstractmethod
    def drain(self, http_address: str, *, is_wanted: bool) -> None:
        """Note that a server is to give its stores away, or that it may have some again. Durable."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; never raises."""


class MemoryLeases(LeaseTable):
    """The reference behaviour in dictionaries, for tests and simulation.

    Attributes:
        revision: Of the catalog; whoever changes that raises it.

    Args:
        stores: Ids of all stores.
        now_ms: The table's own clock.
        has_session: Whether the process of a server has a session with the database, by its id.
    """

    def __init__(
        self,
        stores: Iterable[int],
        now_ms: Callable[[], int],
        has_session: Callable[[str], bool] = lambda _node_id: True,
    ) -> None:
        self.revision = 0
        self._has_session = has_session
        self._now_ms = now_ms
        self._nodes: dict[str, tuple[NodeEntry, int]] = {}
        # Store id to holder, term, and when its time is over.
        self._leases: dict[int, tuple[str | None, int, int]] = dict.fromkeys(stores, (None, 0, 0))
        # Server, or store and term, to when it was first seen.
        self._since: dict[object, int] = {}
        self._preferences: dict[int, str] = {}
        self._drained: set[str] = set()
        # Store id to the broker time of its holder, and when that was noted.
        self._times: dict[int, tuple[int, int]] = {}

    def exchange(self, told: Exchange) -> Table:
        """See LeaseTable."""
        now_ms = self.now_for(told)
        mine, until_ms = told.me.node_id, now_ms + told.lease_ms
        self._nodes = {key: found for key, found in self._nodes.items() if found[1] > now_ms}
        self._end_gone(told)
        self._nodes[mine] = (told.me, until_ms)
        self._hand_over(told)
        for store_id, term in told.adopt.items():
            self._leases.setdefault(store_id, (mine, term + 1, until_ms))
        for store_id, term in told.create.items():
            self._leases.setdefault(store_id, (None, term, 0))
        times = {store_id: self._time_of(store_id, now_ms) for store_id in told.claim if store_id in self._times}
        for store_id, (holder, term, ends_ms) in list(self._leases.items()):
            if holder == mine and told.renew.get(store_id) == term:
                self._leases[store_id] = (mine, term, until_ms)
                self._note_time(store_id, told.broker_ms, now_ms)
            elif holder == mine and told.give_back.get(store_id) == term:
                self._leases[store_id] = (None, term, 0)
            elif told.claim.get(store_id) == term and (holder in (None, mine) or ends_ms <= now_ms):
                self._leases[store_id] = (mine, term + 1, until_ms)
        leases = tuple(
            LeaseEntry(
                store_id,
                holder,
                term,
                is_over=holder is None or ends_ms <= now_ms,
                since_ms=now_ms - self._since.setdefault((store_id, term), now_ms),
                left_ms=max(0, ends_ms - now_ms),
            )
            for store_id, (holder, term, ends_ms) in self._leases.items()
        )
        nodes = tuple(
            msgspec.structs.replace(node, since_ms=now_ms - self._since.setdefault(node.node_id, now_ms))
            for node, _ in self._nodes.values()
        )
        return Table(nodes, leases, self.revision, dict(self._preferences), tuple(sorted(self._drained)), times)

    def _time_of(self, store_id: int, now_ms: int) -> int:
        broker_ms, noted_ms = self._times[store_id]
        return broker_ms + min(max(now_ms - noted_ms, 0), TIME_LASTS_MS)

    def _note_time(self, store_id: int, broker_ms: int, now_ms: int) -> None:
        if not broker_ms:
            return
        _, noted_ms = self._times.setdefault(store_id, (broker_ms, now_ms))
        age_ms = max(now_ms - noted_ms, 0)
        expected_ms = self._time_of(store_id, now_ms)
        # What is told was true when it was asked, which may be long ago. Broker time is slower than this at no time.
        told_ms = max(broker_ms, expected_ms - age_ms // SLEW_DIVISOR)
        if abs(told_ms - expected_ms) > TIMES_APART_MS or age_ms > TIME_FRESH_MS:
            self._times[store_id] = (told_ms, now_ms)

    def _end_gone(self, told: Exchange) -> None:
        """End the leases of servers that are gone: nobody can connect to them, and they have no session."""
        me = told.me
        for node_id, (node, _) in list(self._nodes.items()):
            is_successor = (node.address, node.http_address) == (me.address, me.http_address)
            if node_id == me.node_id or self._has_session(node_id) or not (node_id in told.gone or is_successor):
                continue
            del self._nodes[node_id]
            for store_id, (holder, term, _) in list(self._leases.items()):
                if holder == node_id:
                    self._leases[store_id] = (None, term, 0)

    def _hand_over(self, told: Exchange) -> None:
        if all(node.details is not None and node.details.keeps_own for node, _ in self._nodes.values()):
            for store_id, term in told.hand_over.items():
                holder, now, ends_ms = self._leases.get(store_id, (None, 0, 0))
                if (holder, now) == (told.me.node_id, term) and ends_ms > self._now_ms():
                    del self._leases[store_id]

    def now_for(self, told: Exchange) -> int:
        """The time that counts for an exchange: the table's, whoever asks."""
        del told
        return self._now_ms()

    def wait(self, limit_s: float) -> bool:
        """Return at once: nothing here changes by itself."""
        del limit_s
        return False

    def forget(self, node_id: str) -> None:
        """See LeaseTable."""
        self._nodes.pop(node_id, None)

    def prefer(self, store_id: int, where: str | None) -> None:
        """See LeaseTable."""
        if where is None:
            self._preferences.pop(store_id, None)
        else:
            self._preferences[store_id] = where

    def drain(self, http_address: str, *, is_wanted: bool) -> None:
        """See LeaseTable."""
        if is_wanted:
            self._drained.add(http_address)
        else:
            self._drained.discard(http_address)

    def close(self) -> None:
        """Do nothing: the content lives as long as the object."""
