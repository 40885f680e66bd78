"""Queues that are spread: which share has what, and how owners make, change and delete the shares of their stores."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from test_clustered_units import Owner

from duobus.auth.authorizer import Authorizer, Grants, NamespaceRules
from duobus.broker.entities.queue import COUNT_BITS
from duobus.cluster.directory import Directory
from duobus.cluster.sharding.front import ShardedQueue
from duobus.cluster.shards import assign_shards
from duobus.errors import ArgumentInvalid, EntityAlreadyExists, NotImplementedYet, StoreUnavailable
from duobus.model.access_rules import sign_token
from duobus.model.address import check_entity_name, parse_address, shard_path, sharded_entity_of
from duobus.model.batches import Refusal
from duobus.model.descriptions import AccessRule, QueueDescription, Right
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE
from kits.broker import Hall, answers, batch, payloads, receiver, simulated_over, turns


async def _sharded_queue(hall: Hall, **properties: Any) -> tuple[Owner, Owner]:
    """Two units over two stores, one each, and a queue that was created as one to be spread."""
    for number in hall.disks:
        hall.catalog.add_store(number, f"store-{number}")
    first, second = Owner(hall), Owner(hall)
    await first.adopt(1)
    await second.adopt(2)
    for owner in (first, second):
        owner.unit.sharded_entities.is_understood = lambda _placement: True
        owner.unit.namespace("n")
    creator = _creator(first, second)
    await creator.unit.create_queue("n", QueueDescription(name="q", enable_partitioning=True, **properties))
    for owner in (first, second):
        await owner.unit.read_again()
    return first, second


def _creator(*owners: Owner) -> Owner:
    directory = Directory(owners[0].hall.catalog.read())
    return next(owner for owner in owners if directory.store_for_new("n", "q") in owner.unit.brokers)


def _share_of(owner: Owner) -> Any:
    (share,) = (queue for path, queue in owner.unit.namespace("n").queues.items() if sharded_entity_of(path))
    return share


def test_shares_are_neighbouring_slots_and_each_lies_in_a_store_of_its_own() -> None:
    shares = assign_shards(16, [1, 2, 3], 1)
    assert [len(share) for share in shares] == [5, 5, 6]
    assert [slot.fragment_no for share in shares for slot in share] == list(range(16))
    assert [{slot.store_id for slot in share} for share in shares] == [{2}, {3}, {1}]
    # The catalog of PostgreSQL demands that the slots of each entity begin at 0.
    assert all([slot.slot for slot in share] == list(range(len(share))) for share in shares)


def test_more_stores_than_fragments_leave_some_stores_out() -> None:
    assert len(assign_shards(2, [1, 2, 3])) == 2


def test_a_share_has_an_address_that_nobody_can_create() -> None:
    assert parse_address(shard_path("a/q", 3)).key == "a/q/~share/3"
    assert sharded_entity_of("a/q/~share/3") == "a/q"
    assert sharded_entity_of("a/q") is None
    with pytest.raises(Exception, match="reserved segment"):
        check_entity_name("q/~share/3")


@simulated_over(2)
async def test_every_owner_makes_the_share_in_its_store(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    numbers = [[handle.number for handle in _share_of(owner).fragments] for owner in (first, second)]
    assert sorted(numbers) == [list(range(8)), list(range(8, 16))]
    assert all(handle.online for owner in (first, second) for handle in _share_of(owner).fragments)
    assert [row.state for row in hall.catalog.read().entities] == [LIVE] * 3
    assert all(isinstance(owner.queue(), ShardedQueue) for owner in (first, second))


@simulated_over(2)
async def test_keys_spread_over_all_fragments_of_a_share(hall: Hall) -> None:
    first, _ = await _sharded_queue(hall)
    sharded_entity = first.unit.directory.sharded["n", "q"]
    share = _share_of(first)
    mine = [i for i, row in enumerate(sharded_entity.shares) if row.path == share.path]
    keys = [f"s{number}".encode() for number in range(1000)]
    fragments = [share.placement.keyed(key).number for key in keys if sharded_entity.of_key(key) in mine]
    assert {sharded_entity.of_number(number) for number in fragments} == set(mine)
    assert min(fragments.count(number) for number in set(fragments)) > 20
    assert len(set(fragments)) == 8


@simulated_over(2)
async def test_a_share_survives_its_owner_with_the_numbers_it_gave(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    share = _share_of(first)
    sent = batch(b"a")
    share.send(sent)
    await turns()
    assert answers(sent) == [None]
    number = share.fragments[0].number
    await first.unit.leave(1, "it moves")
    await second.adopt(1)
    taken = second.unit.namespace("n").queues[share.path]
    _, box = receiver(taken, 5)
    await turns()
    assert payloads(box) == [b"a"]
    assert box.ready[0].fragment.number >> 3 == number >> 3
    assert COUNT_BITS == 48


@simulated_over(2)
async def test_a_deletion_is_finished_by_the_owners_of_the_shares(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    await _creator(first, second).unit.delete_queue("n", "q")
    states = {row.path: row.state for row in hall.catalog.read().entities}
    assert states["q"] == DELETING
    assert len(states) == 2
    for owner in (first, second, first):
        await owner.unit.read_again()
    assert hall.catalog.read().entities == ()
    assert not first.unit.namespace("n").queues
    assert not second.unit.namespace("n").queues


@simulated_over(2)
async def test_other_properties_reach_every_share(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    wanted = msgspec.structs.replace(first.queue().description, max_delivery_count=3)
    await first.unit.update_queue("n", wanted)
    for owner in (first, second):
        await owner.unit.read_again()
        assert _share_of(owner).description.max_delivery_count == 3
        assert owner.queue().description.max_delivery_count == 3
    first.unit.sharded_entities.is_understood = lambda placement: placement < 2
    with pytest.raises(NotImplementedYet, match="earlier version"):
        await first.unit.update_queue("n", msgspec.structs.replace(wanted, auto_delete_on_idle_ms=300_000))


@simulated_over(2)
async def test_what_was_created_half_is_undone_by_the_next_owner_of_its_name(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    rows = hall.catalog.read().entities
    # As a server leaves it that dies between two steps.
    hall.catalog._change(rows[0].entity_id, state=INTENT)
    creator, other = _creator(first, second), second if _creator(first, second) is first else first
    await other.unit.read_again()
    assert hall.catalog.read().entities[0].state == INTENT
    home = next(iter(creator.unit.brokers))
    await creator.unit.leave(home, "it moves")
    await other.adopt(home)
    for _ in range(2):
        await other.unit.read_again()
    assert hall.catalog.read().entities == ()


@simulated_over(2)
async def test_a_store_that_keeps_the_name_of_a_queue_opens_before_its_share_of_another_is_made(hall: Hall) -> None:
    hall.catalog.identify(7)
    first, second = await _sharded_queue(hall)
    creator = _creator(first, second)
    home = next(iter(creator.unit.brokers))
    await creator.unit.leave(home, "it moves")
    other = second if creator is first else first
    directory = Directory(hall.catalog.read())
    name = next(name for name in ("a", "b", "c", "d") if directory.store_for_new("n", name) != home)
    await other.unit.create_queue("n", QueueDescription(name=name, enable_partitioning=True))
    assert [row.state for row in hall.catalog.read().entities].count(INTENT) == 1
    await other.adopt(home)
    assert {row.state for row in hall.catalog.read().entities} == {LIVE}


@simulated_over(2)
async def test_a_name_is_taken_and_its_owner_alone_creates(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    creator = _creator(first, second)
    about = QueueDescription(name="q", enable_partitioning=True)
    with pytest.raises(EntityAlreadyExists):
        await creator.unit.create_queue("n", about)
    other = second if creator is first else first
    other.unit.namespace("n").queues.pop("q")
    with pytest.raises(StoreUnavailable, match="another server"):
        await other.unit.create_queue("n", about)


@simulated_over(2)
async def test_a_partitioned_queue_is_laid_over_all_stores_once_every_server_understands_it(hall: Hall) -> None:
    first, _ = await _sharded_queue(hall)
    takes = first.unit.sharded_entities.takes
    idle = {"auto_delete_on_idle_ms": 300_000}
    for more in ({}, {"requires_session": True}, {"requires_duplicate_detection": True}, {"forward_to": "q"}, idle):
        assert takes(QueueDescription(name="r", enable_partitioning=True, **more))
    assert not takes(QueueDescription(name="r"))
    # Servers of a version that has no more than this one's queues.
    first.unit.sharded_entities.is_understood = lambda placement: placement < 2
    assert takes(QueueDescription(name="r", enable_partitioning=True))
    assert not takes(QueueDescription(name="r", enable_partitioning=True, **idle))
    first.unit.sharded_entities.is_understood = lambda _placement: False
    assert not takes(QueueDescription(name="r", enable_partitioning=True))


@simulated_over(2)
async def test_a_partitioned_queue_in_one_store_is_told_in_the_log(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    about = QueueDescription(name="q-old", enable_partitioning=True)
    for owner in (first, second):
        owner.unit.sharded_entities.is_understood = lambda _placement: False
        with contextlib.suppress(StoreUnavailable):
            await owner.unit.create_queue("n", about)
    assert any(
        "earlier version" in text and about.name in text for owner in (first, second) for *_, text in owner.events
    )


@simulated_over(2)
async def test_the_name_of_a_queue_that_is_spread_may_have_all_the_length_that_names_have(hall: Hall) -> None:
    first, second = await _sharded_queue(hall)
    name = "n" * 260
    for owner in (first, second):
        with contextlib.suppress(StoreUnavailable):
            await owner.unit.create_queue("n", QueueDescription(name=name, enable_partitioning=True))
    for owner in (first, second):
        await owner.unit.read_again()
        assert isinstance(owner.queue(name), ShardedQueue)
    assert parse_address(shard_path(name, 2)).key == shard_path(name, 2)
    with pytest.raises(ArgumentInvalid, match="261"):
        parse_address("n" * 261)


@simulated_over(2)
async def test_the_queue_itself_takes_no_message(hall: Hall) -> None:
    first, _ = await _sharded_queue(hall)
    sent = batch(b"a")
    first.queue().send(sent)
    (refusal,) = sent.reply.ready
    assert isinstance(refusal, Refusal)
    assert "spread" in str(refusal.error)


def test_what_a_queue_allows_its_shares_allow_and_nothing_else() -> None:
    key = "c2VjcmV0"
    rules = NamespaceRules(
        "ns", (AccessRule(name="r", primary_key=key, secondary_key=key, rights=int(Right.LISTEN)),), ["host"]
    )
    authorizer = Authorizer([rules])
    grants = Grants()
    audience = "sb://host/a/q/$deadletterqueue"
    grants.add(audience, authorizer.authorize_token(sign_token(audience, "r", key, 2_000_000_000), rules, 0))
    assert grants.allows(("a", "q", "~share", "2", "$deadletterqueue"), Right.LISTEN, 0)
    assert not grants.allows(("a", "q", "~share", "2"), Right.LISTEN, 0)
    assert not grants.allows(("a", "r", "~share", "2", "$deadletterqueue"), Right.LISTEN, 0)
