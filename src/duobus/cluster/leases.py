"""Who runs which messaging store, when several servers share a catalog: leases, their time, and an even spread. Pure.

The unit of ownership is a messaging store with its message broker: it has one stream of commits, and its *generation*
fences the servers that had it before (decision 0024). A server tells the table of leases every BEAT_MS that it is
alive, with a ``Heartbeat``; what comes back is a ``Table`` of all servers and leases as they are in that moment, on the
clock of the database that keeps the table. No server compares a time of that clock with one of its own: the table
itself ends leases, and a holder counts from the moment at which it asked, which is before the moment at which its lease
was prolonged, on its own monotonic clock. It stops MARGIN_MS before the table can give the store to another server.

    beat(now) -> Heartbeat --> table of leases --> Table
    seen(beat, table, now) -> LeaseChanges --> stores open and close

The lease of a store lies in the database of the store (decision 0067): there is a table in the catalog's database and
one in each other database with stores, each is asked by itself, and each prolongs the leases of its own stores only.
The plan is made from all tables together. While one of them is not reached its stores are left as they were, nobody
moves a store to make shares even, and a store without a holder is taken by whoever comes first.

The time at a store never goes back when its holder changes: the table keeps the broker time that the holder told,
continues that time by its own clock, and tells the next holder (decision 0076).

A server that was killed is given up before its lease is over: nobody can connect to it any more, and it has no session
with the database (decision 0067). A server that is silent is given up when its lease is over.

Operators say where a store should be (a *preference*) and which servers should have none (a *drain*): both are in the
table, so every server knows of them with its next beat. Every server draws the same plan from the same view; where
views differ, the table decides: a lease is given to one who has seen its last term, and only when it is free, over, or
his already.
"""

from __future__ import annotations

from collections.abc import Mapping
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
#: Pause before a table is asked again whether a server that is gone has lost its sessions.
GONE_BEAT_MS: Final = 50
#: For how long it is asked so often.
GONE_MS: Final = 1_000
#: Younger than this, what a table said last still counts as how things are.
FRESH_MS: Final = 3 * BEAT_MS
#: While a table is not reached: for how long a store may be without a holder before anybody takes it.
ORPHAN_MS: Final = 2 * BEAT_MS
#: The catalog's own database, among those that have leases.
CATALOG: Final = ""
#: Servers that can join one catalog.
NODES_MAX: Final = 64


class Heartbeat:
    """One exchange with a table.

    Attributes:
        told: What the table is told.
        asked_ms: When, on this server's own monotonic clock.
        database: Whose table it is.
        number: Later beats of a server have higher ones.
    """

    __slots__ = ("asked_ms", "database", "number", "told")

    def __init__(self, told: Exchange, asked_ms: int, database: str, number: int) -> None:
        self.told = told
        self.asked_ms = asked_ms
        self.database = database
        self.number = number


class LeaseChanges:
    """What a server has to do after it has seen the table.

    Attributes:
        gained: Stores to open.
        lost: Stores that somebody else may have by now: to be dropped at once.
        leave: Stores to be closed in good order, then given back with ``left``.
        time_ms: Broker time may not be earlier from now on: locks of stores in ``gained`` were given by this time.
    """

    __slots__ = ("gained", "leave", "lost", "time_ms")

    def __init__(self) -> None:
        self.gained: list[int] = []
        self.lost: list[int] = []
        self.leave: list[int] = []
        self.time_ms = 0


class _HeldLease:
    """A lease of this server: ``term`` is that of the table; ``first_term`` stays, also where it is handed over."""

    __slots__ = ("ends_ms", "first_term", "is_closed", "is_leaving", "term")

    def __init__(self, term: int, ends_ms: int) -> None:
        self.term = self.first_term = term
        self.ends_ms = ends_ms
        self.is_leaving = False
        self.is_closed = False


