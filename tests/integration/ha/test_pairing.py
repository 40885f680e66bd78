"""Paired namespaces over two real brokers and the official SDK (PN1 to PN16, I10, I43 to I50)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusAuthenticationError, ServiceBusError

from duobus.cli.remote import Remote
from duobus.ha.aio import pair_namespace
from duobus.ha.errors import BacklogUnavailable, NotDiverted, PairFaulted, PairingRefused
from duobus.ha.events import (
    BacklogFailed,
    Diverted,
    FailoverEngaged,
    Faulted,
    PingSent,
    PrimaryHealthy,
    SendFailed,
    SyphonDeadLettered,
    Syphoned,
    SyphonSkipped,
)
from duobus.ha.failover import BY_PING, State
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from kits.pair import LIMIT_S, Bus, Events, body, bounded, client, drain

#: The SDK leaves sockets unclosed when a server is killed.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


async def fail_over(sender: Any, events: Events) -> None:
    """Send until failover engages; the primary is away."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - the SDK has several for a server that is away
        await sender.send_messages(ServiceBusMessage("lost to its caller"))
    await events.wait(FailoverEngaged)


@bounded
async def test_while_the_primary_is_healthy_nothing_changes(bus: Bus) -> None:
    async with bus.paired() as (pair, events):
        assert pair.backlog_queue_count == 3
        async with pair.get_queue_sender(bus.orders) as sender:
            await sender.send_messages(ServiceBusMessage("one"))
            await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("four"))
            await sender.send_messages(batch)
            await sender.send_messages(ServiceBusMessage(text) for text in ["five"])
        assert events == []
    received = await drain(bus.primary, bus.orders)
    assert [body(message) for message in received] == ["one", "two", "three", "four", "five"]
    assert all(message.application_properties in (None, {}) for message in received)
    assert await bus.kept() == []


@bounded
async def test_a_failure_reaches_the_caller_and_after_the_interval_sends_are_diverted(bus: Bus) -> None:
    async with (
        bus.paired() as (pair, events),
        pair.get_queue_sender(bus.orders) as sender,
        pair.get_queue_sender(bus.orders) as other,
    ):
        await sender.send_messages(ServiceBusMessage("before"))
        bus.primary.kill()
        await fail_over(sender, events)
        assert pair.state(bus.orders) is State.FAILED_OVER
        assert pair.state(bus.bills) is State.HEALTHY, "failover is per entity"
        await sender.send_messages(ServiceBusMessage("diverted", session_id="s", message_id="m"))
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        await other.send_messages(ServiceBusMessage("by another sender"))
        with pytest.raises(NotDiverted, match="scheduled_enqueue_time_utc"):
            await sender.cancel_scheduled_messages(1)
        assert [event.entity for event in events.of(SendFailed)] == [bus.orders]
        assert sum(event.messages for event in events.of(Diverted)) == 4
        bus.primary.start()
        healthy = await events.wait(PrimaryHealthy)
        assert (healthy.reason, healthy.was_diverted) == (BY_PING, True)
        await sender.send_messages(ServiceBusMessage("after"))
    assert [body(message) for message in await drain(bus.primary, bus.orders)] == ["before", "after"], (
        "no ping among them"
    )
    kept = await bus.kept()
    assert sorted(body(message) for message in kept) == ["a", "b", "by another sender", "diverted"]


@bounded
async def test_the_syphon_brings_everything_back_with_every_property(bus: Bus) -> None:
    async with bus.paired(enable_syphon=True) as (pair, events):
        async with (
            pair.get_queue_sender(bus.orders) as orders,
            pair.get_queue_sender(bus.registrations) as registrations,
        ):
            bus.primary.kill()
            await fail_over(orders, events)
            await fail_over(registrations, events)
            await events.wait(FailoverEngaged, 2)
            sent = ServiceBusMessage(
                "full",
                message_id="m-1",
                correlation_id="c-1",
                subject="label",
                time_to_live=timedelta(hours=1),
                application_properties={"number": 5, "x-ms-path": "mine"},
            )
            await orders.send_messages(sent)
            await orders.send_messages([ServiceBusMessage(str(number)) for number in range(30)])
            await registrations.send_messages([ServiceBusMessage("in a session", session_id="s-1")])
            bus.primary.start()
            async with asyncio.timeout(LIMIT_S):
                while sum(event.messages for event in events.of(Syphoned)) < 32:
                    await events.wait(Syphoned, len(events.of(Syphoned)) + 1)
        # Messages that had to wait for the primary come in any order.
        full, *others = sorted(await drain(bus.primary, bus.orders), key=lambda one: one.message_id != "m-1")
        assert (body(full), full.message_id, full.correlation_id, full.subject) == ("full", "m-1", "c-1", "label")
        assert full.time_to_live == timedelta(hours=1)
        assert full.application_properties == {b"number": 5, b"x-ms-path": b"mine"}
        assert {body(message) for message in others} == {str(number) for number in range(30)}
        (registration,) = await drain(bus.primary, bus.registrations, session_id="s-1")
        assert body(registration) == "in a session"
    assert await bus.kept() == []


