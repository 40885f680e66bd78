"""Who runs which messaging store, when several servers share a catalog: leases, their time, and an even spread. Pure.

The unit of ownership is a messaging store with its message broker: it has one stream of commits, and its *generation*
fences the servers that had it before (decision 0024). A server tells the table of leases every BEAT_MS that it is
alive, with a ``Heartbeat``; what comes back is a ``Table`` of all servers and leases as they are in that moment, on the
clock of the database that keeps the table. No server compares a time of that clock with one of its own: the table
itself ends leases, and a holder counts from the moment at which it asked, which is before the moment at which its lease
was prolonged, on its own monotonic clock. It stops MARGIN_MS before the table can give the store to another server.

    beat(now) -> Heartbeat --> table of leases --> Table
    seen(beat, table, now) -> LeaseChanges --> stores open and close

Operators say where a store should be (a *preference*) and which servers should have none (a *drain*): both are in the
table, so every server knows of them with its next beat. Every server draws the same plan from the same view; where
views differ, the table decides: a lease is given to one who has seen its last term, and only when it is free, over, or
his already.
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
        load: What this server tells of its load; see ``NodeDetails``.
    """

    __slots__ = (
        "_claims",
        "_held",
        "_is_stopping",
        "_lease_ms",
        "_leases",
        "_margin_ms",
        "load",
        "me",
        "nodes",
        "table",
        "wants_soon",
    )

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
        self._is_stopping = False
        self.load = 0.0

    # -- asking the table ---------------------------------------------------------------------------------------

    def beat(self, now_ms: int) -> Heartbeat:
        """What to tell the table now. ``now_ms`` is of the monotonic clock, here and everywhere."""
        self.wants_soon = False
        renew = {store: held.term for store, held in self._held.items() if not held.is_closed}
        give_back = {store: held.term for store, held in self._held.items() if held.is_closed}
        claim, self._claims = self._claims, {}
        me = self.me
        if me.details is not None:
            me = msgspec.structs.replace(me, details=msgspec.structs.replace(me.details, load=self.load))
        return Heartbeat(Exchange(me, self._lease_ms, renew, claim, give_back), now_ms)

    def seen(self, beat: Heartbeat, table: Table, now_ms: int) -> LeaseChanges:
        """Take in how the table is after a beat."""
        self.table = table
        self.nodes = {node.node_id: node for node in table.nodes}
        self._leases = {lease.store_id: lease for lease in table.leases}
        self._see_drain(self.me.http_address in table.drained)
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

    def _see_drain(self, is_drained: bool) -> None:
        """Tell the others with the next beat, those of earlier versions too, whether this server wants stores."""
        details = self.me.details
        if details is None or self._is_stopping or details.is_drained == is_drained:
            return
        details = msgspec.structs.replace(details, is_drained=is_drained)
        self.me = msgspec.structs.replace(self.me, is_leaving=is_drained, details=details)
        self.wants_soon = True

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
        self._is_stopping = True
        details = self.me.details
        if details is not None:
            details = msgspec.structs.replace(details, is_drained=False)
        self.me = msgspec.structs.replace(self.me, is_leaving=True, details=details)
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
    """Which server every store should have: by weight and preference, and with as few moves as that allows.

    Who has a store keeps it unless it has more than its share; shares of equal weights differ by one at most. A store
    that somebody holds who is not heard of any more is given away; the table makes sure that its lease is over first.
    A store with a preference is at a server that fits it while there is one. Drained servers have stores only while
    there is no other server. Servers of earlier versions know neither weights nor preferences: while there is one of
    them, neither counts.
    """
    servers = _serving(table)
    if not servers:
        return {}
    knows_all = all(node.details is not None for node in table.nodes)
    fits = {store: _fitting(servers, where) for store, where in table.preferences.items()} if knows_all else {}
    placement = _Placement(servers, len(table.leases), is_weighted=knows_all)
    free: list[int] = []
    for lease in sorted(table.leases, key=lambda lease: lease.store_id):
        choice = fits.get(lease.store_id)
        if lease.node_id not in servers or lease.is_over or (choice and lease.node_id not in choice):
            free.append(lease.store_id)
        elif choice:
            placement.place(lease.store_id, lease.node_id)
        else:
            placement.held[lease.node_id].append(lease.store_id)
    for store_id in free:
        if fits.get(store_id):
            placement.place(store_id, placement.least(fits[store_id]))
    placement.fill([store_id for store_id in free if not fits.get(store_id)])
    return placement.plan


class _Placement:
    """Spreads stores over servers.

    Attributes:
        plan: Store to the server that gets it.
        held: Server to the stores that it has and that may be anywhere.
    """

    def __init__(self, servers: dict[str, NodeEntry], stores: int, *, is_weighted: bool) -> None:
        weights = {node_id: _weight(servers[node_id]) if is_weighted else 1 for node_id in sorted(servers)}
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1)
        self._total = sum(weights.values())
        # In parts of a store, so that nothing has to be rounded: a store is as many parts as the weights come to.
        self._surplus = {node_id: -stores * weight for node_id, weight in weights.items()}
        self.plan: dict[int, str] = {}
        self.held: dict[str, list[int]] = {node_id: [] for node_id in weights}

    def place(self, store_id: int, node_id: str) -> None:
        """Give a store to a server."""
        self.plan[store_id] = node_id
        self._surplus[node_id] += self._total

    def least(self, node_ids: list[str]) -> str:
        """The one of these servers that lacks most."""
        return min(node_ids, key=lambda node_id: (self._surplus[node_id], node_id))

    def fill(self, free: list[int]) -> None:
        """Spread the stores that may be anywhere, those that have no server among them.

        How many each server gets is decided first, one after the other for who lacks most; of several, for one that has
        more stores than were counted for it by then. So a plan that was carried out comes out again. With equal weights
        and without preferences this is what servers of earlier versions plan, too: nobody waits for the other.
        """
        counts = dict.fromkeys(self.held, 0)
        for _ in range(len(free) + sum(map(len, self.held.values()))):
            node_id = min(
                counts,
                key=lambda one: (self._surplus[one], counts[one] >= len(self.held[one]), -len(self.held[one]), one),
            )
            counts[node_id] += 1
            self._surplus[node_id] += self._total
        for node_id, held in self.held.items():
            kept = held[: counts[node_id]]
            self.plan.update(dict.fromkeys(kept, node_id))
            free = [*free, *held[len(kept) :]]
            counts[node_id] -= len(kept)
        for store_id in sorted(free):
            node_id = max(sorted(counts), key=lambda one: counts[one])
            self.plan[store_id] = node_id
            counts[node_id] -= 1


def _serving(table: Table) -> dict[str, NodeEntry]:
    """The servers that can have stores, by id: without those that are drained, unless there are no others."""
    able = {n.node_id: n for n in table.nodes if not n.is_leaving and n.http_address not in table.drained}
    # Who stops is leaving and not drained.
    return able or {n.node_id: n for n in table.nodes if n.details is not None and n.details.is_drained}


def _fitting(servers: dict[str, NodeEntry], where: str) -> list[str]:
    """The ids of the servers that a preference names, by address or label, in order."""
    return sorted(
        node_id
        for node_id, node in servers.items()
        if node.http_address == where or (node.details is not None and where in node.details.labels)
    )


def _weight(node: NodeEntry) -> int:
    return 1 if node.details is None else node.details.weight
