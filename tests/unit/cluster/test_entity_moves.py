"""Entities that move to a store of another server: two units over the same memory stores (I31, decision 0070)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clustered_kit import Owner
from neighbours_kit import LONG_S, Wire, connect

from duobus.cluster.moves.copies import homes_of
from duobus.cluster.moves.protocol import BeginCopy, PutForm, ReadCopy, WriteCopy
from duobus.errors import ArgumentInvalid, NotAllowed, ServiceBusError, StoreFailed, StoreUnavailable
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.storage.catalog_rows import MoveRow
from duobus.storage.interface import aside_of
from kits.broker import Hall, answers, batch, payloads, receiver, simulated, turns


class Pair:
    """Two units that know each other; the first has stores 1 and 2, the second 3 and 4."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.first, self.second = Owner(hall), Owner(hall)
        connect(self.first, self.second)

    async def start(self) -> None:
        for number in self.hall.disks:
            self.hall.catalog.add_store(number, f"store-{number}")
        await self.first.adopt(1, 2)
        await self.second.adopt(3, 4)
        await self.see()

    async def see(self) -> None:
        """Both hear what has become of the catalog."""
        for owner in (self.first, self.second):
            await owner.unit.read_again()
            await turns(50)

    async def create(self, **properties: Any) -> int:
        """A queue at the first unit; the store that it is in."""
        name = next(name for name in map("q{}".format, range(99)) if self._store_for(name) in (1, 2))
        await self.first.unit.create_queue("n", QueueDescription(name=name, **properties))
        self.name = name
        await self.see()
        return self._store_for(name)

    def _store_for(self, name: str) -> int:
        found = self.first.unit.directory.store_for_new("n", name)
        assert found is not None
        return found

    def places(self) -> set[int]:
        """The stores in which the catalog has the queue."""
        homes = homes_of(self.hall.catalog.read())
        return {store for (entity_id, _), store in homes.items() if entity_id == self.entity_id}

    @property
    def entity_id(self) -> int:
        return next(row.entity_id for row in self.hall.catalog.read().entities if row.path in (self.name, "t"))

    def held_by(self) -> dict[int, set[int]]:
        """Store to the fragments of the queue that it has rows of, set aside or not."""
        found: dict[int, set[int]] = {}
        for number, disk in self.hall.disks.items():
            rows = disk._fragments.values()
            numbers = {row.fragment_no for row in rows if row.entity_id in (self.entity_id, aside_of(self.entity_id))}
            if numbers:
                found[number] = numbers
        return found

    async def move(self, to: int, owner: Owner | None = None) -> dict[str, Any]:
        unit = (owner or self.first).unit
        unit.moves.start("n", self.name, 0, to)
        async with asyncio.timeout(LONG_S):
            await unit.moves.wait()
        await self.see()
        return unit.moves.status()[0]


def texts(queue: Any, number: int) -> list[bytes]:
    """What a receiver gets; it gives nothing back."""
    made, box = receiver(queue, number)
    del made
    return payloads(box)


@simulated
async def test_all_fragments_of_an_entity_go_to_a_store_of_another_server_and_numbers_go_on(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    store = await pair.create(enable_partitioning=True)
    sent = batch(b"a", b"b", key=b"k")
    pair.first.queue(pair.name).send(sent)
    await turns()
    assert answers(sent) == [None]
    status = await pair.move(3)
    assert (status["state"], status["reason"], status["from"], status["to"]) == ("done", None, store, 3)
    assert status["fragments"] == list(range(16))
    assert pair.name not in pair.first.unit.namespace("n").queues
    later = batch(b"c", key=b"k")
    pair.second.queue(pair.name).send(later)
    await turns()
    assert texts(pair.second.queue(pair.name), 5) == [b"a", b"b", b"c"]
    assert pair.held_by() == {3: set(range(16))}
    assert hall.catalog.read().moves == ()


@simulated
async def test_a_fragment_has_a_later_life_where_it_came_to(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    await pair.create()
    epochs = []
    for owner, to in ((pair.first, 3), (pair.second, 1), (pair.first, 4)):
        fragment = owner.queue(pair.name).fragments[0].fragment
        assert fragment is not None
        epochs.append(fragment.epoch)
        assert (await pair.move(to, owner))["state"] == "done"
    # An owner of before that still forwards is told by that (0028).
    assert epochs == sorted(set(epochs))


@simulated
async def test_within_one_server_the_same_steps_are_taken(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    store = await pair.create()
    sent = batch(b"a")
    pair.first.queue(pair.name).send(sent)
    await turns()
    assert (await pair.move(3 - store))["state"] == "done"
    assert texts(pair.first.queue(pair.name), 1) == [b"a"]
    assert pair.held_by() == {3 - store: {0}}


@simulated
async def test_a_topic_goes_with_its_subscriptions_and_goes_on_filling_them(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    assert pair._store_for("t") in (1, 2, 3, 4)
    owner, other, to = (pair.first, pair.second, 3) if pair._store_for("t") in (1, 2) else (pair.second, pair.first, 1)
    about = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),))
    await owner.unit.topics.create_topic("n", about)
    pair.name = "t"
    await pair.see()
    topic = owner.unit.namespace("n").topics["t"]
    topic.send(batch(b"before"))
    await turns()
    assert (await pair.move(to, owner))["state"] == "done"
    topic = other.unit.namespace("n").topics["t"]
    topic.send(batch(b"after"))
    await turns()
    assert texts(topic.subscriptions["s"], 5) == [b"before", b"after"]


#: Turns of the loop after which an owner ends; the catalog decides after some 90, and a while later all is done.
STEPS = [*range(0, 80, 8), *range(80, 116)]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(STEPS), 8))
def test_an_owner_that_ends_at_any_step_leaves_the_entity_in_one_place(first: int) -> None:
    for step in STEPS[first : first + 8]:
        _end_owner_after(step)