@bounded
async def test_a_destination_that_is_missing_at_first_contact_keeps_its_messages_and_holds_up_nobody(bus: Bus) -> None:
    # Its token is not taken, and the SDK does not tell whether the entity is missing or the key wrong.
    path, later = bus.backlogs[0], f"later-{bus.orders}"
    async with client(bus.secondary) as sdk, sdk.get_queue_sender(path) as sender:
        for destination in (later, bus.orders):
            await sender.send_messages(
                ServiceBusMessage(destination, application_properties={"x-ms-path": destination})
            )
        await sender.send_messages(ServiceBusMessage("no path"))
    async with bus.paired(enable_syphon=True) as (_, events):
        await events.wait(Syphoned)
        await events.wait(SyphonDeadLettered)
        skipped = await events.wait(SyphonSkipped)
        assert (skipped.entity, skipped.meaning) == (later, "owner")
        assert "there is no such entity, or the key or token is wrong" in skipped.error
        assert [body(message) for message in await drain(bus.primary, bus.orders)] == [bus.orders]
        dead = await drain(bus.secondary, path, sub_queue="deadletter")
        assert [(body(message), message.dead_letter_reason) for message in dead] == [
            ("no path", "Destination queue not indicated in message when fetched from backlog."),
        ]
        # When it is there, it gets them.
        with Remote(bus.primary.connection_string, None, None).administration("the tests") as admin:
            admin.create_queue(later)
        await events.wait(Syphoned, 2)
    assert [body(message) for message in await drain(bus.primary, later)] == [later]


@bounded
async def test_a_destination_that_is_deleted_under_way_keeps_its_messages_until_it_is_there_again(bus: Bus) -> None:
    # The SDK attaches again by itself, so that it hears of the deletion as of a token that is not taken.
    path, gone = bus.backlogs[0], f"gone-{bus.orders}"
    about = {"x-ms-path": gone}
    with Remote(bus.primary.connection_string, None, None).administration("the tests") as admin:
        admin.create_queue(gone)
        async with bus.paired(enable_syphon=True) as (_, events):
            async with client(bus.secondary) as sdk, sdk.get_queue_sender(path) as sender:
                await sender.send_messages(ServiceBusMessage("arrives", application_properties=about))
                await events.wait(Syphoned)
                admin.delete_queue(gone)
                await sender.send_messages(ServiceBusMessage("comes late", application_properties=about))
            # The first that it hears may be that its link has ended.
            skipped = await events.wait(SyphonSkipped)
            while skipped.meaning == "retry":
                skipped = await events.wait(SyphonSkipped, len(events.of(SyphonSkipped)) + 1)
            assert (skipped.entity, skipped.messages, skipped.meaning) == (gone, 1, "owner")
            admin.create_queue(gone)
            await events.wait(Syphoned, 2)
    assert [body(message) for message in await drain(bus.primary, gone)] == ["comes late"]


@bounded
async def test_a_destination_that_is_away_is_skipped_and_its_messages_stay(bus: Bus) -> None:
    path = bus.backlogs[0]
    async with client(bus.secondary) as sdk, sdk.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage("patient", application_properties={"x-ms-path": bus.orders}))
    bus.primary.kill()
    async with bus.paired(enable_syphon=True) as (_, events):
        skipped = await events.wait(SyphonSkipped)
        assert (skipped.entity, skipped.messages) == (bus.orders, 1)
        assert events.of(SyphonDeadLettered) == []


@bounded
async def test_with_an_interval_of_zero_the_failing_send_itself_is_diverted(bus: Bus) -> None:
    async with bus.paired(failover_interval=timedelta(0)) as (pair, events):
        async with pair.get_queue_sender(bus.orders) as sender:
            bus.primary.kill()
            await sender.send_messages(ServiceBusMessage("not lost"))
        happened = [type(event) for event in events if not isinstance(event, PingSent)]
        assert happened == [SendFailed, FailoverEngaged, Diverted]


@bounded
async def test_a_backlog_queue_that_fails_leaves_the_rotation_and_when_all_have_the_caller_is_told(bus: Bus) -> None:
    async with (
        bus.paired(failover_interval=timedelta(0)) as (pair, events),
        pair.get_queue_sender(bus.orders) as sender,
        pair.get_queue_sender(bus.orders) as other,
    ):
        bus.primary.kill()
        await sender.send_messages(ServiceBusMessage("diverted"))
        bus.secondary.kill()
        with pytest.raises(BacklogUnavailable, match="all 3 backlog queues"):
            await sender.send_messages(ServiceBusMessage("nowhere to go"))
        assert {event.entity for event in events.of(BacklogFailed)} == set(bus.backlogs)
        with pytest.raises(BacklogUnavailable):
            await other.send_messages(ServiceBusMessage("the other one knows it, too"))
        assert len(events.of(BacklogFailed)) == 3


