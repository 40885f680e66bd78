"""The table of leases that servers share beside their catalog; what it is for is in cluster/leases.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import msgspec


class NodeEntry(msgspec.Struct, frozen=True):
    """A server that is alive: its id, its addresses, and whether it is being drained."""

    node_id: str
    address: str
    http_address: str
    is_leaving: bool


class LeaseEntry(msgspec.Struct, frozen=True):
    """A lease: store, holder or None, term, and whether it is free or its time over, by the table's own clock."""

    store_id: int
    node_id: str | None
    term: int
    is_over: bool


class Exchange(msgspec.Struct, frozen=True):
    """What a server tells the table.

    Attributes:
        me: The server.
        lease_ms: For how long it is to count as alive, and its leases are prolonged.
        renew, claim, give_back: Store id to the term that the server has (renew, give_back) or has seen (claim).
    """

    me: NodeEntry
    lease_ms: int
    renew: dict[int, int]
    claim: dict[int, int]
    give_back: dict[int, int]


class Table(msgspec.Struct, frozen=True):
    """The table after an exchange, in one moment: servers that are alive, all leases, the catalog's revision."""

    nodes: tuple[NodeEntry, ...]
    leases: tuple[LeaseEntry, ...]
    revision: int


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
    def close(self) -> None:
        """Give everything back; never raises."""


class MemoryLeases(LeaseTable):
    """The reference behaviour in dictionaries, for tests and simulation.

    Attributes:
        revision: Of the catalog; whoever changes that raises it.

    Args:
        stores: Ids of all stores.
        now_ms: The table's own clock.
    """

    def __init__(self, stores: Iterable[int], now_ms: Callable[[], int]) -> None:
        self.revision = 0
        self._now_ms = now_ms
        self._nodes: dict[str, tuple[NodeEntry, int]] = {}
        # Store id to holder, term, and when its time is over.
        self._leases: dict[int, tuple[str | None, int, int]] = dict.fromkeys(stores, (None, 0, 0))

    def exchange(self, told: Exchange) -> Table:
        """See LeaseTable."""
        now_ms = self.now_for(told)
        mine, until_ms = told.me.node_id, now_ms + told.lease_ms
        self._nodes = {key: found for key, found in self._nodes.items() if found[1] > now_ms}
        self._nodes[mine] = (told.me, until_ms)
        for store_id, (holder, term, ends_ms) in list(self._leases.items()):
            if holder == mine and told.renew.get(store_id) == term:
                self._leases[store_id] = (mine, term, until_ms)
            elif holder == mine and told.give_back.get(store_id) == term:
                self._leases[store_id] = (None, term, 0)
            elif told.claim.get(store_id) == term and (holder in (None, mine) or ends_ms <= now_ms):
                self._leases[store_id] = (mine, term + 1, until_ms)
        leases = tuple(
            LeaseEntry(store_id, holder, term, is_over=holder is None or ends_ms <= now_ms)
            for store_id, (holder, term, ends_ms) in self._leases.items()
        )
        return Table(tuple(node for node, _ in self._nodes.values()), leases, self.revision)

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

    def close(self) -> None:
        """Do nothing: the content lives as long as the object."""
