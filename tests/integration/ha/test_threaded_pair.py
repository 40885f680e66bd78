"""Paired namespaces without asyncio: the generated twin over two real brokers and the synchronous SDK."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from time import perf_counter
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus import aio as aio_sdk
from azure.servicebus.exceptions import ServiceBusError
from kit_threads import LIMIT_S, Told, client_of, paired_in_threads, taken

from duobus.ha.errors import BacklogUnavailable, NotDiverted, PairFaulted, PairingRefused
from duobus.ha.events import (
    BacklogFailed,
    Diverted,
    FailoverEngaged,
    Faulted,
    PingSent,
    PrimaryHealthy,
    Reporter,
    SendFailed,
    SyphonDeadLettered,
    Syphoned,
    SyphonPolled,
    SyphonStopped,
)
from duobus.ha.failover import BY_HAND, BY_PING, State
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sync import Syphon, pair_namespace
from kits.pair import Bus, body

#: The SDK leaves sockets unclosed when a server is killed.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def fail_over(sender: Any, told: Any) -> None:
    """Send once while the primary is away, and wait until failover engages."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - the SDK has several for a server that is away
        sender.send_messages(ServiceBusMessage("lost to its caller"))
    told.wait(FailoverEngaged)


def test_a_healthy_pair_of_threads_changes_nothing(bus: Bus) -> None:
    with paired_in_threads(bus) as (pair, told):
        assert pair.backlog_queue_count == 3
        with pair.get_queue_sender(bus.orders) as sender:
            sender.send_messages(ServiceBusMessage("one"))
            batch = sender.create_message_batch()
            batch.add_message(ServiceBusMessage("two"))
            sender.send_messages(batch)
            sender.send_messages(ServiceBusMessage(text) for text in ["three", "four"])
        assert told == []
    received = taken(bus.primary, bus.orders)
    assert [body(message) for message in received] == ["one", "two", "three", "four"]
    assert all(message.application_properties in (None, {}) for message in received)


def test_an_outage_is_diverted_pinged_and_syphoned_back_with_threads(bus: Bus) -> None:
    with paired_in_threads(bus, enable_syphon=True) as (pair, told):
        with pair.get_queue_sender(bus.orders) as sender, pair.get_queue_sender(bus.registrations) as registrations:
            sender.send_messages(ServiceBusMessage("before"))
            registrations.send_messages(ServiceBusMessage("before", session_id="s-1"))
            bus.primary.kill()
            fail_over(sender, told)
            assert pair.state(bus.orders) is State.FAILED_OVER
            assert pair.state(bus.registrations) is State.HEALTHY, "failover is per entity"
            with pytest.raises(NotDiverted, match="scheduled_enqueue_time_utc"):
                sender.cancel_scheduled_messages(1)
            full = ServiceBusMessage(
                "full", message_id="m", subject="s", time_to_live=timedelta(hours=1), application_properties={"n": 5}
            )
            sender.send_messages(full)
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(30)])
            bus.primary.start()
            healthy = told.wait(PrimaryHealthy)
            assert (healthy.reason, healthy.was_diverted) == (BY_PING, True)
            told.wait(Syphoned, messages=31)
            sender.send_messages(ServiceBusMessage("after"))
        received = {body(message): message for message in taken(bus.primary, bus.orders)}
        assert received.keys() == {"before", "full", "after", *map(str, range(30))}
        back = received["full"]
        assert (back.message_id, back.subject, back.time_to_live) == ("m", "s", timedelta(hours=1))
        assert back.application_properties == {b"n": 5}
    assert told.of(SyphonStopped)


def test_threads_that_send_side_by_side_share_one_failover_and_nothing_accepted_is_lost(bus: Bus) -> None:
    accepted: list[str] = []
    more = threading.Condition()
    over = threading.Event()

    def until(number: int) -> None:
        with more:
            assert more.wait_for(lambda: len(accepted) >= number, LIMIT_S)

    with paired_in_threads(bus, enable_syphon=True) as (pair, told):

        def work(who: int) -> None:
            with pair.get_queue_sender(bus.orders) as sender:
                number = 0
                while not over.is_set():
                    text = f"{who}-{number}"
                    try:
                        sender.send_messages(ServiceBusMessage(text, message_id=text), timeout=2)
                    except Exception:  # noqa: BLE001 - whatever the SDK says of a server that is away
                        over.wait(0.02)
                        continue
                    with more:
                        accepted.append(text)
                        more.notify_all()
                    number += 1
                    over.wait(0.01)

        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        try:
            until(40)
            bus.primary.kill()
            told.wait(Diverted, messages=40)
            bus.primary.start()
            told.wait(PrimaryHealthy)
            until(len(accepted) + 40)
        finally:
            over.set()
            for thread in threads:
                thread.join(LIMIT_S)
        told.wait(Syphoned, messages=sum(event.messages for event in told.of(Diverted)))
    assert set(accepted) <= {body(message) for message in taken(bus.primary, bus.orders)}
    assert [event.entity for event in told.of(FailoverEngaged)] == [bus.orders]