class StoreLeases:
    """The leases of one server.

    Attributes:
        me: The server itself.
        table: All tables as they were seen last, as one; empty before.
        nodes: Node id to server, of those that are alive.
        soon: Databases whose next beat should not wait for its time.
        load, broker_ms: What this server tells of its load and of its time; see ``NodeDetails`` and ``Exchange``.
        homes: Store id to its database, for the stores that are in another one than the catalog.
    """

    __slots__ = (
        "_adopt",
        "_answered",
        "_beats",
        "_claims",
        "_gone",
        "_held",
        "_is_stopping",
        "_last_terms",
        "_lease_ms",
        "_leases",
        "_margin_ms",
        "_missing_since",
        "_over_since",
        "_seen_ms",
        "_tables",
        "_where",
        "broker_ms",
        "homes",
        "load",
        "me",
        "nodes",
        "soon",
        "table",
    )

    def __init__(self, me: NodeEntry, *, lease_ms: int = LEASE_MS, margin_ms: int = MARGIN_MS) -> None:
        self.me = me
        self.table = Table((), (), -1)
        self.nodes: dict[str, NodeEntry] = {}
        self.soon: set[str] = set()
        self.homes: dict[int, str] = {}
        self._lease_ms = lease_ms
        self._margin_ms = margin_ms
        self._tables: dict[str, Table] = {}
        # Database to when this server asked what it was told last.
        self._seen_ms: dict[str, int] = {}
        # Store id to the database whose table has its lease.
        self._where: dict[int, str] = {}
        self._leases: dict[int, LeaseEntry] = {}
        self._held: dict[int, _HeldLease] = {}
        self._claims: dict[int, int] = {}
        self._adopt: dict[int, int] = {}
        # Servers that nobody can connect to, and until when the tables are asked about them in haste.
        self._gone: dict[str, int] = {}
        # Store id to since when its lease is over, or nowhere.
        self._over_since: dict[int, int] = {}
        self._missing_since: dict[int, int] = {}
        self._last_terms: dict[int, int] = {}
        self._is_stopping = False
        # Beats so far, and database to the latest of them that was answered.
        self._beats = 0
        self._answered: dict[str, int] = {}
        self.load = 0.0
        self.broker_ms = 0

    @property
    def wants_soon(self) -> bool:
        """Whether the next beat of some database should not wait for its time."""
        return bool(self.soon)

    @property
    def databases(self) -> list[str]:
        """Those whose tables are to be asked, the catalog's first."""
        return [CATALOG, *sorted(set(self.homes.values()) - {CATALOG})]

    def hurry(self) -> None:
        """Ask all tables before their time."""
        self.soon.update(self.databases)

    # -- asking the tables --------------------------------------------------------------------------------------

    def beat(self, now_ms: int, database: str = CATALOG) -> Heartbeat:
        """What to tell a table now. ``now_ms`` is of the monotonic clock, here and everywhere."""
        self.soon.discard(database)
        self._adopt = {store: term for store, term in self._adopt.items() if store in self._held}
        held = {
            store: one
            for store, one in self._held.items()
            if self._database_of(store) == database and store not in self._adopt
        }
        renew = {store: one.term for store, one in held.items() if not one.is_closed}
        give_back = {store: one.term for store, one in held.items() if one.is_closed}
        claims = [store for store in self._claims if self._database_of(store) == database]
        claim = {store: self._claims.pop(store) for store in claims}
        me = self.me
        if me.details is not None:
            me = msgspec.structs.replace(me, details=msgspec.structs.replace(me.details, load=self.load))
        told = Exchange(
            me,
            self._lease_ms,
            renew,
            claim,
            give_back,
            gone=tuple(sorted(self._gone)),
            hand_over=self._to_be_handed_over(renew) if database == CATALOG else {},
            adopt={store: term for store, term in self._adopt.items() if self._home(store) == database},
            create=self._to_be_created(database, now_ms),
            broker_ms=self.broker_ms,
        )
        self._beats += 1
        return Heartbeat(told, now_ms, database, self._beats)

    def _home(self, store_id: int) -> str:
        return self.homes.get(store_id, CATALOG)

    def _database_of(self, store_id: int) -> str:
        return self._where.get(store_id, CATALOG)

    def _to_be_handed_over(self, renew: dict[int, int]) -> dict[int, int]:
        """The leases that the stores' own databases can keep: those are reached, and every server knows of it."""
        if not all(map(_keeps_own, self.nodes.values())):
            return {}
        return {
            store: term
            for store, term in renew.items()
            if self._home(store) in self._tables and self._home(store) != CATALOG and not self._held[store].is_leaving
        }

    def _to_be_created(self, database: str, now_ms: int) -> dict[int, int]:
        """Leases that were handed over by a server that ended before it made them again; its time is over by now."""
        if database == CATALOG or database not in self._tables:
            return {}
        return {
            store: self._last_terms.get(store, 0) + 1
            for store, since in self._missing_since.items()
            if self._home(store) == database and now_ms - since > self._lease_ms
        }

    def seen(self, beat: Heartbeat, table: Table, now_ms: int) -> LeaseChanges:
        """Take in how a table is after a beat; an answer that arrives after the answer to a later beat is ignored.

        This server may have given back with the later beat what it claimed with the earlier one. What an ignored answer
        would have granted is claimed again.
        """
        database = beat.database
        if beat.number < self._answered.get(database, 0):
            return LeaseChanges()
        self._answered[database] = beat.number
        self._tables[database] = table
        self._seen_ms[database] = beat.asked_ms
        self._merge(now_ms)
        if database == CATALOG:
            self._see_drain(self.me.http_address in table.drained)
        moves = LeaseChanges()
        self._see_handed_over(beat, table)
        for store_id in beat.told.adopt:
            self._adopt.pop(store_id, None)
        for store_id in [*beat.told.renew, *beat.told.give_back, *beat.told.adopt]:
            self._prolong(store_id, beat, moves, now_ms)
        for store_id in beat.told.claim:
            lease = self._leases.get(store_id)
            if lease is not None and lease.node_id == self.me.node_id and store_id not in self._held:
                held = self._held[store_id] = _HeldLease(lease.term, self._end_of(beat))
                if now_ms < held.ends_ms:
                    moves.gained.append(store_id)
                    moves.time_ms = max(moves.time_ms, table.times.get(store_id, 0))
                else:
                    # The answer has taken too long; it is claimed again under another term.
                    del self._held[store_id]
        self._plan(moves, now_ms, set(self.away(now_ms)) - {database})
        return moves

    def _merge(self, now_ms: int) -> None:
        """Make one table of what all of them said last."""
        leases: dict[int, LeaseEntry] = {}
        nodes: dict[str, NodeEntry] = {}
        self._where = {}
        for database in self.databases:
            table = self._tables.get(database)
            if table is None:
                continue
            if self._is_fresh(database, now_ms):
                nodes = {node.node_id: node for node in table.nodes} | nodes
            for lease in table.leases:
                # What is kept in its own database is not in the catalog's, or an earlier version's row of before.
                if database == CATALOG or self._home(lease.store_id) == database:
                    leases[lease.store_id] = lease
                    self._where[lease.store_id] = database
        self.nodes = nodes
        self._gone = {node_id: until for node_id, until in self._gone.items() if node_id in nodes}
        self._leases = leases
        self._last_terms |= {store: lease.term for store, lease in leases.items()}
        ordered = tuple(sorted(leases.values(), key=lambda lease: lease.store_id))
        base = self._tables.get(CATALOG, Table((), (), -1))
        # A server of an earlier version that stood still while leases were handed over sees only some of the stores, so
        # that its plan cannot be known: what it has it keeps, and nobody waits for it to take anything.
        is_handed_over = any(where != CATALOG for where in self._where.values())
        planned = tuple(node for node in nodes.values() if _keeps_own(node) or not is_handed_over)
        self.table = msgspec.structs.replace(base, nodes=planned, leases=ordered)
        over = [lease.store_id for lease in ordered if lease.is_over]
        self._over_since = {store: self._over_since.get(store, now_ms) for store in over}
        missing = [store for store in self.homes if store not in leases and CATALOG in self._tables]
        self._missing_since = {store: self._missing_since.get(store, now_ms) for store in missing}

    def _is_fresh(self, database: str, now_ms: int) -> bool:
        return database in self._seen_ms and now_ms - self._seen_ms[database] <= max(FRESH_MS, self._lease_ms)

    def away(self, now_ms: int) -> list[str]:
        """The databases whose tables have not been reached for longer than a few beats."""
        found = self.databases
        return [one for one in found if one not in self._seen_ms or now_ms - self._seen_ms[one] > FRESH_MS]

    def _see_drain(self, is_drained: bool) -> None:
        """Tell the others with the next beat, those of earlier versions too, whether this server wants stores."""
        details = self.me.details
        if details is None or self._is_stopping or details.is_drained == is_drained:
            return
        details = msgspec.structs.replace(details, is_drained=is_drained)
        self.me = msgspec.structs.replace(self.me, is_leaving=is_drained, details=details)
        self.hurry()

    def _see_handed_over(self, beat: Heartbeat, table: Table) -> None:
        there = {lease.store_id for lease in table.leases}
        for store_id, term in beat.told.hand_over.items():
            if store_id not in there and store_id in self._held:
                # Until the store's own database has it this server goes on to the end that it had, and no longer.
                self._adopt[store_id] = term
                self.soon.add(self._home(store_id))

    def _prolong(self, store_id: int, beat: Heartbeat, moves: LeaseChanges, now_ms: int) -> None:
        held = self._held.get(store_id)
        if held is None or store_id in self._adopt:
            # It expired while the table was asked, or is on its way to another table.
            return
        lease = self._leases.get(store_id)
        if store_id in beat.told.adopt and lease is not None and lease.node_id == self.me.node_id:
            held.term = lease.term
        is_mine = lease is not None and lease.node_id == self.me.node_id and lease.term == held.term
        if store_id in beat.told.give_back:
            del self._held[store_id]
        elif is_mine and now_ms < held.ends_ms:
            held.ends_ms = max(held.ends_ms, self._end_of(beat))
        else:
            # Its own, too, when the answer came behind the lease's end: what was done meanwhile found the store gone,
            # and counts on it that everything of the store in memory goes.
            del self._held[store_id]
            moves.lost.append(store_id)

    def _end_of(self, beat: Heartbeat) -> int:
        return beat.asked_ms + self._lease_ms - self._margin_ms

    def _plan(self, moves: LeaseChanges, now_ms: int, away: set[str]) -> None:
        mine = self.me.node_id
        wanted = plan(self.table, self._reach(away))
        for store_id, held in self._held.items():
            # To make shares even while half of them is not known would move stores for nothing.
            is_asked = not away or self.me.is_leaving
            if is_asked and wanted.get(store_id, mine) != mine and not held.is_leaving:
                held.is_leaving = True
                moves.leave.append(store_id)
        may_serve = mine in _serving(self.table)
        for store_id, lease in self._leases.items():
            database = self._database_of(store_id)
            is_orphan = bool(away) and may_serve and now_ms - self._over_since.get(store_id, now_ms) > ORPHAN_MS
            if database in away or store_id in self._held or not (wanted.get(store_id) == mine or is_orphan):
                continue
            if lease.is_over or lease.node_id == mine:
                self._claims[store_id] = lease.term
                self.soon.add(database)

    def _reach(self, away: set[str]) -> dict[int, frozenset[str]]:
        """Which servers can have a store, of those that are in other databases than the catalog's."""
        reach: dict[int, frozenset[str]] = {}
        for store_id, database in self._where.items():
            if database not in away and len(self._tables) > 1:
                reach[store_id] = frozenset(node.node_id for node in self._tables[database].nodes)
        return reach

    # -- servers that are gone ----------------------------------------------------------------------------------

    def report_gone(self, node_id: str, now_ms: int) -> None:
        """Nobody can connect to a server any more: the tables are told, and decide."""
        node = self.nodes.get(node_id)
        # One that stops closes its listeners first, and gives its stores back by itself: there is no haste.
        is_drained = node is not None and node.details is not None and node.details.is_drained
        is_stopping = node is not None and node.is_leaving and not is_drained
        if node is not None and node_id not in self._gone:
            self._gone[node_id] = now_ms if is_stopping else now_ms + GONE_MS
            self.hurry()

    def report_back(self, node_id: str) -> None:
        """A server takes connections after all."""
        self._gone.pop(node_id, None)

    def rest_ms(self, database: str, now_ms: int) -> int:
        """How long to wait until a table is asked again, if nothing happens: no longer than until a lease there ends.

        So a server that has fallen silent is given up when its lease is over, and not at the beat after that.
        """
        if any(now_ms < until_ms for until_ms in self._gone.values()):
            return GONE_BEAT_MS
        table = self._tables.get(database)
        ends = [lease.left_ms for lease in table.leases if not lease.is_over] if table is not None else []
        return min([BEAT_MS, *(left + 1 for left in ends)])

    # -- holding ------------------------------------------------------------------------------------------------

    def drain(self) -> list[int]:
        """Want no stores any more: those to be closed in good order, then given back with ``left``."""
        self._is_stopping = True
        details = self.me.details
        if details is not None:
            details = msgspec.structs.replace(details, is_drained=False)
        self.me = msgspec.structs.replace(self.me, is_leaving=True, details=details)
        self._claims = {}
        self.hurry()
        leave = [store_id for store_id, held in self._held.items() if not held.is_leaving]
        for store_id in leave:
            self._held[store_id].is_leaving = True
        return leave

    def left(self, store_id: int) -> None:
        """A store is closed: the next beat gives it back."""
        held = self._held.get(store_id)
        if held is not None:
            held.is_closed = True
            self.soon.add(self._database_of(store_id))

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
        """The term under which this server has got a store, or None; a hand-over meanwhile changes nothing."""
        held = self._held.get(store_id)
        return None if held is None else held.first_term

    def is_wanted(self, store_id: int, term: int | None) -> bool:
        """Whether a store was got under this term and is to stay: one that is being left must not be opened again."""
        held = self._held.get(store_id)
        return held is not None and held.first_term == term and not held.is_leaving

    @property
    def owned(self) -> list[int]:
        """The stores that this server holds, those that it is leaving among them."""
        return sorted(self._held)

    def owner_of(self, store_id: int) -> NodeEntry | None:
        """Who has a store, as far as the table was seen; None while it moves, or its owner takes no connections."""
        lease = self._leases.get(store_id)
        if lease is None or lease.is_over or lease.node_id is None or lease.node_id in self._gone:
            return None
        return self.nodes.get(lease.node_id)


