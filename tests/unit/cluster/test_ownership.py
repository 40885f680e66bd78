"""Who runs which store: the spread as tables, the leases of one server step by step, and their time."""

from __future__ import annotations

from random import Random

import pytest

from duobus.cluster.leases import (
    BEAT_MS,
    CATALOG,
    GONE_BEAT_MS,
    GONE_MS,
    LEASE_MS,
    MARGIN_MS,
    LeaseChanges,
    StoreLeases,
    plan,
)
from duobus.storage.catalog.leases import Exchange, LeaseEntry, MemoryLeases, NodeDetails, NodeEntry, Table

END = LEASE_MS - MARGIN_MS
#: A database beside that of the catalog.
OTHER = "other"


def _node(name: str, *, is_leaving: bool = False) -> NodeEntry:
    return NodeEntry(name, f"{name}:5672", f"{name}:5300", is_leaving)


def _table(nodes: str, holders: str, over: str = "", leaving: str = "") -> Table:
    """``holders``: one letter for each store, "-" for nobody; ``over``: holders whose time is over."""
    leases = [
        LeaseEntry(store_id, None if holder == "-" else holder, 1, is_over=holder == "-" or holder in over)
        for store_id, holder in enumerate(holders)
    ]
    return Table(tuple(_node(name, is_leaving=name in leaving) for name in nodes), tuple(leases), 0)


@pytest.mark.parametrize(
    ("nodes", "holders", "over", "leaving", "wanted"),
    [
        ("", "----", "", "", ""),
        ("a", "----", "", "", "aaaa"),
        ("ab", "----", "", "", "abab"),
        ("abc", "----", "", "", "aabc"),
        ("ab", "aaaa", "", "", "aabb"),
        ("abc", "aabb", "", "", "aabc"),
        ("abc", "abca", "", "", "abca"),
        ("abcd", "abca", "", "", "abcd"),
        ("abcde", "abcd", "", "", "abcd"),
        ("ab", "abca", "c", "", "abba"),
        ("ab", "abca", "", "", "abba"),
        ("ab", "aabb", "", "a", "bbbb"),
        ("ab", "aabb", "", "ab", ""),
        ("abc", "aaab", "a", "", "abcb"),
    ],
)
def test_stores_are_spread_evenly_with_as_few_moves_as_that_allows(
    nodes: str, holders: str, over: str, leaving: str, wanted: str
) -> None:
    found = plan(_table(nodes, holders, over, leaving))
    assert "".join(found[store_id] for store_id in sorted(found)) == wanted


@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize("stores", [1, 2, 4, 7, 16])
def test_shares_differ_by_one_at_most_and_a_plan_that_was_carried_out_stays(nodes: int, stores: int) -> None:
    names = "abcdefgh"[:nodes]
    found = plan(_table(names, "-" * stores))
    shares = [list(found.values()).count(name) for name in names]
    assert max(shares) - min(shares) <= 1
    carried_out = "".join(found[store_id] for store_id in range(stores))
    assert plan(_table(names, carried_out)) == found


class _World:
    """One table and its clock, and servers whose monotonic clocks run beside it from other zeros."""

    def __init__(self, stores: int = 2) -> None:
        self.now_ms = 1_000_000
        self.table = MemoryLeases(range(stores), lambda: self.now_ms)

    def beat(self, one: StoreLeases, *, answered_after: int = 0) -> tuple[list[int], list[int], list[int]]:
        beat = one.beat(self.now_ms)
        seen = self.table.exchange(beat.told)
        moves = one.seen(beat, seen, self.now_ms + answered_after)
        return moves.gained, moves.leave, moves.lost


def _joined(world: _World, name: str) -> StoreLeases:
    one = StoreLeases(_node(name))
    world.beat(one)
    world.beat(one)
    return one


def test_a_lone_server_gets_everything_with_its_second_beat() -> None:
    world = _World()
    one = StoreLeases(_node("a"))
    assert world.beat(one) == ([], [], [])
    assert one.wants_soon
    assert world.beat(one) == ([0, 1], [], [])
    assert one.owned == [0, 1]
    assert not one.wants_soon


