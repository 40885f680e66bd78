"""Forwarding between servers (I14): two units over the same stores, and what may happen on the way between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from clustered_kit import Owner
from msgspec import structs

from duobus.broker import TRANSFER_DEAD_LETTER, address
from duobus.cluster.directory import HERE, MOVING, UNKNOWN, Directory
from duobus.cluster.forwarding.protocol import (
    ForwardReply,
    ForwardRequest,
    OriginQuery,
    ReceivedQuery,
    RegisterOrigin,
    Request,
    decode_reply,
    decode_request,
    encode,
    refusal,
)
from duobus.cluster.forwarding.receiver import OriginRegistration
from duobus.codec import build_message
from duobus.errors import ArgumentInvalid, ServiceBusError, StoreFailed, StoreUnavailable, Undecodable
from duobus.model.descriptions import DISABLED, QueueDescription
from duobus.model.metadata import MessageMetadata
from kits.broker import Hall, batch, simulated_over


class Line:
    """A connection from one unit to another; what goes over it is encoded and decoded.

    Attributes:
        is_gone: It has ended.
        late: Answers that are held back; None while they come at once.
        requests: What was asked.
    """

    def __init__(self, to: Owner) -> None:
        self.is_gone = False
        self.late: list[Callable[[], None]] | None = None
        self.requests: list[Request] = []
        self._to = to
        self._registrations: list[OriginRegistration] = []
        self._asked: dict[int, asyncio.Future[ForwardReply]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, make: Callable[[int], Request]) -> asyncio.Future[ForwardReply]:
        future: asyncio.Future[ForwardReply] = asyncio.get_running_loop().create_future()
        if self.is_gone:
            future.set_exception(ConnectionError("it is cut"))
            return future
        request = decode_request(encode(make(len(self.requests))))
        self.requests.append(request)
        self._asked[request.number] = future
        task = asyncio.get_running_loop().create_task(self.bring(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    async def bring(self, request: Request) -> None:
        """The other side gets a request, and answers."""
        receiver = self._to.unit.receiver
        try:
            if isinstance(request, RegisterOrigin):
                self._registrations.append(receiver.register("n", request.path, request.origin, request.epoch))
                reply = ForwardReply(request.number, registration_no=len(self._registrations) - 1)
            elif isinstance(request, ReceivedQuery):
                taken = await receiver.ask(self._registrations[request.registration_no], request.first)
                reply = ForwardReply(request.number, taken=taken)
            elif isinstance(request, OriginQuery):
                reply = ForwardReply(request.number, gone=receiver.gone(request.origin, request.counts))
            else:
                registration = self._registrations[request.registration_no]
                error = await receiver.take(registration, request.counts, request.payloads, request.all_metadata)
                reply = ForwardReply(request.number) if error is None else refusal(request.number, error)
        except ServiceBusError as error:
            reply = refusal(request.number, error)
        if self.late is not None:
            self.late.append(lambda: self._answer(reply))
        else:
            self._answer(reply)

    def _answer(self, reply: ForwardReply) -> None:
        future = self._asked.pop(reply.number, None)
        if future is not None and not future.done():
            future.set_result(decode_reply(encode(reply)))

    def cut(self) -> None:
        self.is_gone = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionError("it is cut"))
        self._asked.clear()


class Side:
    """One server: a unit, who has what as it sees it, and its ways to the others."""

    def __init__(self, town: Town, owner: Owner, name: str) -> None:
        self.town = town
        self.owner = owner
        self.name = name
        self.lines: dict[str, Line] = {}
        self.looked = 0
        owner.unit.remote.connect(self, self)

    # The directory of owners

    def where(self, namespace: str, key: str) -> str:
        if self.owner.unit.namespace(namespace).is_taken(key):
            return HERE
        store = self.owner.unit.directory.store_of(namespace, key)
        return UNKNOWN if store is None else self.owner_of(store)

    def owner_of(self, store_id: int) -> str:
        name = self.town.owners[store_id]
        return HERE if name == self.name else name

    async def refresh(self) -> None:
        self.looked += 1
        self.owner.unit.directory = Directory(self.town.hall.catalog.read())

    # Ferry

    async def get(self, address: str, namespace: str) -> Line:
        assert namespace == "n"
        if address in self.town.away:
            raise ConnectionError(f"{address} is away")
        line = self.lines.get(address)
        if line is None or line.is_gone:
            line = self.lines[address] = Line(self.town.sides[address].owner)
        return line

    def close(self) -> None:
        for line in self.lines.values():
            line.cut()


class Town:
    """Two servers over two stores: ``a`` has what forwards, ``b`` where it forwards to."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.owners: dict[int, str] = {}
        self.away: set[str] = set()
        for number in hall.disks:
            hall.catalog.add_store(number, f"store-{number}")
        self.a = Side(self, Owner(hall), "a")
        self.b = Side(self, Owner(hall), "b")
        self.sides = {"a": self.a, "b": self.b}
        self.names: dict[int, list[str]] = {}

    async def give(self, side: Side, *stores: int) -> None:
        for number in stores:
            self.owners[number] = side.name
        await side.owner.adopt(*stores)
        for one in self.sides.values():
            await one.refresh()

    def names_of(self, store_id: int, number: int) -> list[str]:
        directory = self.a.owner.unit.directory
        every = (f"q{index}" for index in range(1000))
        return [name for name in every if directory.store_for_new("n", name) == store_id][:number]