def test_with_an_interval_of_zero_the_failing_send_of_a_thread_is_diverted(bus: Bus) -> None:
    with (
        paired_in_threads(bus, failover_interval=timedelta(0)) as (pair, told),
        pair.get_queue_sender(bus.orders) as one,
    ):
        bus.primary.kill()
        one.send_messages(ServiceBusMessage("not lost"))
        assert [type(event) for event in told if not isinstance(event, PingSent)] == [
            SendFailed,
            FailoverEngaged,
            Diverted,
        ]
        bus.secondary.kill()
        with pytest.raises(BacklogUnavailable, match="all 3 backlog queues"):
            one.send_messages(ServiceBusMessage("nowhere to go"))
        assert {event.entity for event in told.of(BacklogFailed)} == set(bus.backlogs)


def test_a_path_is_marked_healthy_from_another_thread(bus: Bus) -> None:
    with (
        paired_in_threads(bus, ping_primary_interval=timedelta(minutes=30)) as (pair, told),
        pair.get_queue_sender(bus.orders) as sender,
    ):
        bus.primary.kill()
        fail_over(sender, told)
        bus.primary.start()
        thread = threading.Thread(target=pair.mark_path_healthy, args=(bus.orders,))
        thread.start()
        assert told.wait(PrimaryHealthy).reason == BY_HAND
        thread.join()
        sender.send_messages(ServiceBusMessage("direct"))
        assert told.of(Diverted) == []


def test_a_syphon_of_threads_buries_what_cannot_be_delivered_and_ends_when_stopped(bus: Bus) -> None:
    path = bus.backlogs[0]
    with client_of(bus.secondary) as sdk, sdk.get_queue_sender(path) as sender:
        sender.send_messages(ServiceBusMessage("no path"))
        sender.send_messages(ServiceBusMessage(bus.orders, application_properties={"x-ms-path": bus.orders}))
    with client_of(bus.primary) as there, client_of(bus.secondary) as behind:
        told = Told()
        syphon = Syphon(there, behind, bus.backlogs, reporter=Reporter(told))
        thread = threading.Thread(target=syphon.run)
        thread.start()
        told.wait(Syphoned)
        told.wait(SyphonDeadLettered)
        syphon.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a poll of 15 minutes does not hold it up"
        assert told.of(SyphonStopped)
        assert all(event.messages for event in told.of(SyphonPolled)), "no poll had ended"
    assert [body(message) for message in taken(bus.primary, bus.orders)] == [bus.orders]
    (dead,) = taken(bus.secondary, path, sub_queue="deadletter")
    assert dead.dead_letter_reason == "Destination queue not indicated in message when fetched from backlog."


def test_when_one_client_of_a_pair_of_threads_is_closed_the_other_is_faulted(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duobus.ha.sync.paired_namespace.PARTNER_S", 0.2)
    with paired_in_threads(bus, enable_syphon=True) as (pair, told):
        sender = pair.get_queue_sender(bus.orders)
        sender.send_messages(ServiceBusMessage("x"))
        pair.options.secondary.close()  # type: ignore[unused-coroutine]
        told.wait(Faulted)
        with pytest.raises(PairFaulted, match="Make new clients"):
            sender.send_messages(ServiceBusMessage("x"))


def test_pairing_is_refused_to_clients_of_the_other_kind(bus: Bus) -> None:
    options = SendAvailabilityPairedNamespaceOptions(client_of(bus.secondary))
    foreign: Any = aio_sdk.ServiceBusClient.from_connection_string(bus.primary.connection_string)
    with pytest.raises(PairingRefused, match=r"primary client has to be a ServiceBusClient of azure\.servicebus\."):
        pair_namespace(foreign, options)


def test_a_primary_that_takes_connections_and_is_silent_holds_up_no_thread(bus: Bus) -> None:
    """The SDK's first read of a connection has no time-out, so that a send would wait as long as the primary does."""
    with (
        paired_in_threads(bus, enable_syphon=True) as (pair, told),
        pair.get_queue_sender(bus.orders) as sender,
        pair.get_queue_sender(bus.orders) as fresh,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        bus.primary.freeze()
        try:
            began = perf_counter()
            with pytest.raises((ServiceBusError, TimeoutError)):
                sender.send_messages(ServiceBusMessage("without an answer"), timeout=1)
            # This one has no link yet. By the time that it is given up failover has engaged, and it is diverted.
            fresh.send_messages(ServiceBusMessage("diverted"), timeout=1)
            assert perf_counter() - began < LIMIT_S
            told.wait(FailoverEngaged)
            sender.send_messages(ServiceBusMessage("diverted"), timeout=5)
        finally:
            bus.primary.thaw()
        told.wait(PrimaryHealthy)
        for one in (sender, fresh):
            one.send_messages(ServiceBusMessage("after"), timeout=5)
        told.wait(Syphoned, messages=2)
    texts = Counter(body(message) for message in taken(bus.primary, bus.orders))
    assert texts["before"] == 1
    assert texts["after"] == 2
    assert texts["diverted"] >= 2, "the one without an answer may have been taken, too"