def test_a_holder_may_act_until_a_margin_before_the_end_counted_from_when_it_asked() -> None:
    world = _World()
    one = StoreLeases(_node("a"))
    world.beat(one)
    asked = world.now_ms
    world.beat(one, answered_after=300)
    assert one.may_act(0, asked + END - 1)
    assert not one.may_act(0, asked + END)
    assert one.is_expired(asked + END - 1) == []
    assert one.is_expired(asked + END) == [0, 1]
    assert one.is_expired(asked + END) == []


def test_a_lease_whose_answer_took_too_long_is_never_used() -> None:
    world = _World(1)
    one = StoreLeases(_node("a"))
    world.beat(one)
    assert world.beat(one, answered_after=END) == ([], [], [])
    assert one.owned == []
    # It is still noted as the holder, and claims it again under a term of its own.
    assert world.beat(one) == ([0], [], [])
    assert one.term(0) == 2


def test_a_lease_that_was_over_before_its_answer_came_is_lost_and_claimed_again_under_another_term() -> None:
    world = _World()
    one = _joined(world, "a")
    before = one.term(0)
    world.now_ms += END - 10
    # The table has it still. Meanwhile it was acted for as for one that is gone, so what is in memory has to go.
    assert world.beat(one, answered_after=20) == ([], [], [0, 1])
    assert one.owned == []
    assert world.beat(one) == ([0, 1], [], [])
    assert before is not None
    assert one.term(0) == before + 1


def test_a_newcomer_gets_its_share_once_the_holder_has_closed_it() -> None:
    world = _World()
    first, second = _joined(world, "a"), StoreLeases(_node("b"))
    world.beat(second)
    assert world.beat(first) == ([], [1], [])
    world.beat(second)
    assert second.owned == []
    first.left(1)
    assert first.wants_soon
    world.beat(first)
    assert first.owned == [0]
    world.beat(second)
    assert world.beat(second) == ([1], [], [])
    assert second.term(1) == 2