async def _town(hall: Hall, **properties: Any) -> tuple[Town, str, str]:
    """The town, the queue that forwards, and its destination."""
    town = Town(hall)
    await town.give(town.a, 1)
    await town.give(town.b, 2)
    source, target = town.names_of(1, 1)[0], town.names_of(2, 1)[0]
    await town.b.owner.unit.create_queue("n", QueueDescription(name=target, **properties))
    await town.a.refresh()
    await town.a.owner.unit.create_queue("n", QueueDescription(name=source, forward_to=target))
    await town.a.refresh()
    await town.b.refresh()
    return town, source, target


def _send(side: Side, name: str, *texts: bytes) -> None:
    made = batch(*texts)
    side.owner.queue(name).send(made)


async def _there(side: Side, name: str, sub_queue: int = 0) -> list[bytes]:
    return [message.payload for _, message in await side.owner.queue(name).peek(sub_queue, 1, 1000)]


def _dedup_rows(side: Side, name: str) -> int:
    fragments = [handle.fragment for handle in side.owner.queue(name).fragments]
    return sum(len(counts) for one in fragments if one for counts in one.sources[0].dedup.known.values())


@simulated_over(2, 3600)
async def test_what_is_forwarded_to_another_server_is_there_once_and_gone_here(hall: Hall) -> None:
    town, source, target = await _town(hall)
    _send(town.a, source, b"1", b"2", b"3")
    await asyncio.sleep(1)
    assert await _there(town.b, target) == [b"1", b"2", b"3"]
    assert await _there(town.a, source) == []
    await asyncio.sleep(5)
    # Forgotten once the origin was asked.
    assert _dedup_rows(town.b, target) == 0


@simulated_over(2, 3600)
async def test_keys_and_messages_without_one_find_their_fragments_at_another_server(hall: Hall) -> None:
    town, source, target = await _town(hall, enable_partitioning=True)
    made = batch(b"k1", b"k2", partition_key="k")
    town.a.owner.queue(source).send(made)
    _send(town.a, source, b"1", b"2")
    await asyncio.sleep(1)
    assert sorted(await _there(town.b, target)) == [b"1", b"2", b"k1", b"k2"]
    homes = {
        handle.number
        for handle in town.b.owner.queue(target).fragments
        if handle.fragment is not None
        and any(message.payload in (b"k1", b"k2") for message in handle.fragment.sources[0].by_count.values())
    }
    assert len(homes) == 1


@simulated_over(2, 3600)
async def test_an_answer_that_is_lost_brings_nothing_twice(hall: Hall) -> None:
    town, source, target = await _town(hall, enable_partitioning=True)
    line = await town.a.get("b", "n")
    _send(town.a, source, b"0")
    await asyncio.sleep(0.5)
    line.late = []
    _send(town.a, source, b"1", b"2")
    await asyncio.sleep(0.5)
    assert await _there(town.b, target) != []
    assert await _there(town.a, source) == [b"1", b"2"]
    line.cut()
    await asyncio.sleep(3)
    assert sorted(await _there(town.b, target)) == [b"0", b"1", b"2"]
    assert await _there(town.a, source) == []