def test_owners_end_before_the_decision_and_after_it() -> None:
    assert [_end_owner_after(step) for step in (STEPS[0], STEPS[-1])] == [False, True]


def _end_owner_after(step: int) -> bool:
    """Have the owner end after so many turns of the loop; whether the entity has moved."""
    ended: list[bool] = []

    @simulated
    async def whole(hall: Hall) -> None:
        pair = Pair(hall)
        await pair.start()
        await pair.create(enable_partitioning=True, requires_duplicate_detection=False)
        pair.first.queue(pair.name).send(batch(*(b"%d" % i for i in range(5)), key=b"k"))
        await turns()
        pair.first.unit.moves.start("n", pair.name, 0, 3)
        for number in range(step):
            # Virtual time goes on, too: clients are given some to settle what they hold.
            await asyncio.sleep(0 if number % 10 else 0.002)
        # Its leases end; the process itself goes on for a while with what it knows.
        for store in (1, 2):
            pair.first.unit.drop(store, "its lease has ended")
        await pair.second.adopt(1, 2)
        await pair.second.unit.read_again()
        await asyncio.sleep(LONG_S / 2)
        await pair.see()
        (home,) = pair.places()
        assert home in (1, 2, 3)
        ended.append(home == 3)
        assert pair.held_by() == {home: set(range(16))}
        assert hall.catalog.read().moves == ()
        assert texts(pair.second.queue(pair.name), 10) == [b"%d" % i for i in range(5)]

    whole()
    return ended[0]


@pytest.mark.parametrize("step", range(0, 60, 4))
def test_a_target_that_ends_at_any_step_leaves_the_entity_in_one_place(step: int) -> None:
    @simulated
    async def whole(hall: Hall) -> None:
        pair = Pair(hall)
        await pair.start()
        await pair.create()
        pair.first.queue(pair.name).send(batch(*(b"%d" % i for i in range(5))))
        await turns()
        pair.first.unit.moves.start("n", pair.name, 0, 3)
        await turns(step)
        for store in (3, 4):
            pair.second.unit.drop(store, "its lease has ended")
        await pair.first.adopt(3, 4)
        await asyncio.sleep(LONG_S / 2)
        await pair.see()
        (home,) = pair.places()
        assert pair.held_by() == {home: {0}}
        assert hall.catalog.read().moves == ()
        assert texts(pair.first.queue(pair.name), 10) == [b"%d" % i for i in range(5)]

    whole()