def test_a_killed_server_loses_its_stores_when_its_lease_is_over_and_not_before() -> None:
    world = _World()
    _joined(world, "a")
    second = StoreLeases(_node("b"))
    for _ in range(LEASE_MS // BEAT_MS):
        assert world.beat(second)[0] == []
        world.now_ms += BEAT_MS
    world.beat(second)
    assert world.beat(second)[0] == [0, 1]


def test_a_drained_server_wants_nothing_and_gives_back_at_once() -> None:
    world = _World()
    first, second = _joined(world, "a"), StoreLeases(_node("b"))
    world.beat(second)
    assert first.drain() == [0, 1]
    assert world.beat(first) == ([], [], [])
    first.left(0)
    first.left(1)
    world.beat(first)
    assert first.owned == []
    world.beat(second)
    assert world.beat(second)[0] == [0, 1]
    assert world.beat(first) == ([], [], [])


def test_a_holder_learns_that_it_was_taken_for_dead() -> None:
    world = _World(1)
    first = _joined(world, "a")
    world.now_ms += LEASE_MS
    second = StoreLeases(_node("b"))
    world.beat(second)
    assert world.beat(second)[0] == [0]
    assert world.beat(first) == ([], [], [0])
    assert not first.may_act(0, world.now_ms)


def test_two_that_claim_the_same_store_are_told_apart_by_the_table() -> None:
    world = _World(1)
    first, second = StoreLeases(_node("a")), StoreLeases(_node("b"))
    world.beat(first)
    asked = [one.beat(world.now_ms) for one in (first, second)]
    told = [Exchange(beat.told.me, LEASE_MS, {}, {0: 0}, {}) for beat in asked]
    tables = [world.table.exchange(one) for one in told]
    assert [table.leases[0].node_id for table in tables] == ["a", "a"]
    assert tables[1].leases[0].term == 1


def test_the_owner_of_a_store_is_nobody_while_it_moves() -> None:
    world = _World(1)
    first = _joined(world, "a")
    second = StoreLeases(_node("b"))
    world.beat(second)
    owner = second.owner_of(0)
    assert owner is not None
    assert owner.address == "a:5672"
    first.drain()
    first.left(0)
    world.beat(first)
    world.beat(second)
    assert second.owner_of(0) is None
    assert second.owner_of(9) is None


def test_a_store_that_was_closed_is_not_acted_for_though_the_table_has_not_answered_yet() -> None:
    world = _World(1)
    first = _joined(world, "a")
    assert first.may_act(0, world.now_ms)
    first.drain()
    assert first.may_act(0, world.now_ms)
    first.left(0)
    assert first.term(0) is not None
    assert not first.may_act(0, world.now_ms)


def _known(name: str, *, weight: int = 1, labels: str = "", is_drained: bool = False) -> NodeEntry:
    details = NodeDetails("1.0", weight, tuple(labels.split()), is_drained=is_drained)
    return NodeEntry(name, f"{name}:5672", f"{name}:5300", is_leaving=is_drained, details=details)


def _wished(
    nodes: list[NodeEntry], holders: str, preferences: dict[int, str] | None = None, drained: str = ""
) -> dict[int, str]:
    leases = tuple(
        LeaseEntry(store_id, None if holder == "-" else holder, 1, is_over=holder == "-")
        for store_id, holder in enumerate(holders)
    )
    return plan(Table(tuple(nodes), leases, 0, preferences or {}, tuple(f"{name}:5300" for name in drained)))


def _text(found: dict[int, str]) -> str:
    return "".join(found[store_id] for store_id in sorted(found))


def test_stores_are_spread_by_weight() -> None:
    nodes = [_known("a", weight=3), _known("b", weight=1)]
    assert _text(_wished(nodes, "--------")).count("a") == 6
    assert _text(_wished(nodes, "aaaaaabb")) == "aaaaaabb"
    assert _text(_wished([_known("a", weight=0), _known("b")], "aaaa")) == "bbbb"
    assert _text(_wished([_known("a", weight=0), _known("b", weight=0)], "----")).count("a") == 2


def test_a_preferred_server_gets_the_store_though_it_has_its_share_and_others_make_room() -> None:
    nodes = [_known("a"), _known("b")]
    assert _text(_wished(nodes, "aabb", {2: "a:5300"})) == "abab"
    assert _text(_wished(nodes, "aabb", {0: "b:5300", 1: "b:5300"})) == "bbaa"
    # Three of four at one server, as was asked for; carried out, it stays.
    asked = {0: "a:5300", 1: "a:5300", 2: "a:5300"}
    assert _text(_wished(nodes, "aabb", asked)) == "aaab"
    assert _text(_wished(nodes, "aaab", asked)) == "aaab"


def test_a_label_names_any_server_that_has_it_and_one_that_has_the_store_keeps_it() -> None:
    nodes = [_known("a", labels="zone=x"), _known("b", labels="zone=y"), _known("c", labels="zone=y rack=1")]
    assert _text(_wished(nodes, "abc", {0: "zone=y"})) in ("bac", "cba")
    assert _text(_wished(nodes, "abc", {1: "zone=y", 2: "zone=y"})) == "abc"


def test_a_preference_for_who_is_away_does_not_count_until_he_is_back() -> None:
    assert _text(_wished([_known("b"), _known("c")], "bc", {0: "a:5300"})) == "bc"
    assert _text(_wished([_known("a"), _known("b"), _known("c")], "bc", {0: "a:5300"})) == "ac"


def test_a_drained_server_gives_everything_away_and_all_of_them_together_nothing() -> None:
    assert _text(_wished([_known("a"), _known("b")], "aabb", drained="a")) == "bbbb"
    both = [_known("a", is_drained=True), _known("b", is_drained=True)]
    assert _text(_wished(both, "aabb", drained="ab")) == "aabb"


def test_while_a_server_of_an_earlier_version_is_there_neither_weight_nor_preference_counts() -> None:
    """It would plan otherwise, and a store that each of them leaves to the other would have no server."""
    nodes = [_known("a", weight=9), _node("b")]
    assert _text(_wished(nodes, "aabb", {2: "a:5300"})) == "aabb"
    # A drain counts for it, too: who is drained says that it leaves.
    assert _text(_wished([_known("a", is_drained=True), _node("b")], "aabb", drained="a")) == "bbbb"


def _earlier_plan(table: Table) -> dict[int, str]:
    """What servers before weights and preferences plan: they are in clusters beside newer ones."""
    nodes = sorted(node.node_id for node in table.nodes if not node.is_leaving)
    if not nodes:
        return {}
    holds: dict[str, list[int]] = {node_id: [] for node_id in nodes}
    free = []
    for lease in table.leases:
        (holds[lease.node_id] if lease.node_id in holds and not lease.is_over else free).append(lease.store_id)
    share, more = divmod(len(table.leases), len(nodes))
    ranked = sorted(nodes, key=lambda node_id: (-len(holds[node_id]), node_id))
    shares = {node_id: share + (rank < more) for rank, node_id in enumerate(ranked)}
    for node_id in nodes:
        free += holds[node_id][shares[node_id] :]
        del holds[node_id][shares[node_id] :]
    for store_id in sorted(free):
        holds[min(nodes, key=lambda one: (len(holds[one]) - shares[one], one))].append(store_id)
    return {store_id: node_id for node_id, stores in holds.items() for store_id in stores}


@pytest.mark.parametrize("seed", range(200))
def test_beside_servers_of_earlier_versions_all_plan_the_same(seed: int) -> None:
    random = Random(seed)
    names = "abcdef"[: random.randint(1, 6)]
    nodes = [_known(name) if random.random() < 0.5 else _node(name) for name in names]
    if all(node.details for node in nodes):
        nodes[0] = _node("a")
    holders = "".join(random.choice(names + "-z") for _ in range(random.randint(1, 12)))
    leases = [LeaseEntry(s, None if h == "-" else h, 1, is_over=h == "-") for s, h in enumerate(holders)]
    table = Table(tuple(nodes), tuple(leases), 0, {0: f"{random.choice(names)}:5300"})
    assert plan(table) == _earlier_plan(table)


@pytest.mark.parametrize("seed", range(200))
def test_any_plan_that_is_carried_out_stays_and_gives_every_store_one_server_that_is_there(seed: int) -> None:
    random = Random(seed)
    names = "abcde"[: random.randint(1, 5)]
    nodes = [
        _known(name, weight=random.randint(0, 3), labels=random.choice(["", "zone=x", "zone=y"])) for name in names
    ]
    stores = random.randint(1, 9)
    holders = "".join(random.choice(names + "-") for _ in range(stores))
    wishes = {
        store: random.choice([f"{random.choice(names)}:5300", "zone=x", "zone=y", "gone:5300"])
        for store in range(stores)
        if random.random() < 0.4
    }
    drained = "".join(name for name in names if random.random() < 0.2)
    if drained == names:
        drained = ""
    found = _wished(nodes, holders, wishes, drained)
    assert sorted(found) == list(range(stores))
    assert set(found.values()) <= set(names) - set(drained)
    assert _wished(nodes, _text(found), wishes, drained) == found
    by_name = {node.node_id: node for node in nodes if node.node_id not in drained}
    for store, where in wishes.items():
        fitting = {
            name
            for name, node in by_name.items()
            if node.http_address == where or (node.details is not None and where in node.details.labels)
        }
        assert not fitting or found[store] in fitting


def test_a_server_that_sees_its_drain_tells_the_others_and_goes_on_when_the_drain_ends() -> None:
    world = _World()
    first, second = StoreLeases(_known("a")), StoreLeases(_known("b"))
    for _ in range(2):
        world.beat(first)
    world.beat(second)
    world.table.drain("a:5300", is_wanted=True)
    assert world.beat(first)[1] == [0, 1]
    assert (first.me.is_leaving, first.wants_soon) == (True, True)
    for store_id in (0, 1):
        first.left(store_id)
    world.beat(first)
    world.beat(second)
    assert world.beat(second)[0] == [0, 1]
    world.table.drain("a:5300", is_wanted=False)
    world.beat(first)
    assert not first.me.is_leaving
    world.beat(first)
    assert world.beat(second)[1] == [1]


def test_a_server_that_stops_while_it_is_drained_is_not_taken_for_one_that_can_serve() -> None:
    world = _World()
    one = StoreLeases(_known("a"))
    world.table.drain("a:5300", is_wanted=True)
    world.beat(one)
    world.beat(one)
    # The only one, so it serves although it is drained.
    assert world.beat(one)[0] == [0, 1]
    one.drain()
    for store_id in (0, 1):
        one.left(store_id)
    assert world.beat(one) == ([], [], [])
    assert world.beat(one) == ([], [], [])
    assert one.owned == []


# -- leases in the stores' own databases (decision 0067), servers that are gone ----------------------------------


class _Databases(_World):
    """Stores 0 and 1 in the catalog's database, 2 and 3 in another."""

    def __init__(self) -> None:
        super().__init__(4)
        self.ended: set[str] = set()
        self.tables = {
            CATALOG: MemoryLeases(range(4), lambda: self.now_ms, lambda name: name not in self.ended),
            OTHER: MemoryLeases((), lambda: self.now_ms, lambda name: name not in self.ended),
        }
        self.away: set[str] = set()

    def server(self, name: str) -> StoreLeases:
        one = StoreLeases(NodeEntry(name, f"{name}:5672", f"{name}:5300", False, NodeDetails(keeps_own=True)))
        one.homes = {2: OTHER, 3: OTHER}
        return one

    def ask(self, one: StoreLeases, database: str) -> list[int]:
        """One beat; returns the stores that were got."""
        beat = one.beat(self.now_ms, database)
        if database in self.away:
            return []
        moves = one.seen(beat, self.tables[database].exchange(beat.told), self.now_ms)
        for store_id in moves.leave:
            one.left(store_id)
        return moves.gained

    def settle(self, *servers: StoreLeases, beats: int = 8) -> None:
        """Let servers ask all tables time and again, within one beat's time each."""
        for _ in range(beats):
            for one in servers:
                for database in one.databases:
                    self.ask(one, database)
            self.now_ms += BEAT_MS // 4


def _kept(world: _Databases, database: str) -> list[int]:
    told = Exchange(_node("reader"), 1, {}, {}, {})
    return [lease.store_id for lease in world.tables[database].exchange(told).leases]


def test_leases_are_handed_over_to_the_databases_of_their_stores_without_a_change_of_owner() -> None:
    world = _Databases()
    one = world.server("a")
    world.ask(one, CATALOG)
    assert world.ask(one, CATALOG) == [0, 1, 2, 3]
    world.settle(one)
    assert one.owned == [0, 1, 2, 3]
    assert (_kept(world, CATALOG), _kept(world, OTHER)) == ([0, 1], [2, 3])
    # What was being opened under the first term is opened still (seed 311 of servers).
    assert [one.term(store) for store in range(4)] == [1, 1, 1, 1]
    assert all(one.is_wanted(store, 1) for store in range(4))
    assert all(one.may_act(store, world.now_ms) for store in range(4))


def test_leases_stay_where_a_server_of_an_earlier_version_looks_for_them() -> None:
    world = _Databases()
    one, old = world.server("a"), StoreLeases(_node("old"))
    for _ in range(8):
        for database in one.databases:
            world.ask(one, database)
        world.ask(old, CATALOG)
        world.now_ms += BEAT_MS // 4
    assert (_kept(world, CATALOG), _kept(world, OTHER)) == ([0, 1, 2, 3], [])
    assert sorted(one.owned + old.owned) == [0, 1, 2, 3]


def test_while_the_catalog_is_away_the_leases_of_other_databases_go_on_and_nothing_moves() -> None:
    world = _Databases()
    one, two = world.server("a"), world.server("b")
    world.settle(one, two)
    had = one.owned, two.owned
    world.away.add(CATALOG)
    for _ in range(12):
        world.settle(one, two, beats=4)
        expired = [*one.is_expired(world.now_ms), *two.is_expired(world.now_ms)]
        assert set(expired) <= {0, 1}
    assert one.away(world.now_ms) == [CATALOG]
    assert sorted(one.owned + two.owned) == [2, 3]
    world.away.clear()
    world.settle(one, two)
    assert sorted(one.owned + two.owned) == [0, 1, 2, 3]
    assert (len(had[0]), len(had[1])) == (len(one.owned), len(two.owned)) == (2, 2)


def test_the_store_of_a_dead_owner_is_taken_over_while_the_catalog_is_away() -> None:
    world = _Databases()
    one, two = world.server("a"), world.server("b")
    world.settle(one, two)
    world.away.add(CATALOG)
    world.now_ms += LEASE_MS
    world.settle(two, beats=16)
    assert [store for store in two.owned if two.may_act(store, world.now_ms)] == [2, 3]


def test_a_lease_that_was_handed_over_by_a_server_that_died_then_is_made_again_after_a_lease() -> None:
    world = _Databases()
    one, two = world.server("a"), world.server("b")
    world.ask(one, CATALOG)
    world.ask(one, CATALOG)
    world.ask(one, OTHER)
    # Handed over; the store's own database never hears of it.
    world.ask(one, CATALOG)
    assert (_kept(world, CATALOG), _kept(world, OTHER)) == ([0, 1], [])
    until = one.ends_ms(2)
    begun = world.now_ms
    while 2 not in two.owned:
        world.settle(two, beats=1)
        assert world.now_ms < begun + 10 * LEASE_MS
    assert world.now_ms > until


def test_a_server_that_takes_no_connections_and_has_no_session_is_given_up_at_once() -> None:
    world = _Databases()
    one, two = world.server("a"), world.server("b")
    world.settle(one, two)
    assert sorted(one.owned + two.owned) == [0, 1, 2, 3]
    begun = world.now_ms
    world.ended.add("a")
    two.report_gone("a", world.now_ms)
    assert two.rest_ms(CATALOG, world.now_ms) == GONE_BEAT_MS
    for database in (*two.databases, *two.databases):
        world.ask(two, database)
    assert two.owned == [0, 1, 2, 3]
    assert world.now_ms == begun


def test_a_server_that_takes_no_connections_keeps_its_stores_while_its_session_lasts() -> None:
    world = _Databases()
    one, two = world.server("a"), world.server("b")
    world.settle(one, two)
    two.report_gone("a", world.now_ms)
    # Nobody is sent there meanwhile.
    assert two.owner_of(one.owned[0]) is None
    world.settle(one, two)
    assert (len(one.owned), len(two.owned)) == (2, 2)
    # Asked in haste for a second, and then at the usual time.
    assert two.rest_ms(CATALOG, world.now_ms + GONE_MS) > GONE_BEAT_MS
    two.report_back("a")
    assert two.owner_of(one.owned[0]) is not None


def test_a_server_that_stops_is_not_taken_for_one_that_was_killed() -> None:
    world = _Databases()
    one, two = world.server("a"), world.server("b")
    world.settle(one, two)
    one.drain()
    world.ask(one, CATALOG)
    world.ask(two, CATALOG)
    two.report_gone("a", world.now_ms)
    assert two.rest_ms(CATALOG, world.now_ms) > GONE_BEAT_MS


def test_a_table_is_asked_again_when_a_lease_there_ends_and_not_at_the_beat_after_that() -> None:
    world = _World()
    first, second = _joined(world, "a"), StoreLeases(_node("b"))
    assert first.owned == [0, 1]
    world.now_ms += LEASE_MS - 100
    world.beat(second)
    assert second.rest_ms(CATALOG, world.now_ms) == 101


def _told(world: _World, one: StoreLeases, ahead_ms: int) -> LeaseChanges:
    """A beat of a server whose broker time is so far ahead of the table's clock."""
    one.broker_ms = world.now_ms + ahead_ms
    beat = one.beat(world.now_ms)
    return one.seen(beat, world.table.exchange(beat.told), world.now_ms)


def _holding(world: _World, name: str, ahead_ms: int) -> StoreLeases:
    """A server that has everything, and has told its time."""
    one = _joined(world, name)
    assert one.owned
    _told(world, one, ahead_ms)
    return one


def test_who_takes_over_from_a_killed_server_goes_on_at_the_time_there() -> None:
    world = _World(1)
    _holding(world, "killed", 60_000)
    world.now_ms += LEASE_MS
    taker = StoreLeases(_node("taker"))
    # Neither what it claims nor what it had before the answer came says anything of its own time, an hour behind.
    _told(world, taker, -3_600_000)
    gained = _told(world, taker, -3_600_000)
    assert (gained.gained, gained.time_ms) == ([0], world.now_ms + 60_000)


def test_a_server_that_was_started_again_on_a_machine_whose_clock_is_behind_goes_on_at_its_former_time() -> None:
    world = _World(1)
    earlier = _holding(world, "a", 0)
    for store_id in earlier.drain():
        earlier.left(store_id)
    _told(world, earlier, 0)
    world.table.forget("a")
    world.now_ms += 10_000
    again = StoreLeases(_node("a"))
    _told(world, again, -20_000)
    assert _told(world, again, -20_000).time_ms == world.now_ms


def test_nothing_is_known_of_stores_that_nobody_had_or_a_server_of_an_earlier_version() -> None:
    world = _World(1)
    one = StoreLeases(_node("a"))
    _told(world, one, 0)
    assert _told(world, one, 0).time_ms == 0
    earlier = _World(1)
    _joined(earlier, "earlier")
    earlier.now_ms += LEASE_MS
    taker = StoreLeases(_node("taker"))
    _told(earlier, taker, 0)
    changes = _told(earlier, taker, 0)
    assert (changes.gained, changes.time_ms) == ([0], 0)


def test_a_beat_that_arrives_late_does_not_set_the_time_of_a_store_back() -> None:
    world = _World(1)
    one = _holding(world, "a", 0)
    one.broker_ms = world.now_ms
    late = one.beat(world.now_ms)
    # The database stood still meanwhile; the lease was kept for the one who asked.
    world.now_ms += 6_000
    world.table.exchange(late.told)
    taker = StoreLeases(_node("taker"))
    world.now_ms += LEASE_MS
    _told(world, taker, 0)
    changes = _told(world, taker, 0)
    assert changes.gained == [0]
    assert world.now_ms - 50 <= changes.time_ms <= world.now_ms


def test_a_table_notes_what_its_own_clock_does_not_tell_and_goes_on_alone_for_five_minutes() -> None:
    world = _World(1)
    one = _holding(world, "a", 0)
    noted = []
    # Near; apart; told late; near again; slower, as a clock that is followed slowly, and long after it was noted.
    for ahead_ms, later_ms in ((400, 1_000), (600, 1_000), (-6_000, 1_000), (200, 1_000), (500, 60_000)):
        world.now_ms += later_ms
        _told(world, one, ahead_ms)
        noted.append(world.table._times[0] == (world.now_ms + ahead_ms, world.now_ms))
    assert noted == [False, True, False, False, True]
    noted_ms = world.now_ms + 500
    world.now_ms += 3_600_000
    taker = StoreLeases(_node("taker"))
    _told(world, taker, 0)
    assert _told(world, taker, 0).time_ms == noted_ms + 300_000


def test_an_answer_that_a_later_one_has_overtaken_gives_no_store_back_that_was_given_away_meanwhile() -> None:
    world = _World(1)
    one = StoreLeases(_node("a"))
    world.beat(one)
    claiming = one.beat(world.now_ms)
    # Claimed once more before the first claim is answered, as a server does that has news.
    one._claims = dict(claiming.told.claim)
    again = one.beat(world.now_ms)
    assert one.seen(claiming, world.table.exchange(claiming.told), world.now_ms).gained == [0]
    granted = world.table.exchange(again.told)
    for store_id in one.drain():
        one.left(store_id)
    leaving = one.beat(world.now_ms)
    one.seen(leaving, world.table.exchange(leaving.told), world.now_ms)
    assert one.owned == []
    assert one.seen(again, granted, world.now_ms).gained == []
    assert one.owned == []
