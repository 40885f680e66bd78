"""Forwarding from queue to queue (I14, I41): what arrives, what stays, what is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.broker import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Queue, QueuedMessage
from duobus.broker.entities.destination import FULL, MESSAGE_TOO_LARGE, NOT_FOUND, SESSION_MISSING
from duobus.broker.entities.placement import slot_of, string_key
from duobus.broker.forwarding.forwarder import FORWARDER_MESSAGES_MAX, RETRY_MAX_S, TIMEOUT_MS
from duobus.broker.forwarding.service import transfer_message_count
from duobus.codec import decode
from duobus.errors import ArgumentInvalid
from duobus.fragment.settlement import DEAD_LETTER_OUTCOME, SettleBatch, SettleDetail
from duobus.fragment.transfer import HOPS_EXCEEDED, HOPS_MAX
from duobus.model.batches import SendBatch
from duobus.model.descriptions import DISABLED, SEND_DISABLED
from duobus.model.metadata import TransferRoute
from duobus.storage.writer_pool import LATE_S
from kits.broker import Hall, answers, batch
from kits.fragment import Box
from simulation.world.loop import SimulationLoop

MINUTE_S = 60.0
MIB = 1 << 20


def run(story: Any, stores: int = 1) -> None:
    """Run a story in virtual time."""
    loop = SimulationLoop(7)

    async def play() -> None:
        hall = Hall(loop, stores)
        await hall.start()
        await story(hall)

    try:
        loop.run(play(), time_limit_s=100_000.0)
    finally:
        loop.close()


async def payloads(queue: Queue, sub_queue: int = MAIN) -> list[bytes]:
    return [message.payload for message in await queued_messages(queue, sub_queue)]


async def queued_messages(queue: Queue, sub_queue: int = MAIN) -> list[QueuedMessage]:
    return [message for _, message in await queue.peek(sub_queue, 1, 10_000)]


async def lock_all(queue: Queue, sub_queue: int = MAIN) -> list[Any]:
    box = Box()
    receiver = queue.open_receiver(sub_queue, box, removing=False)
    receiver.request(1000)
    await asyncio.sleep(0.05)
    receiver.close()
    return box.taken()


async def forget_tombstones(queue: Queue, reason: str | None = "why", description: str | None = "because") -> None:
    """Receive what there is and dead-letter it."""
    for found in await lock_all(queue):
        ranges = [(found.first_lock, len(found.messages))]
        command = SettleBatch(found.fragment, 0, Box(), prefix=found.prefix, outcome=DEAD_LETTER_OUTCOME, ranges=ranges)
        command.detail = SettleDetail({"seen": True}, reason, description)
        queue.settle(command)
    await asyncio.sleep(0.05)


def transfer_dead(queue: Queue) -> int:
    return queue.numbers()[0][TRANSFER_DEAD_LETTER]


def dedups(queue: Queue) -> int:
    """Entries in the records of accepted numbers of a queue."""
    return sum(
        len(counts)
        for handle in queue.fragments
        if handle.fragment is not None
        for counts in handle.fragment.sources[0].dedup.known.values()
    )


def sent(queue: Queue, *found: bytes, key: bytes | None = None, **metadata: Any) -> SendBatch:
    made = batch(*found, key=key, **metadata)
    queue.send(made)
    return made


# -- the way ----------------------------------------------------------------------------------------------------


def test_a_message_goes_on_to_where_its_queue_forwards() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from", forward_to="TO")
        made = sent(origin, b"a", b"b")
        await asyncio.sleep(0.1)
        assert answers(made) == [None]
        assert (await payloads(target), await payloads(origin)) == ([b"a", b"b"], [])
        assert (origin.numbers(), transfer_message_count(origin)) == (([0] * 5, 0), 0)

    run(story)


def test_what_lies_in_a_queue_goes_on_when_forwarding_begins_and_stays_when_it_ends() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from")
        sent(origin, b"early")
        await asyncio.sleep(0.1)
        await change(hall, origin, forward_to="to")
        await asyncio.sleep(0.1)
        assert await payloads(target) == [b"early"]
        await change(hall, origin, forward_to=None)
        sent(origin, b"late")
        await asyncio.sleep(0.1)
        assert (await payloads(target), await payloads(origin)) == ([b"early"], [b"late"])
        assert [message.payload for found in await lock_all(origin) for message in found.messages] == [b"late"]

    run(story)


async def change(hall: Hall, queue: Queue, **properties: Any) -> None:
    import msgspec

    await hall.unit.update_queue("n", msgspec.structs.replace(queue.description, **properties))


@pytest.mark.parametrize("stores", [1, 3])
@pytest.mark.parametrize("parted", [(False, True), (True, False), (True, True)])
def test_messages_pass_chains_of_partitioned_and_plain_queues(stores: int, parted: tuple[bool, bool]) -> None:
    """PE16."""

    async def story(hall: Hall) -> None:
        last = await hall.create("c", enable_partitioning=parted[1])
        await hall.create("b", enable_partitioning=parted[0], forward_to="c")
        first = await hall.create("a", enable_partitioning=parted[1], forward_to="b")
        for number in range(60):
            sent(first, b"%d" % number, key=string_key(f"k{number % 7}"), partition_key=f"k{number % 7}")
            sent(first, b"keyless %d" % number)
        await asyncio.sleep(5.0)
        found = await queued_messages(last)
        assert sorted(message.payload for message in found) == sorted(
            [b"%d" % n for n in range(60)] + [b"keyless %d" % n for n in range(60)]
        )
        for key in range(7):
            mine = [int(s.payload) for s in found if s.metadata and s.metadata.partition_key == f"k{key}"]
            assert mine == sorted(mine), "a key keeps its order"
        for handle in last.fragments:
            assert handle.fragment is not None
            for message in handle.fragment.sources[0].by_count.values():
                key_text = message.metadata.partition_key if message.metadata else None
                if parted[1] and key_text is not None:
                    assert slot_of(string_key(key_text), 16) == handle.number
        assert sum(dedups(hall.queue(name)) for name in "abc") == 0

    run(story, stores)


def test_what_is_kept_and_what_begins_anew_on_the_way() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from")
        sent(origin, b"x" * 3)
        sent(origin, b"m", session_id="s", partition_key="s", via_partition_key="v", priority=7, ttl_ms=90_000)
        await asyncio.sleep(0.1)
        for found in await lock_all(origin):
            found.fragment.unlock(0, found.prefix, [(found.first_lock, 2)], counted=True)
        (_, before) = await queued_messages(origin)
        await asyncio.sleep(10.0)
        await change(hall, origin, forward_to="to")
        await asyncio.sleep(0.1)
        _, after = await queued_messages(target)
        metadata = after.metadata
        assert metadata is not None
        assert (before.deliveries, after.deliveries) == (1, 0)
        assert after.enqueued_ms >= before.enqueued_ms + 10_000
        assert metadata.enqueued_sequence_number == origin.fragments[0].number << 48 | before.count
        assert (metadata.session_id, metadata.partition_key, metadata.via_partition_key) == ("s", "s", "v")
        assert (metadata.priority, metadata.ttl_ms, metadata.route) == (7, 90_000, TransferRoute(1))

    run(story)


def test_the_number_that_a_message_was_first_given_stays_over_several_hops() -> None:
    async def story(hall: Hall) -> None:
        last = await hall.create("c")
        await hall.create("b", forward_to="c")
        first = await hall.create("a", forward_to="b")
        sent(last, b"other")
        sent(first, b"m")
        await asyncio.sleep(0.2)
        _, found = await queued_messages(last)
        assert found.count == 2
        assert found.metadata is not None
        assert found.metadata.enqueued_sequence_number == 1

    run(story)


def test_a_queue_cuts_the_life_of_what_it_forwards_and_the_destination_counts_it_anew() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from", default_message_time_to_live_ms=30_000, forward_to="to")
        sent(origin, b"long", ttl_ms=600_000)
        await asyncio.sleep(29.0)
        assert await payloads(target) == [b"long"]
        await asyncio.sleep(2.0)
        assert await payloads(target) == []

    run(story)


def test_scheduled_messages_go_on_when_their_time_has_come_and_deferred_ones_stay() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from", forward_to="to")
        sent(origin, b"later", scheduled_ms=hall.clock.now_ms() + 60_000)
        await asyncio.sleep(30.0)
        assert (await payloads(target), await payloads(origin)) == ([], [b"later"])
        await asyncio.sleep(31.0)
        assert (await payloads(target), await payloads(origin)) == ([b"later"], [])

    run(story)


def test_dead_letters_go_on_with_their_reason_and_their_source() -> None:
    async def story(hall: Hall) -> None:
        dead = await hall.create("graves")
        origin = await hall.create("Work", forward_dead_lettered_messages_to="graves")
        sent(origin, b"bad", ttl_ms=60_000)
        await asyncio.sleep(0.1)
        await forget_tombstones(origin)
        await asyncio.sleep(61.0)
        (found,) = await queued_messages(dead)
        metadata = found.metadata
        assert metadata is not None
        assert metadata.overlay is not None
        properties = decode(metadata.overlay)[0]
        assert properties == {"seen": True, "DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
        assert (metadata.dead_letter_source, metadata.ttl_ms, found.state) == ("Work", None, 0)
        assert await payloads(origin, DEAD_LETTER) == []

    run(story, stores=2)


def test_a_queue_with_sessions_forwards_its_dead_letters() -> None:
    async def story(hall: Hall) -> None:
        dead = await hall.create("graves")
        origin = await hall.create(
            "from",
            requires_session=True,
            forward_dead_lettered_messages_to="graves",
            dead_lettering_on_message_expiration=True,
        )
        sent(origin, b"m", session_id="s", ttl_ms=1_000)
        await asyncio.sleep(2.0)
        (found,) = await queued_messages(dead)
        assert found.metadata is not None
        assert found.metadata.session_id == "s"

    run(story)


def test_a_deep_backlog_goes_through_the_paged_tail() -> None:
    async def story(hall: Hall) -> None:
        origin = await hall.create("from")
        target = await hall.create("to")
        fragment = origin.fragments[0].fragment
        assert fragment is not None
        fragment.window_bytes = 4_000
        for start in range(0, 4_000, 500):
            sent(origin, *(b"%d" % n for n in range(start, start + 500)))
            await asyncio.sleep(0.1)
        assert fragment.sources[0].tail_count > 2_000
        await change(hall, origin, forward_to="to")
        await asyncio.sleep(60.0)
        assert (origin.numbers()[0][0], target.numbers()[0][0]) == (0, 4_000)

    run(story)


# -- limits -----------------------------------------------------------------------------------------------------


def test_a_queue_that_forwards_to_itself_ends_with_the_limit_of_hops() -> None:
    async def story(hall: Hall) -> None:
        queue = await hall.create("q")
        await change(hall, queue, forward_to="q")
        sent(queue, b"m")
        await asyncio.sleep(1.0)
        (found,) = await queued_messages(queue, TRANSFER_DEAD_LETTER)
        assert found.metadata is not None
        assert (found.metadata.reason, found.metadata.route) == (HOPS_EXCEEDED, TransferRoute(HOPS_MAX))
        assert transfer_message_count(queue) == 0

    run(story)


@pytest.mark.parametrize("length", [4, 5])
def test_four_hops_are_made_and_a_fifth_is_not(length: int) -> None:
    async def story(hall: Hall) -> None:
        last = await hall.create(f"q{length}")
        for number in range(length - 1, -1, -1):
            await hall.create(f"q{number}", forward_to=f"q{number + 1}")
        sent(hall.queue("q0"), b"m")
        await asyncio.sleep(1.0)
        arrived = await payloads(last) == [b"m"]
        assert arrived == (length == 4)
        assert transfer_dead(hall.queue("q4")) == (0 if length == 4 else 1)

    run(story, stores=2)


def test_a_target_has_to_exist_and_may_be_the_queue_itself() -> None:
    async def story(hall: Hall) -> None:
        for name in ("forward_to", "forward_dead_lettered_messages_to"):
            with pytest.raises(ArgumentInvalid, match="SubCode=40400"):
                await hall.create("q", **{name: "nobody"})
        queue = await hall.create("self", forward_to="Self")
        with pytest.raises(ArgumentInvalid, match="does not exist"):
            await change(hall, queue, forward_to="nobody")

    run(story)


def test_a_queue_with_sessions_forwards_each_in_its_order_from_its_creation_or_from_a_change_on() -> None:
    async def story(hall: Hall) -> None:
        for name, is_partitioned in (("to", True), ("plain", False)):
            target = await hall.create(name, requires_session=name == "to", enable_partitioning=is_partitioned)
            made = await hall.create(f"made-{name}", requires_session=True, forward_to=name)
            changed = await hall.create(f"changed-{name}", requires_session=True, enable_partitioning=is_partitioned)
            for session in ("a", "b", "c"):
                for number in range(3):
                    sent(changed, f"{session}{number}".encode(), session_id=session, partition_key=session)
            await asyncio.sleep(1)
            await change(hall, changed, forward_to=name)
            sent(changed, b"a3", session_id="a", partition_key="a")
            sent(made, b"d0", session_id="d", partition_key="d")
            await asyncio.sleep(MINUTE_S)
            arrived = await queued_messages(target)
            assert len(arrived) == 11
            for session, number in (("a", 4), ("b", 3), ("c", 3), ("d", 1)):
                mine = [
                    message.payload
                    for message in arrived
                    if message.metadata and message.metadata.session_id == session
                ]
                assert mine == [f"{session}{index}".encode() for index in range(number)]
            assert (await payloads(made), await payloads(changed)) == ([], [])
            assert transfer_dead(made) == transfer_dead(changed) == 0

    run(story, stores=2)


def test_what_a_queue_with_sessions_cannot_forward_waits_and_then_ends_in_its_transfer_dead_letter_queue() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", status=SEND_DISABLED)
        origin = await hall.create("from", requires_session=True, forward_to="to")
        sent(origin, b"a0", session_id="a")
        sent(origin, b"a1", session_id="a")
        await asyncio.sleep(MINUTE_S)
        assert transfer_message_count(origin) == 2
        await change(hall, target, status="Active")
        await asyncio.sleep(1)
        assert await payloads(target) == [b"a0", b"a1"]
        await hall.unit.delete_queue("n", "to")
        sent(origin, b"b0", session_id="b")
        await asyncio.sleep(TIMEOUT_MS / 1000 + 10 * MINUTE_S)
        assert transfer_dead(origin) == 1
        # The session is nobody's, and takes messages for whom it is forwarded to next.
        again = await hall.create("to")
        sent(origin, b"b1", session_id="b")
        await asyncio.sleep(MINUTE_S)
        assert await payloads(again) == [b"b1"]

    run(story)


# -- destinations that do not take messages ---------------------------------------------------------------------


def test_messages_wait_for_a_destination_that_is_disabled_and_go_on_at_once_when_it_is_not() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", status=SEND_DISABLED)
        origin = await hall.create("from", forward_to="to")
        sent(origin, b"m")
        await asyncio.sleep(MINUTE_S)
        assert (await payloads(origin), transfer_message_count(origin)) == ([b"m"], 1)
        await change(hall, target, status="Active")
        await asyncio.sleep(0.05)
        assert (await payloads(target), transfer_message_count(origin)) == ([b"m"], 0)

    run(story)


def test_a_destination_that_stays_disabled_costs_the_messages_their_place_in_the_transfer_queue() -> None:
    async def story(hall: Hall) -> None:
        await hall.create("to", status=DISABLED)
        origin = await hall.create("from", forward_to="to")
        sent(origin, b"m")
        await asyncio.sleep(TIMEOUT_MS / 1000 + 2 * RETRY_MAX_S)
        assert (transfer_message_count(origin), transfer_dead(origin)) == (0, 1)

    run(story)


def test_a_destination_that_is_deleted_and_made_again_gets_what_waited() -> None:
    async def story(hall: Hall) -> None:
        await hall.create("to")
        origin = await hall.create("from", forward_to="to")
        await hall.unit.delete_queue("n", "to")
        sent(origin, b"m")
        await asyncio.sleep(MINUTE_S)
        target = await hall.create("to")
        await asyncio.sleep(0.05)
        assert await payloads(target) == [b"m"]
        await hall.unit.delete_queue("n", "to")
        sent(origin, b"n")
        await asyncio.sleep(TIMEOUT_MS / 1000 + 2 * RETRY_MAX_S)
        (found,) = await queued_messages(origin, TRANSFER_DEAD_LETTER)
        assert found.metadata is not None
        assert (found.payload, found.metadata.reason) == (b"n", NOT_FOUND)

    run(story)


def test_a_full_destination_takes_what_fits_and_the_rest_when_there_is_room() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        limit = target.description.max_size_in_megabytes * MIB
        source = target.fragments[0].fragment.sources[0]  # type: ignore[union-attr]
        origin = await hall.create("from", forward_to="to")
        source.bytes = limit - 25
        sent(origin, *(b"%010d" % n for n in range(5)))
        await asyncio.sleep(1.0)
        assert (await payloads(target), transfer_message_count(origin)) == ([b"%010d" % n for n in range(2)], 3)
        source.bytes = 0
        await asyncio.sleep(2 * RETRY_MAX_S)
        assert await payloads(target) == [b"%010d" % n for n in range(5)]

    run(story)


def test_a_destination_that_stays_full_lets_go_of_nothing() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from", forward_to="to")
        target.fragments[0].fragment.sources[0].bytes = 1 << 40  # type: ignore[union-attr]
        sent(origin, b"a", b"b")
        await asyncio.sleep(TIMEOUT_MS / 1000 + 4 * RETRY_MAX_S)
        found = await queued_messages(origin, TRANSFER_DEAD_LETTER)
        assert [message.payload for message in found] == [b"a", b"b"]
        assert {message.metadata.reason for message in found if message.metadata} == {FULL}

    run(story, stores=2)


def test_what_a_destination_can_never_take_goes_to_the_transfer_dead_letter_queue_alone() -> None:
    async def story(hall: Hall) -> None:
        sessions = await hall.create("s", requires_session=True, max_message_size_bytes=1024)
        origin = await hall.create("from", forward_to="s")
        sent(origin, b"none")
        sent(origin, b"good", session_id="1")
        sent(origin, b"l" * 2000, session_id="2")
        await asyncio.sleep(0.5)
        found = await queued_messages(origin, TRANSFER_DEAD_LETTER)
        reasons = {message.payload[:4]: message.metadata.reason for message in found if message.metadata}
        assert reasons == {b"none": SESSION_MISSING, b"llll": MESSAGE_TOO_LARGE}
        assert await payloads(sessions) == [b"good"]

    run(story)


def test_a_disabled_origin_keeps_its_messages() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to")
        origin = await hall.create("from", status="ReceiveDisabled", forward_to="to")
        sent(origin, b"m")
        await asyncio.sleep(1.0)
        assert await payloads(target) == []
        await change(hall, origin, status="Active")
        await asyncio.sleep(0.1)
        assert await payloads(target) == [b"m"]

    run(story)


def test_a_message_that_waits_for_its_destination_expires_in_time() -> None:
    async def story(hall: Hall) -> None:
        await hall.create("to", status=DISABLED)
        origin = await hall.create("from", forward_to="to", dead_lettering_on_message_expiration=True)
        sent(origin, b"m", ttl_ms=20_000)
        await asyncio.sleep(21.0 + RETRY_MAX_S)
        assert origin.numbers()[0] == [0, 1, 0, 0, 0]

    run(story)


def test_duplicates_are_found_at_the_destination() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", requires_duplicate_detection=True)
        origin = await hall.create("from", forward_to="to")
        named = b"\x00\x53\x73\xc0\x04\x01\xa1\x01x"
        sent(origin, named)
        await asyncio.sleep(0.1)
        sent(origin, named, b"other")
        await asyncio.sleep(0.1)
        assert await payloads(target) == [named, b"other"]
        assert transfer_message_count(origin) == 0

    run(story, stores=2)


# -- stores that fail -------------------------------------------------------------------------------------------


def test_a_fragment_that_is_away_holds_up_its_own_keys_only() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", enable_partitioning=True)
        origin = await hall.create("from", forward_to="to")
        here, there = origin.fragments[0].store.store_id, 0
        there = next(number for number in hall.disks if number != here)
        keys = [f"k{n}" for n in range(64)]
        dead = {k for k in keys if target.placement.fragments[slot_of(string_key(k), 16)].store.store_id == there}
        fail(hall, there, for_s=30.0)
        for key in keys:
            sent(origin, key.encode(), key=string_key(key), partition_key=key)
        for number in range(50):
            sent(origin, b"keyless %d" % number)
        await asyncio.sleep(3.0)
        assert {p.decode() for p in await payloads(target) if not p.startswith(b"keyless")} == set(keys) - dead
        assert transfer_message_count(origin) == len(dead)
        await asyncio.sleep(40.0)
        assert sorted(await payloads(target)) == sorted(
            [k.encode() for k in keys] + [b"keyless %d" % n for n in range(50)]
        )

    run(story, stores=3)


def fail(hall: Hall, number: int, *, for_s: float) -> None:
    """Let a store fail with its next commit and stay away."""
    broker = hall.unit.brokers[number]
    store, original = hall.disks[number], hall.disks[number].open
    back_at = hall.loop.time() + for_s

    def opening() -> Any:
        from duobus.errors import StoreFailed

        if hall.loop.time() < back_at:
            raise StoreFailed("still away")
        return original()

    store.open = opening  # type: ignore[method-assign]
    store.close()
    from duobus.errors import StoreFailed

    broker.lifecycle.fail(StoreFailed("planted"))


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("who", ["origin", "destination"])
@pytest.mark.parametrize("parted", [False, True])
def test_no_failure_of_a_store_loses_or_repeats_a_message(how: str, who: str, *, parted: bool) -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", enable_partitioning=parted)
        origin = await hall.create("from")
        if target.fragments[0].broker is origin.fragments[0].broker and not parted:
            await hall.unit.delete_queue("n", "from")
            await hall.create("filler")
            origin = await hall.create("from")
        names = [b"%d" % n for n in range(40)]
        for start in range(0, 40, 5):
            sent(origin, *names[start : start + 5])
        await asyncio.sleep(0.5)
        failing = (origin if who == "origin" else target).fragments[0].store.store_id
        await change(hall, origin, forward_to="to")
        for step in range(6):
            hall.writers[failing].fail_next = how
            sent(origin, b"more %d" % step)
            await asyncio.sleep(3.0)
        await asyncio.sleep(20.0)
        found = await payloads(target)
        assert len(found) == len(set(found)), "nothing comes twice"
        assert set(names) <= set(found)
        assert transfer_message_count(origin) == 0
        await asyncio.sleep(5.0)
        assert dedups(target) == 0

    run(story, stores=3)


def test_a_crash_between_acceptance_and_removal_is_no_repeat() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", enable_partitioning=True)
        origin = await hall.create("from")
        home = origin.fragments[0].store.store_id
        for number in range(8):
            sent(origin, b"%d" % number)
            await asyncio.sleep(0.01)
        writer = hall.writers[home]
        writer.is_held = True
        await change(hall, origin, forward_to="to")
        await asyncio.sleep(0.5)
        in_others = [h for h in target.fragments if h.store.store_id != home]
        taken = sum(len(h.fragment.sources[0].by_count) for h in in_others if h.fragment is not None)
        assert taken, "accepted by other stores, and not removed yet"
        await hall.again()
        await asyncio.sleep(10.0)
        found = await payloads(hall.queue("to"))
        assert sorted(found) == [b"%d" % n for n in range(8)]
        assert transfer_message_count(hall.queue("from")) == 0
        assert dedups(hall.queue("to")) == 0

    run(story, stores=4)


def test_what_is_still_on_its_way_when_the_origin_loses_its_memory_goes_to_the_same_fragment_again() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", enable_partitioning=True)
        origin = await hall.create("from")
        home = origin.fragments[0].store.store_id
        late = hall.writers[target.placement.keyless().store.store_id]
        assert late is not hall.writers[home]
        await change(hall, origin, forward_to="to")
        late.is_held = True
        names = [b"%d" % number for number in range(4)]
        for name in names:
            sent(origin, name)
            await asyncio.sleep(0.01)
        # The first is in the commit that does not end; the next wait behind it, in no record of accepted numbers yet.
        await asyncio.sleep(LATE_S + 0.1)
        assert {handle.store.is_late for handle in target.fragments} == {True, False}
        hall.writers[home].fail_next = "before"
        sent(origin, b"the store fails under this one")
        # The origin is there again and sends on what it has found, while keyless messages pass over the late store.
        await asyncio.sleep(0.5)
        assert origin.fragments[0].online
        late.release()
        await asyncio.sleep(10.0)
        assert sorted(await payloads(target)) == sorted(names)
        assert transfer_message_count(origin) == 0

    run(story, stores=4)


def test_a_lane_holds_a_bounded_number_of_messages() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", enable_partitioning=True)
        origin = await hall.create("from", forward_to="to")
        there = next(h for h in target.fragments if h.broker is not origin.fragments[0].broker)
        key = next(f"k{n}" for n in range(1000) if slot_of(string_key(f"k{n}"), 16) == there.number)
        fail(hall, there.store.store_id, for_s=1e6)
        for _ in range(12):
            sent(origin, *[b"x"] * 1000, key=string_key(key), partition_key=key)
        await asyncio.sleep(1.0)
        forwarder = next(hall.unit.forwarding._every())
        assert forwarder._taken <= FORWARDER_MESSAGES_MAX
        assert transfer_message_count(origin) == 12_000

    run(story, stores=2)


def test_a_destination_of_which_nothing_is_there_is_tried_again_in_a_while() -> None:
    async def story(hall: Hall) -> None:
        target = await hall.create("to", enable_partitioning=True)
        origin = await hall.create("from")
        sent(origin, b"m")
        await asyncio.sleep(0.1)
        # As if every one of its stores were another than the origin's.
        kept = [handle.fragment for handle in target.fragments]
        for handle in target.fragments:
            handle.fragment = None
        await change(hall, origin, forward_to="to")
        await asyncio.sleep(5.0)
        assert transfer_message_count(origin) == 1
        for handle, fragment in zip(target.fragments, kept, strict=True):
            handle.fragment = fragment
        await asyncio.sleep(2 * RETRY_MAX_S)
        assert await payloads(target) == [b"m"]

    run(story)