def plan(table: Table, reach: Mapping[int, frozenset[str]] | None = None) -> dict[int, str]:
    """Which server every store should have: by weight and preference, and with as few moves as that allows.

    Who has a store keeps it unless it has more than its share; shares of equal weights differ by one at most. A store
    that somebody holds who is not heard of any more is given away; the table makes sure that its lease is over first.
    A store with a preference is at a server that fits it while there is one. Drained servers have stores only while
    there is no other server. Servers of earlier versions know neither weights nor preferences: while there is one of
    them, neither counts.

    Args:
        table: Servers and leases.
        reach: Ids of the servers that reach the database of a store; one that is not named is reached by all.
    """
    servers = _serving(table)
    if not servers:
        return {}
    knows_all = all(node.details is not None for node in table.nodes)
    fits = {store: _fitting(servers, where) for store, where in table.preferences.items()} if knows_all else {}
    for store, able in (reach or {}).items():
        if not able.issuperset(servers):
            # A preference for a server that does not reach it does not count.
            near = [node_id for node_id in fits.get(store) or sorted(servers) if node_id in able]
            fits[store] = near or sorted(able & servers.keys())
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


def _keeps_own(node: NodeEntry) -> bool:
    """Whether a server knows that leases may lie in the stores' own databases."""
    return node.details is not None and node.details.keeps_own


def _weight(node: NodeEntry) -> int:
    return 1 if node.details is None else node.details.weight
