"""Who runs which store: the spread as tables, the leases of one server step by step, and their time."""

from __future__ import annotations

import pytest

from duobus.cluster.leases import BEAT_MS, LEASE_MS, MARGIN_MS, StoreLeases, plan
from duobus.storage.catalog.leases import Exchange, LeaseEntry, MemoryLeases, NodeEntry, Table

END = LEASE_MS - MARGIN_MS


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