@simulated_over(2, 3600)
async def test_nothing_leaves_its_origin_before_the_commit_of_the_destination(hall: Hall) -> None:
    town, source, target = await _town(hall)
    writer = town.b.owner.writers[2]
    writer.is_held = True
    _send(town.a, source, b"1")
    await asyncio.sleep(5)
    assert await _there(town.a, source) == [b"1"]
    writer.release()
    await asyncio.sleep(1)
    assert await _there(town.b, target) == [b"1"]
    assert await _there(town.a, source) == []


@simulated_over(2, 3600)
async def test_a_destination_that_moves_while_it_takes_messages_has_them_once(hall: Hall) -> None:
    town, source, target = await _town(hall)
    writer = town.b.owner.writers[2]
    writer.is_held = True
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    town.owners[2] = MOVING
    town.b.owner.unit.drop(2, "its lease has ended")
    # Its commit arrives nevertheless, before somebody else opens the store.
    writer.release()
    await asyncio.sleep(0.5)
    await town.give(town.b, 2)
    await asyncio.sleep(3)
    assert await _there(town.b, target) == [b"1"]
    assert await _there(town.a, source) == []


@simulated_over(2, 3600)
async def test_a_destination_that_comes_to_the_server_of_the_origin_has_everything_once(hall: Hall) -> None:
    town, source, target = await _town(hall, enable_partitioning=True)
    line = await town.a.get("b", "n")
    line.late = []
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    # The registration is answered, the request is not.
    line.late.pop(0)()
    await asyncio.sleep(0.5)
    assert await _there(town.b, target) == [b"1"]
    await town.b.owner.unit.leave(2, "it moves")
    await town.give(town.a, 2)
    _send(town.a, source, b"2")
    await asyncio.sleep(3)
    assert sorted(await _there(town.a, target)) == [b"1", b"2"]
    assert await _there(town.a, source) == []


@simulated_over(2, 3600)
async def test_a_store_that_is_lost_in_the_middle_of_a_forward_to_it_has_it_once(hall: Hall) -> None:
    town, source, target = await _town(hall)
    await town.b.owner.unit.leave(2, "it moves")
    await town.give(town.a, 2)
    await asyncio.sleep(6)
    writer = town.a.owner.writers[2]
    writer.is_held = True
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    town.owners[2] = MOVING
    town.a.owner.unit.drop(2, "its lease has ended")
    writer.release()
    await asyncio.sleep(0.5)
    await town.give(town.b, 2)
    await asyncio.sleep(3)
    assert await _there(town.b, target) == [b"1"]
    assert await _there(town.a, source) == []


@simulated_over(2, 3600)
async def test_an_origin_that_moves_sends_nothing_twice(hall: Hall) -> None:
    town, source, target = await _town(hall, enable_partitioning=True)
    line = await town.a.get("b", "n")
    _send(town.a, source, b"0")
    await asyncio.sleep(0.5)
    line.late = []
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    town.a.owner.unit.drop(1, "its lease has ended")
    await town.give(town.b, 1)
    await asyncio.sleep(3)
    assert sorted(await _there(town.b, target)) == [b"0", b"1"]
    assert await _there(town.b, source) == []


@simulated_over(2, 3600)
async def test_a_forward_request_of_an_earlier_registration_is_not_taken(hall: Hall) -> None:
    town, source, target = await _town(hall)
    _send(town.a, source, b"1")
    await asyncio.sleep(5)
    first = town.a.lines["b"]
    sent = next(request for request in first.requests if isinstance(request, ForwardRequest))
    first.cut()
    _send(town.a, source, b"2")
    await asyncio.sleep(5)
    # All of it is forgotten: only the registration can tell that this comes too late.
    assert _dedup_rows(town.b, target) == 0
    await first.bring(sent)
    await asyncio.sleep(1)
    assert await _there(town.b, target) == [b"1", b"2"]


