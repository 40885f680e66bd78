"""Active and passive replication over two real brokers (IN8 to IN10, I51, I52)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

from duobus.ha.aio.replication import (
    ActiveReplicationSender,
    PassiveReplicationSender,
    ReplicatedReceiver,
    identifier_of,
)
from duobus.ha.deduplication import SeenMessages
from duobus.ha.events import ReplicaFailed, RolesSwapped
from kits.pair import Bus, Events, body, bounded, client, drain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@asynccontextmanager
async def senders(bus: Bus, queue: str | None = None) -> AsyncIterator[list[ServiceBusSender]]:
    """A sender for each namespace. The queue is the same; what it is called does not matter."""
    async with client(bus.primary) as one, client(bus.secondary) as two:
        yield [one.get_queue_sender(queue or bus.orders), two.get_queue_sender(queue or bus.backlogs[0])]


@asynccontextmanager
async def receivers(bus: Bus) -> AsyncIterator[list[ServiceBusReceiver]]:
    async with client(bus.primary) as one, client(bus.secondary) as two:
        yield [one.get_queue_receiver(bus.orders), two.get_queue_receiver(bus.backlogs[0])]


async def work_off(receiver: ReplicatedReceiver) -> list[str]:
    done = []
    while messages := await receiver.receive_messages(10, max_wait_time=1.5):
        for message in messages:
            done.append(body(message))
            await receiver.complete_message(message)
    return done


@bounded
async def test_active_replication_sends_two_copies_and_one_is_handed_out(bus: Bus, tmp_path: Path) -> None:
    async with senders(bus) as both, ActiveReplicationSender(both) as sender:
        await sender.send_messages(ServiceBusMessage("one"))
        await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            assert sorted(await work_off(receiver)) == ["one", "three", "two"]
        assert len(seen) == 3
    assert await drain(bus.primary, bus.orders) == []
    assert await drain(bus.secondary, bus.backlogs[0]) == []


@bounded
async def test_with_one_namespace_away_every_message_is_handed_out_and_its_late_copy_is_not(
    bus: Bus, tmp_path: Path
) -> None:
    """IN5."""
    events = Events()
    async with senders(bus) as both, ActiveReplicationSender(both, on_event=events) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        bus.primary.kill()
        await sender.send_messages(ServiceBusMessage("while away"))
    assert len(events.of(ReplicaFailed)) == 1
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            assert sorted(await work_off(receiver)) == ["before", "while away"]
    bus.primary.start()
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            assert await work_off(receiver) == [], "the copy of another process's work is recognised"


@bounded
async def test_a_receiver_that_its_owner_closed_harms_neither_the_other_one_nor_the_end(
    bus: Bus, tmp_path: Path
) -> None:
    async with senders(bus) as both, ActiveReplicationSender(both) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.receive_messages(max_wait_time=0.5)  # the other copy waits for this one
            copy = there[1] if receiver._sides_of[id(message)].receiver is there[0] else there[0]
            await copy.close()
            await receiver.complete_message(message)
        assert len(seen) == 1


@bounded
async def test_when_both_are_away_the_caller_is_told(bus: Bus) -> None:
    async with senders(bus) as both, ActiveReplicationSender(both) as sender:
        bus.primary.kill()
        bus.secondary.kill()
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))


@bounded
async def test_an_abandoned_message_or_its_copy_comes_again(bus: Bus, tmp_path: Path) -> None:
    async with senders(bus) as both, ActiveReplicationSender(both) as sender:
        await sender.send_messages(ServiceBusMessage("again"))
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            await receiver.abandon_message(message)
            assert await work_off(receiver) == ["again"]


@bounded
async def test_over_two_brokers_there_is_one_dead_letter_and_a_deferred_message_is_worked_on_once(
    bus: Bus, tmp_path: Path
) -> None:
    async with senders(bus) as both, ActiveReplicationSender(both) as sender:
        await sender.send_messages(ServiceBusMessage("poison"))
    places = [(bus.primary, bus.orders), (bus.secondary, bus.backlogs[0])]
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            locked_until = message.locked_until_utc
            assert locked_until is not None
            assert await receiver.renew_message_lock(message) > locked_until
            await receiver.dead_letter_message(message, reason="poison", error_description="no such article")
            assert await work_off(receiver) == []
            dead = []
            for server, queue in places:
                assert await drain(server, queue) == []
                dead += await drain(server, queue, sub_queue="deadletter")
            assert [(body(one), one.dead_letter_reason) for one in dead] == [("poison", "poison")]

            async with senders(bus) as both, ActiveReplicationSender(both) as sender:
                await sender.send_messages(ServiceBusMessage("early"))
            kept = []
            for _ in places:  # the copy comes, too, and is deferred likewise
                (message,) = await receiver.receive_messages(max_wait_time=20)
                kept.append((message.sequence_number, receiver.position_of(message)))
                await receiver.defer_message(message)
            assert sorted(position for _, position in kept) == [0, 1]
            (number, position), (other, elsewhere) = kept
            (message,) = await receiver.receive_deferred_messages([number], position)  # type: ignore[list-item]
            await receiver.complete_message(message)
            assert await receiver.receive_deferred_messages([other], elsewhere) == []  # type: ignore[list-item]
    for server, queue in places:
        async with client(server) as one, one.get_queue_receiver(queue) as left:
            assert await left.peek_messages(10) == []


@bounded
async def test_passive_replication_swaps_the_roles_when_the_backup_took_it(bus: Bus) -> None:
    events = Events()
    async with senders(bus) as both, PassiveReplicationSender(both, on_event=events) as sender:
        first = sender.active
        await sender.send_messages(ServiceBusMessage("to the active one"))
        bus.primary.kill()
        await sender.send_messages(ServiceBusMessage("to the backup"))
        assert sender.active != first
        await sender.send_messages(ServiceBusMessage("there again"))
        assert len(events.of(RolesSwapped)) == 1
    assert [body(one) for one in await drain(bus.secondary, bus.backlogs[0])] == ["to the backup", "there again"]


@bounded
async def test_when_both_fail_the_roles_stay_and_the_error_is_that_of_the_active_one(bus: Bus) -> None:
    async with senders(bus) as both, PassiveReplicationSender(both) as sender:
        first = sender.active
        bus.primary.kill()
        bus.secondary.kill()
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))
        assert sender.active == first


@bounded
async def test_an_error_of_the_sender_itself_swaps_nothing(bus: Bus) -> None:
    async with senders(bus, "nowhere") as both, PassiveReplicationSender(both) as sender:
        first = sender.active
        with pytest.raises(ServiceBusAuthenticationError):
            await sender.send_messages(ServiceBusMessage("x"))
        assert sender.active == first


@bounded
async def test_the_first_anomaly_a_message_that_waits_in_the_namespace_that_is_away_comes_late(
    bus: Bus, tmp_path: Path
) -> None:
    async with senders(bus) as both, PassiveReplicationSender(both) as sender:
        await sender.send_messages(ServiceBusMessage("m1"))
        bus.primary.kill()
        await sender.send_messages(ServiceBusMessage("m2"))
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            assert await work_off(receiver) == ["m2"]
        bus.primary.start()
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            assert await work_off(receiver) == ["m1"]


@bounded
async def test_the_second_anomaly_a_send_without_an_answer_is_there_twice_and_handed_out_once(
    bus: Bus, tmp_path: Path
) -> None:
    async with senders(bus) as (primary, secondary):
        message = ServiceBusMessage("m", message_id="m-1")
        await primary.send_messages(message)  # accepted, and the answer is lost:
        async with PassiveReplicationSender([Unanswered(primary), secondary]) as sender:
            await sender.send_messages(message)
    with SeenMessages(tmp_path / "seen.db") as seen:
        async with receivers(bus) as there, ReplicatedReceiver(there, seen) as receiver:
            assert await work_off(receiver) == ["m"]


class Unanswered:
    """A sender whose answers are lost on the way; a server does not do that on demand."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self.entity_name = sender.entity_name
        self.fully_qualified_namespace = sender.fully_qualified_namespace

    async def send_messages(self, message: object) -> None:
        raise TimeoutError

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("identifier", ["message_id", "subject", "order"])
def test_the_identifier_is_where_it_was_asked_for(identifier: str) -> None:
    sender = ActiveReplicationSender([None, None], identifier=identifier)  # type: ignore[list-item]
    stamped, kept = sender._prepared(
        [
            ServiceBusMessage("a"),
            ServiceBusMessage("b", message_id="7", subject="7", application_properties={"order": "7"}),
        ]
    )
    assert identifier_of(stamped, identifier)
    assert identifier_of(kept, identifier) == "7"


def test_replication_takes_two_senders_and_no_batch() -> None:
    with pytest.raises(ValueError, match="two senders, not 1"):
        ActiveReplicationSender([None])  # type: ignore[list-item]
    from azure.servicebus import ServiceBusMessageBatch

    with pytest.raises(TypeError, match="send a list"):
        ActiveReplicationSender([None, None])._prepared(ServiceBusMessageBatch())  # type: ignore[list-item]