@bounded
async def test_errors_of_the_sender_itself_never_divert(bus: Bus) -> None:
    async with bus.paired(failover_interval=timedelta(0)) as (pair, events):
        async with pair.get_queue_sender("nowhere") as sender:
            # Its token is not taken: the SDK has no other class for a missing entity then.
            with pytest.raises(ServiceBusAuthenticationError):
                await sender.send_messages(ServiceBusMessage("x"))
        async with pair.get_queue_sender(bus.orders) as sender:
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(b"x" * 2_000_000))
            with pytest.raises(ValueError, match="timeout"):
                await sender.send_messages(ServiceBusMessage("x"), timeout=-1)
        assert events == []


@bounded
async def test_a_list_that_no_longer_fits_one_batch_becomes_several(bus: Bus) -> None:
    async with bus.paired(failover_interval=timedelta(0)) as (pair, events):
        async with pair.get_queue_sender(bus.orders) as sender:
            batch = await sender.create_message_batch()
            with contextlib.suppress(MessageSizeExceededError):
                while True:
                    batch.add_message(ServiceBusMessage(b"x" * 1000))
            number = len(batch)
            bus.primary.kill()
            await sender.send_messages(batch)
        diverted = [event.messages for event in events.of(Diverted)]
        assert len(diverted) == 2
        assert sum(diverted) == number


@bounded
async def test_a_message_too_large_for_a_backlog_queue_is_refused_in_clear_words(bus: Bus) -> None:
    async with (
        bus.paired(failover_interval=timedelta(0)) as (pair, events),
        pair.get_queue_sender(bus.orders) as sender,
    ):
        edge = await largest(sender)
        bus.primary.kill()
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * edge))
        assert events.of(BacklogFailed) == [], "it is the message, not the queues"
        await sender.send_messages(ServiceBusMessage(b"x" * (edge - 1000)))


async def largest(sender: Any) -> int:
    """The largest body that the primary takes: found, not assumed."""
    low, high = 1, 2_000_000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            await sender.send_messages(ServiceBusMessage(b"x" * middle))
        except MessageSizeExceededError:
            high = middle
        else:
            low = middle
    return low


@bounded
async def test_a_path_is_marked_healthy_by_hand(bus: Bus) -> None:
    async with bus.paired(ping_primary_interval=timedelta(minutes=30)) as (pair, events):
        async with pair.get_queue_sender(bus.orders) as sender:
            bus.primary.kill()
            await fail_over(sender, events)
            bus.primary.start()
            pair.mark_path_healthy(bus.orders)
            await sender.send_messages(ServiceBusMessage("direct"))
        assert events.of(Diverted) == []
        assert events.of(PingSent) == []


@bounded
async def test_a_ping_works_on_an_entity_that_requires_sessions_and_nobody_gets_it(bus: Bus) -> None:
    async with bus.paired() as (pair, events), pair.get_queue_sender(bus.registrations) as sender:
        bus.primary.kill()
        await fail_over(sender, events)
        bus.primary.start()
        await events.wait(PrimaryHealthy)
        await sender.send_messages(ServiceBusMessage("real", session_id="s"))
    assert [body(message) for message in await drain(bus.primary, bus.registrations, session_id="s")] == ["real"]


@bounded
async def test_missing_backlog_queues_are_done_without_and_counted(bus: Bus) -> None:
    async with bus.paired(backlog_queue_count=5) as (pair, _):
        assert pair.backlog_queue_count == 3
        assert pair.counts == {"BacklogMissing": 2}


@bounded
async def test_pairing_is_refused_in_clear_words(bus: Bus) -> None:
    async with bus.paired() as (pair, _):
        with pytest.raises(PairingRefused, match="part of a pair"):
            await pair_namespace(client(bus.primary), pair.options)
        with pytest.raises(PairingRefused, match="options"):
            await pair_namespace(client(bus.primary), None)  # type: ignore[arg-type]
        with pytest.raises(PairingRefused, match="two namespaces"):
            await pair_namespace(client(bus.primary), SendAvailabilityPairedNamespaceOptions(client(bus.primary)))
    with pytest.raises(BacklogUnavailable, match="administration"):
        await pair_namespace(client(bus.primary), SendAvailabilityPairedNamespaceOptions(client(bus.secondary)))


@bounded
async def test_when_one_client_is_closed_and_the_other_not_the_pair_is_faulted(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duobus.ha.aio.paired_namespace.PARTNER_S", 0.2)
    async with bus.paired() as (pair, events):
        sender = pair.get_queue_sender(bus.orders)
        await sender.send_messages(ServiceBusMessage("x"))
        await pair.options.secondary.close()
        await sender.send_messages(ServiceBusMessage("within the time that the partner has"))
        await events.wait(Faulted)
        with pytest.raises(PairFaulted, match="Make new clients"):
            await sender.send_messages(ServiceBusMessage("x"))


@bounded
async def test_closed_together_nothing_is_faulted(bus: Bus) -> None:
    async with bus.paired() as (pair, events):
        sender = pair.get_queue_sender(bus.orders)
        await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises((ValueError, ServiceBusError)):
        await sender.send_messages(ServiceBusMessage("x"))
    assert events == []