@simulated
async def test_a_former_owner_cannot_decide_once_the_next_one_has_given_the_move_up(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    store = await pair.create()
    move = MoveRow(pair.entity_id, 0, store, 3)
    hall.catalog.begin_move(move)
    hall.catalog.give_up_move(move)
    with pytest.raises(NotAllowed, match="given the move up"):
        hall.catalog.switch_moves([move])
    assert pair.places() == {store}
    # Nor can it end what is left to be done.
    hall.catalog.end_move(move)
    assert hall.catalog.read().moves == (move.reversed(),)


@simulated
async def test_what_is_set_aside_is_not_served_until_the_catalog_can_be_asked(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    store = await pair.create()
    pair.first.queue(pair.name).send(batch(b"a"))
    await turns()
    # The owner has ended between setting aside and deciding.
    pair.first.unit.drop(store, "its lease has ended")
    move = MoveRow(pair.entity_id, 0, store, 3)
    hall.catalog.begin_move(move)
    hall.disks[store].relabel_fragment(pair.entity_id, 0, aside_of(pair.entity_id), 0)
    read, hall.catalog.read = hall.catalog.read, _away  # type: ignore[method-assign]
    give_up, hall.catalog.give_up_move = hall.catalog.give_up_move, _away  # type: ignore[method-assign, assignment]
    hall.catalog.mark.identity = 0
    try:
        await pair.second.adopt(store, reads=False)
        await asyncio.sleep(3)
        queue = pair.second.queue(pair.name)
        assert queue.fragments[0].fragment is None
    finally:
        hall.catalog.read, hall.catalog.give_up_move = read, give_up  # type: ignore[method-assign]
    await asyncio.sleep(3)
    assert texts(pair.second.queue(pair.name), 1) == [b"a"]
    assert pair.held_by() == {store: {0}}
    assert hall.catalog.read().moves == ()


def _away(*_arguments: Any) -> Any:
    raise StoreFailed("the catalog is away")


@simulated
async def test_an_entity_that_is_deleted_while_it_moves_is_gone_from_both_stores(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    await pair.create()
    pair.first.queue(pair.name).send(batch(b"a"))
    await turns()
    entity_id = pair.entity_id
    pair.first.unit.moves.start("n", pair.name, 0, 3)
    await turns(8)
    assert len(hall.catalog.read().moves) == 1
    await pair.first.unit.delete_queue("n", pair.name)
    await pair.first.unit.moves.wait()
    await pair.see()
    await asyncio.sleep(LONG_S / 2)
    assert pair.first.unit.moves.status()[0]["state"] == "failed"
    assert hall.catalog.read().moves == ()
    for disk in hall.disks.values():
        assert [row for row in disk._fragments.values() if abs(row.entity_id) == entity_id] == []


@simulated
async def test_a_copy_is_taken_of_recorded_moves_only_and_of_no_other_fragments_messages(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    store = await pair.create()
    copies = pair.second.unit.copies
    begin = BeginCopy(1, (pair.entity_id, 0, store, 3), 7, [0])
    with pytest.raises(NotAllowed, match="no such move"):
        await copies.answer("n", begin)
    hall.catalog.begin_move(MoveRow(pair.entity_id, 0, store, 3))
    with pytest.raises(NotAllowed, match="no such move"):
        await copies.answer("other", begin)
    with pytest.raises(StoreUnavailable, match="not at this server"):
        await pair.first.unit.copies.answer("n", begin)
    wire = Wire(pair.second, "n")
    begun = await wire.ask(lambda number: BeginCopy(number, (pair.entity_id, 0, store, 3), 7, [0]))
    assert begun.error() is None
    number = next(iter(copies._copies))
    put = PutForm(999, 1, 0, [b"x"], [], None)
    with pytest.raises(ArgumentInvalid, match="another fragment"):
        await copies.answer("n", WriteCopy(1, number, [put], [], [], [], [], []))
    with pytest.raises(ArgumentInvalid, match="another fragment"):
        await copies.answer("n", ReadCopy(1, number, 999, 1, 10, is_of_ids=False))
    with pytest.raises(StoreUnavailable, match="nothing of that copy"):
        await copies.answer("other", ReadCopy(1, number, 1, 1, 10, is_of_ids=False))
    copies.end(pair.entity_id, 0)
    with pytest.raises(StoreUnavailable, match="nothing of that copy"):
        await copies.answer("n", ReadCopy(1, number, 1, 1, 10, is_of_ids=False))


@simulated
async def test_a_copy_whose_move_is_cleared_up_while_it_is_begun_leaves_nothing_behind(hall: Hall) -> None:
    """Its store is slow: the deletion goes there behind the copy's first step, and before its second one."""
    pair = Pair(hall)
    await pair.start()
    store = await pair.create()
    move = MoveRow(pair.entity_id, 0, store, 3)
    hall.catalog.begin_move(move)
    pair.second.writers[3].is_held = True
    begun = Wire(pair.second, "n").ask(lambda number: BeginCopy(number, (pair.entity_id, 0, store, 3), 7, [0]))
    await turns()
    hall.catalog.give_up_move(move)
    await pair.see()
    pair.second.writers[3].release()
    error = (await begun).error()
    assert error is not None
    assert "has ended" in str(error)
    await pair.see()
    assert pair.held_by() == {store: {0}}
    assert hall.catalog.read().moves == ()
    await pair.see()
    assert (await pair.move(3))["state"] == "done"


@simulated
async def test_a_move_is_refused_while_a_server_is_of_an_earlier_version_or_the_store_has_none(hall: Hall) -> None:
    pair = Pair(hall)
    await pair.start()
    await pair.create()
    pair.first.unit.entity_moves.is_understood = lambda: False
    with pytest.raises(NotAllowed, match="earlier version"):
        pair.first.unit.moves.start("n", pair.name, 0, 3)
    pair.first.unit.entity_moves.is_understood = lambda: True
    pair.second.unit.drop(3, "its lease has ended")
    with pytest.raises(ServiceBusError, match="Messaging store 3 has no server now"):
        pair.first.unit.moves.start("n", pair.name, 0, 3)


@simulated
async def test_forwarding_of_a_subscription_goes_on_when_its_store_comes_back_to_the_same_server(hall: Hall) -> None:
    for number in hall.disks:
        hall.catalog.add_store(number, f"store-{number}")
    owner = Owner(hall)
    await owner.adopt(*hall.disks)
    await owner.unit.create_queue("n", QueueDescription(name="q"))
    about = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s", forward_to="q"),))
    topic = await owner.unit.topics.create_topic("n", about)
    store = topic.fragments[0].store.store_id
    broker = await owner.unit.leave(store, "it moves")
    assert broker is not None
    await broker.close()
    await owner.adopt(store)
    owner.unit.namespace("n").topics["t"].send(batch(b"a"))
    await asyncio.sleep(1)
    assert texts(owner.queue(), 1) == [b"a"]