@simulated_over(2, 3600)
async def test_a_landing_is_good_for_one_life_of_the_destination(hall: Hall) -> None:
    town, source, target = await _town(hall)
    _send(town.a, source, b"1")
    await asyncio.sleep(5)
    line = town.a.lines["b"]
    sent = next(request for request in line.requests if isinstance(request, ForwardRequest))
    await town.b.owner.unit.leave(2, "it moves")
    await town.give(town.b, 2)
    await line.bring(sent)
    await asyncio.sleep(1)
    assert await _there(town.b, target) == [b"1"]


@simulated_over(2, 3600)
async def test_a_former_owner_of_an_origin_cannot_land_it_again(hall: Hall) -> None:
    town, _, target = await _town(hall)
    receiver = town.b.owner.unit.receiver
    present = receiver.register("n", target, (7, 0, 0), 5)
    with pytest.raises(StoreUnavailable, match="new owner"):
        receiver.register("n", target, (7, 0, 0), 4)
    assert receiver.is_current(present)


@simulated_over(2, 3600)
async def test_a_forward_dedup_keeps_what_its_origin_cannot_be_asked_for(hall: Hall) -> None:
    town, source, target = await _town(hall)
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    town.away.add("a")
    town.b.close()
    await asyncio.sleep(10)
    assert _dedup_rows(town.b, target) == 1
    town.away.clear()
    await asyncio.sleep(3)
    assert _dedup_rows(town.b, target) == 0


@simulated_over(2, 3600)
async def test_a_forward_dedup_forgets_an_origin_that_was_deleted(hall: Hall) -> None:
    town, source, target = await _town(hall)
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    town.away.add("a")
    await town.a.owner.unit.delete_queue("n", source)
    await town.b.refresh()
    await asyncio.sleep(5)
    assert _dedup_rows(town.b, target) == 0


@simulated_over(2, 3600)
async def test_messages_wait_at_their_origin_while_the_server_of_the_destination_is_away(hall: Hall) -> None:
    town, source, target = await _town(hall)
    town.away.add("b")
    _send(town.a, source, b"1")
    await asyncio.sleep(30 * 60)
    assert await _there(town.a, source) == [b"1"]
    town.away.clear()
    await asyncio.sleep(6)
    assert await _there(town.b, target) == [b"1"]


@simulated_over(2, 3600)
async def test_what_another_server_can_never_take_goes_to_the_transfer_dead_letters_here(hall: Hall) -> None:
    town, source, target = await _town(hall, max_message_size_bytes=1 << 20)
    town.a.owner.queue(source).send(batch(b"x" * ((1 << 20) + 1)))
    _send(town.a, source, b"1")
    await asyncio.sleep(3)
    assert await _there(town.b, target) == [b"1"]
    (dead,) = [message for _, message in await town.a.owner.queue(source).peek(TRANSFER_DEAD_LETTER, 1, 10)]
    assert dead.metadata is not None
    assert dead.metadata.reason == "MessageSizeExceeded"


@simulated_over(2, 3600)
async def test_a_destination_that_is_disabled_elsewhere_is_waited_for_ten_minutes(hall: Hall) -> None:
    town, source, target = await _town(hall)
    unit = town.b.owner.unit
    await unit.update_queue("n", QueueDescription(name=target, status=DISABLED))
    _send(town.a, source, b"1", b"2")
    await asyncio.sleep(5 * 60)
    assert await _there(town.a, source) == [b"1", b"2"]
    await asyncio.sleep(6 * 60)
    assert await _there(town.a, source, TRANSFER_DEAD_LETTER) == [b"1", b"2"]


@simulated_over(2, 3600)
async def test_what_exists_nowhere_cannot_be_forwarded_to(hall: Hall) -> None:
    town, _, target = await _town(hall)
    with pytest.raises(ArgumentInvalid, match="does not exist"):
        await town.a.owner.unit.create_queue("n", QueueDescription(name="q", forward_to="nowhere"))
    assert town.a.owner.unit.namespace("n").has(target)


