"""Who runs which messaging store, when several servers share a catalog: leases, their time, and an even spread. Pure.

The unit of ownership is a messaging store with its message broker: it has one stream of commits, and its *generation*
fences the servers that had it before (decision 0024). A server tells the table of leases every BEAT_MS that it is
alive, with a ``Heartbeat``; what comes back is a ``Table`` of all servers and leases as they are in that moment, on the
clock of the database that keeps the table. No server compares a time of that clock with one of its own: the table
itself ends leases, and a holder counts from the moment at which it asked, which is before the moment at which its lease
was prolonged, on its own monotonic clock. It stops MARGIN_MS before the table can give the store to another server.

    beat(now) -> Heartbeat --> table of leases --> Table
    seen(beat, table, now) -> LeaseChanges --> stores open and close

Every server draws the same plan from the same view; where views differ, the table decides: a lease is given to one who
has seen its last term, and only when it is free, over, or his already.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duobus.storage.catalog.leases import Exchange, LeaseEntry, NodeEntry, Table

#: A holder that is not heard of for so long has lost its leases: what a killed server costs, at most.
LEASE_MS: Final = 2_500
#: How often a server is heard of. Three beats may be lost before its leases are over.
BEAT_MS: Final = 500
#: By how much a holder stops before its lease can be over: what the two clocks may differ in running for LEASE_MS, and
#: what was begun in time may still take.
MARGIN_MS: Final = 400
#: Servers that can join one catalog.
NODES_MAX: Final = 64


class Heartbeat:
    """One exchange with the table.

    Attributes:
        told: What the table is told.
        asked_ms: When, on this server's own monotonic clock.
    """

    __slots__ = ("asked_ms", "told")

    def __init__(self, told: Exchange, asked_ms: int) -> None:
        self.told = told
        self.asked_ms = asked_ms


class LeaseChanges:
    """What a server has to do after it has seen the table.

    Attributes:
        gained: Stores to open.
        lost: Stores that somebody else may have by now: to be dropped at once.
        leave: Stores to be closed in good order, then given back with ``left``.
    """

    __slots__ = ("gained", "leave", "lost")

    def __init__(self) -> None:
        self.gained: list[int] = []
        self.lost: list[int] = []
        self.leave: list[int] = []


class _HeldLease:
    __slots__ = ("ends_ms", "is_closed", "is_leaving", "term")

    def __init__(self, term: int, ends_ms: int) -> None:
        self.term = term
        self.ends_ms = ends_ms
        self.is_leaving = False
        self.is_closed = False


class StoreLeases:
    """The leases of one server.

    Attributes:
        me: The server itself.
        table: As it was seen last; empty before.
        nodes: Node id to server, of those that are alive.
        wants_soon: The next beat should not wait for its time.
    """

    __slots__ = ("_claims", "_held", "_lease_ms", "_leases", "_margin_ms", "me", "nodes", "table", "wants_soon")

    def __init__(self, me: NodeEntry, *, lease_ms: int = LEASE_MS, margin_ms: int = MARGIN_MS) -> None:
        self.me = me
        self.table = Table((), (), -1)
        self.nodes: dict[str, NodeEntry] = {}
        self.wants_soon = False
        self._lease_ms = lease_ms
        self._margin_ms = margin_ms
        self._leases: dict[int, LeaseEntry] = {}
        self._held: dict[int, _HeldLease] = {}
        self._claims: dict[int, int] = {}

    # -- asking the table ---------------------------------------------------------------------------------------

    def beat(self, now_ms: int) -> Heartbeat:
        """What to tell the table now. ``now_ms`` is of the monotonic clock, here and everywhere."""
        self.wants_soon = False
        renew = {store: held.term for store, held in self._held.items() if not held.is_closed}
        give_back = {store: held.term for store, held in self._held.items() if held.is_closed}
        claim, self._claims = self._claims, {}
        return Heartbeat(Exchange(self.me, self._lease_ms, renew, claim, give_back), now_ms)

    def seen(self, beat: Heartbeat, table: Table, now_ms: int) -> LeaseChanges:
        """Take in how the table is after a beat."""
        self.table = table
        self.nodes = {node.node_id: node for node in table.nodes}
        self._leases = {lease.store_id: lease for lease in table.leases}
        moves = LeaseChanges()
        for store_id in [*beat.told.renew, *beat.told.give_back]:
            self._prolong(store_id, beat, moves)
        for store_id in beat.told.claim:
            lease = self._leases.get(store_id)
            if lease is not None and lease.node_id == self.me.node_id and store_id not in self._held:
                held = self._held[store_id] = _HeldLease(lease.term, self._end_of(beat))
                if now_ms < held.ends_ms:
                    moves.gained.append(store_id)
                else:
                    # The answer has taken too long; it is claimed again under another term.
                    del self._held[store_id]
        self._plan(moves)
        return moves

    def _prolong(self, store_id: int, beat: Heartbeat, moves: LeaseChanges) -> None:
        held = self._held.get(store_id)
        if held is None:
            # It expired while the table was asked.
            return
        lease = self._leases.get(store_id)
        is_mine = lease is not None and lease.node_id == self.me.node_id and lease.term == held.term
        if store_id in beat.told.give_back:
            del self._held[store_id]
        elif is_mine:
            held.ends_ms = max(held.ends_ms, self._end_of(beat))
        else:
            del self._held[store_id]
            moves.lost.append(store_id)

    def _end_of(self, beat: Heartbeat) -> int:
        return beat.asked_ms + self._lease_ms - self._margin_ms

    def _plan(self, moves: LeaseChanges) -> None:
        mine = self.me.node_id
        wanted = plan(self.table)
        for store_id, held in self._held.items():
            if wanted.get(store_id, mine) != mine and not held.is_leaving:
                held.is_leaving = True
                moves.leave.append(store_id)
        for store_id, node_id in wanted.items():
            lease = self._leases[store_id]
            if node_id == mine and store_id not in self._held and (lease.is_over or lease.node_id == mine):
                self._claims[store_id] = lease.term
                self.wants_soon = True

    # -- holding ------------------------------------------------------------------------------------------------

    def drain(self) -> list[int]:
        """Want no stores any more: those to be closed in good order, then given back with ``left``."""
        self.me = msgspec.structs.replace(self.me, is_leaving=True)
        self._claims = {}
        self.wants_soon = True
        leave = [store_id for store_id, held in self._held.items() if not held.is_leaving]
        for store_id in leave:
            self._held[store_id].is_leaving = True
        return leave

    def left(self, store_id: int) -> None:
        """A store is closed: the next beat gives it back."""
        held = self._held.get(store_id)
        if held is not None:
            held.is_closed = True
            self.wants_soon = True

    def is_expired(self, now_ms: int) -> list[int]:
        """Stores whose leases are over because the table was not reached: to be dropped at once. Tells of each once."""
        over = [store_id for store_id, held in self._held.items() if now_ms >= held.ends_ms]
        for store_id in over:
            del self._held[store_id]
        return over

    def ends_ms(self, store_id: int) -> int:
        """Until when, on the monotonic clock, this server may act for a store; 0 when it may not.

        What is closed may have somebody else by now, though this server has not heard yet that it was given back: an
        opening that was under way when it was asked to leave must not end in serving it (I55).
        """
        held = self._held.get(store_id)
        return 0 if held is None or held.is_closed else held.ends_ms

    def may_act(self, store_id: int, now_ms: int) -> bool:
        """Whether this server may act for a store now."""
        return now_ms < self.ends_ms(store_id)

    def term(self, store_id: int) -> int | None:
        """The term under which this server holds a store, or None."""
        held = self._held.get(store_id)
        return None if held is None else held.term

    def is_wanted(self, store_id: int, term: int | None) -> bool:
        """Whether a store is held under this term and is to stay: one that is being left must not be opened again."""
        held = self._held.get(store_id)
        return held is not None and held.term == term and not held.is_leaving

    @property
    def owned(self) -> list[int]:
        """The stores that this server holds, those that it is leaving among them."""
        return sorted(self._held)

    def owner_of(self, store_id: int) -> NodeEntry | None:
        """Who has a store, as far as the table was seen; None while it moves."""
        lease = self._leases.get(store_id)
        if lease is None or lease.is_over or lease.node_id is None:
            return None
        return self.nodes.get(lease.node_id)


def plan(table: Table) -> dict[int, str]:
    """Which server every store should have: evenly, and with as few moves as that allows.

    Who has a store keeps it unless it has more than its share; shares differ by one at most. A store that somebody
    holds who is not heard of any more is given away; the table makes sure that its lease is over first.
    """
    nodes = sorted(node.node_id for node in table.nodes if not node.is_leaving)
    if not nodes:
        return {}
    holds: dict[str, list[int]] = {node_id: [] for node_id in nodes}
    free: list[int] = []
    for lease in sorted(table.leases, key=lambda lease: lease.store_id):
        if lease.node_id in holds and not lease.is_over:
            holds[lease.node_id].append(lease.store_id)
        else:
            free.append(lease.store_id)
    share, more = divmod(len(table.leases), len(nodes))
    # Those who have most keep the larger shares: nothing moves that need not.
    ranked = sorted(nodes, key=lambda node_id: (-len(holds[node_id]), node_id))
    shares = {node_id: share + (rank < more) for rank, node_id in enumerate(ranked)}
    for node_id in nodes:
        free += holds[node_id][shares[node_id] :]
        del holds[node_id][shares[node_id] :]
    for store_id in sorted(free):
        node_id = min(nodes, key=lambda one: (len(holds[one]) - shares[one], one))
        holds[node_id].append(store_id)
    return {store_id: node_id for node_id, stores in holds.items() for store_id in stores}