@simulated_over(2, 3600)
async def test_what_was_sent_to_an_entity_that_is_deleted_elsewhere_is_given_up_in_time(hall: Hall) -> None:
    town, source, target = await _town(hall)
    await town.b.owner.unit.delete_queue("n", target)
    await town.a.refresh()
    _send(town.a, source, b"1")
    await asyncio.sleep(11 * 60)
    assert await _there(town.a, source, TRANSFER_DEAD_LETTER) == [b"1"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode(ForwardRequest(1, 1, [1], [b"a", b"b"], [MessageMetadata()])),
        encode(ForwardRequest(1, 1, [1, 1], [b"a", b"b"], [MessageMetadata(), MessageMetadata()])),
        encode(ForwardRequest(1, 1, [], [], [])),
        encode(ForwardRequest(1, 1, [-1], [b""], [MessageMetadata()])),
        encode(OriginQuery(1, (1, 1 << 16, 0), [1])),
        encode(ForwardReply(1)),
    ],
)
def test_a_request_that_is_none_is_refused_whole(data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_request(data)


def test_an_error_keeps_its_meaning_on_the_way() -> None:
    assert isinstance(refusal(1, StoreUnavailable("x")).error(), StoreUnavailable)
    # What a newer server says is waited out.
    assert isinstance(ForwardReply(1, "strange").error(), StoreUnavailable)
    assert ForwardReply(1).error() is None


@simulated_over(2, 3600)
async def test_what_is_sent_via_an_entity_to_another_server_gets_there(hall: Hall) -> None:
    town, _, target = await _town(hall)
    via = town.names_of(1, 2)[1]
    queue = await town.a.owner.unit.create_queue("n", QueueDescription(name=via))
    made = batch(b"1", b"2")
    address(made, queue, target.upper())
    queue.send_via(made)
    await asyncio.sleep(1)
    assert await _there(town.b, target) == [b"1", b"2"]
    assert await _there(town.a, via) == []


@simulated_over(2, 3600)
async def test_what_is_sent_via_an_entity_to_what_exists_nowhere_is_given_up_at_once(hall: Hall) -> None:
    town, _, _ = await _town(hall)
    via = town.names_of(1, 2)[1]
    queue = await town.a.owner.unit.create_queue("n", QueueDescription(name=via))
    made = batch(b"1")
    address(made, queue, "nowhere")
    queue.send_via(made)
    await asyncio.sleep(2)
    assert await _there(town.a, via, TRANSFER_DEAD_LETTER) == [b"1"]
    assert town.a.looked > 0


@simulated_over(2, 3600)
async def test_who_has_lost_a_store_while_it_was_opened_says_nothing_of_what_is_in_it(hall: Hall) -> None:
    town, source, target = await _town(hall)
    _send(town.a, source, b"1")
    await asyncio.sleep(0.5)
    origin = next(iter(town.b.owner.queue(target).fragments[0].fragment.sources[0].dedup.known))  # type: ignore[union-attr]
    owner = town.b.owner
    await town.a.owner.unit.leave(1, "it moves")
    opening = asyncio.ensure_future(owner.adopt(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    owner.unit.drop(1, "its lease has ended")
    with contextlib.suppress(ServiceBusError, StoreFailed):
        await opening
    with pytest.raises(StoreUnavailable, match="not at this server"):
        owner.unit.receiver.gone(origin, [1])


async def _over_both(hall: Hall, **properties: Any) -> tuple[Town, str, str]:
    """The town, a queue that forwards, and its destination, a partitioned queue over both stores."""
    town = Town(hall)
    await town.give(town.a, 1)
    await town.give(town.b, 2)
    source, target = town.names_of(1, 1)[0], town.names_of(2, 1)[0]
    for side in town.sides.values():
        side.owner.unit.sharded_entities.is_understood = lambda _placement: True
    about = QueueDescription(name=target, enable_partitioning=True, **properties)
    await town.b.owner.unit.create_queue("n", about)
    for _ in range(2):
        for side in town.sides.values():
            await side.owner.unit.read_again()
    await town.a.owner.unit.create_queue("n", QueueDescription(name=source, forward_to=target))
    for side in town.sides.values():
        await side.owner.unit.read_again()
    return town, source, target


async def _in_shards(town: Town, target: str) -> list[list[bytes]]:
    """What each shard has, by the store that has it."""
    found = []
    for number in (1, 2):
        unit = town.sides[town.owners[number]].owner.unit
        (path,) = [
            path
            for path, queue in unit.namespace("n").queues.items()
            if path.startswith(f"{target}/") and queue.fragments[0].store.store_id == number
        ]
        messages = await unit.namespace("n").queues[path].peek(0, 1, 5000)
        found.append([message.payload for _, message in messages])
    return found


@simulated_over(2, 3600)
async def test_what_is_forwarded_to_a_queue_over_both_servers_is_in_the_shard_of_its_key(hall: Hall) -> None:
    town, source, target = await _over_both(hall)
    for number in range(20):
        keyed = batch(b"%d" % number, b"%d" % (number + 100), partition_key=f"key {number}")
        town.a.owner.queue(source).send(keyed)
    await asyncio.sleep(3)
    first, second = await _in_shards(town, target)
    assert sorted(first + second, key=int) == [b"%d" % number for number in (*range(20), *range(100, 120))]
    assert first
    assert second
    # Of a key both are in one shard.
    assert {int(text) % 100 for text in first}.isdisjoint({int(text) % 100 for text in second})
    assert await _there(town.a, source) == []


@simulated_over(2, 3600)
async def test_a_repeat_to_a_queue_over_both_servers_goes_where_the_first_went(hall: Hall) -> None:
    town, source, target = await _over_both(hall)
    _send(town.a, source, *[b"%d" % number for number in range(1200)])
    await asyncio.sleep(5)
    line = await town.a.get("b", "n")
    line.late = []
    _send(town.a, source, *[b"%d" % number for number in range(1200, 2400)])
    await asyncio.sleep(0.5)
    # What it had on its way is there, and it does not know; the next owner of the origin sends that again.
    town.a.owner.unit.drop(1, "its lease has ended")
    line.cut()
    await town.give(town.b, 1)
    for _ in range(2):
        await town.b.owner.unit.read_again()
    await asyncio.sleep(10)
    first, second = await _in_shards(town, target)
    assert sorted(first + second, key=int) == [b"%d" % number for number in range(2400)]
    assert first
    assert second
    assert await _there(town.b, source) == []


@simulated_over(2, 3600)
async def test_a_duplicate_that_is_forwarded_meets_the_first_whatever_forwards_it(hall: Hall) -> None:
    """PE10."""
    town, source, target = await _over_both(hall, requires_duplicate_detection=True)
    for _ in range(2):
        for number in range(30):
            town.a.owner.queue(source).send(batch(build_message([f"id {number}"], data=b"%d" % number)))
        await asyncio.sleep(2)
    first, second = await _in_shards(town, target)
    assert len(first + second) == 30
    assert first
    assert second


@simulated_over(2, 3600)
async def test_a_duplicate_that_is_forwarded_to_another_server_meets_the_first(hall: Hall) -> None:
    """PE10."""
    town, source, target = await _town(hall, enable_partitioning=True, requires_duplicate_detection=True)
    for _ in range(2):
        for number in range(20):
            town.a.owner.queue(source).send(batch(build_message([f"id {number}"], data=b"%d" % number)))
            # Each goes in a batch of its own, so that turns would part them.
            await asyncio.sleep(0.2)
    assert len(await _there(town.b, target)) == 20


@simulated_over(2, 3600)
async def test_a_queue_over_both_servers_that_forwards_from_now_on_does_so_from_every_shard(hall: Hall) -> None:
    town, source, target = await _over_both(hall)
    del source
    unit = town.b.owner.unit
    await unit.create_queue("n", QueueDescription(name=(last := town.names_of(2, 2)[1])))
    for side in town.sides.values():
        await side.owner.unit.read_again()
    kept = unit.namespace("n").queues[target].description
    await unit.update_queue("n", structs.replace(kept, forward_to=last))
    for side in town.sides.values():
        await side.owner.unit.read_again()
    for side in town.sides.values():
        shards = [
            queue for path, queue in side.owner.unit.namespace("n").queues.items() if path.startswith(f"{target}/")
        ]
        for shard in shards:
            shard.send(batch(shard.path.encode()))
    await asyncio.sleep(2)
    assert sorted(await _there(town.b, last)) == [f"{target}/~share/1".encode(), f"{target}/~share/2".encode()]
