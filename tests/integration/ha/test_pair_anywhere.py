"""A pair over two brokers of its own, or over any two namespaces that the environment names (``kit_pair_place``)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from kit_pair_place import Place, address
from kit_relay import Relay, relay_of_threads
from kit_threads import Told

from duobus.ha import sync
from duobus.ha.aio import pair_namespace
from duobus.ha.errors import BacklogUnavailable, NotDiverted
from duobus.ha.events import Diverted, FailoverEngaged, PrimaryHealthy, Syphoned
from duobus.ha.failover import BY_PING
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from kits.pair import BACKLOGS, LIMIT_S, Events, body, bounded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
SEND_S = 1.0
SENDERS = 3
DIRECT = 30
DIVERTED_MIN = 20
LIFE = timedelta(hours=1)


def options_of(place: Place, secondary: Any, hear: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(
        secondary,
        backlog_queue_count=BACKLOGS,
        failover_interval=timedelta(milliseconds=500),
        ping_primary_interval=timedelta(seconds=1),
        enable_syphon=True,
        primary_name=place.name,
        on_event=hear,
    )


def full(text: str) -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {"number": 5, "text": "grün", "x-ms-path": "mine"}
    return ServiceBusMessage(
        text, message_id=text, subject="s", time_to_live=LIFE, application_properties=properties, correlation_id="c"
    )


def check_full(message: ServiceBusReceivedMessage) -> None:
    assert (message.subject, message.correlation_id, message.time_to_live) == ("s", "c", LIFE)
    properties: Any = message.application_properties
    assert properties == {b"number": 5, b"text": "grün".encode(), b"x-ms-path": b"mine"}


def test_a_pair_anywhere_diverts_and_restores_every_property(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = uuid4().hex

    @bounded
    async def play() -> None:
        relay = Relay(*address(place.client(place.primary)))
        await relay.start(monkeypatch)
        events = Events()
        options = options_of(place, place.client(place.secondary), events)
        async with await pair_namespace(place.client(place.primary), options) as pair:
            sender, idle = pair.get_queue_sender(place.queue), pair.get_queue_sender(place.queue)
            await sender.send_messages([full(f"{run}-before")])
            await idle.send_messages(full(f"{run}-idle"))
            assert events.of(Diverted) == []
            relay.refuse()
            with pytest.raises((AzureError, OSError)):
                await sender.send_messages(full(f"{run}-lost to its caller"))
            await events.wait(FailoverEngaged)
            with pytest.raises(NotDiverted):
                await sender.cancel_scheduled_messages(1)
            for number in range(20):
                await sender.send_messages(full(f"{run}-{number}"))
            relay.heal()
            healthy = await events.wait(PrimaryHealthy)
            assert healthy.reason == BY_PING
            await idle.send_messages(full(f"{run}-after"))
            async with asyncio.timeout(LIMIT_S):
                while pair.counts.get("Syphoned", 0) < 20:
                    await events.wait(Syphoned, len(events.of(Syphoned)) + 1)
        wanted = {f"{run}-{what}" for what in ("before", "idle", "after", *range(20))}
        found: set[str] = set()
        async with (
            place.client(place.primary) as client,
            client.get_queue_receiver(place.queue, receive_mode="receiveanddelete") as receiver,
            asyncio.timeout(LIMIT_S),
        ):
            while not wanted <= found:
                for message in await receiver.receive_messages(100, max_wait_time=5):
                    if str(message.message_id).startswith(run):
                        check_full(message)
                    found.add(str(message.message_id))
        await relay.close()

    play()


def refuse(relay: Relay) -> None:
    relay.refuse()


def cut(relay: Relay) -> None:
    relay.is_cut = True


def slow(relay: Relay) -> None:
    relay.delay_s = 3 * SEND_S


def heal(relay: Relay) -> None:
    relay.heal()


class Traffic:
    """Threads that send each message until it is accepted."""

    def __init__(self, pair: sync.PairedNamespace, queue: str) -> None:
        self.accepted: list[str] = []
        self.unknown: set[str] = set()
        self._run = uuid4().hex
        self._more = threading.Condition()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(pair, queue, who)) for who in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def _send(self, pair: sync.PairedNamespace, queue: str, who: int) -> None:
        with pair.get_queue_sender(queue) as sender:
            number = 0
            while not self._over.wait(0.01):
                text = f"{self._run}-{who}-{number}"
                try:
                    sender.send_messages(ServiceBusMessage(text, message_id=text), timeout=SEND_S)
                except (AzureError, OSError, BacklogUnavailable):
                    self.unknown.add(text)
                    continue
                number += 1
                with self._more:
                    self.accepted.append(text)
                    self._more.notify_all()

    def wait(self, number: int) -> None:
        """Until so many more messages are accepted."""
        with self._more:
            wanted = len(self.accepted) + number
            assert self._more.wait_for(lambda: len(self.accepted) >= wanted, LIMIT_S)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT_S)


@pytest.mark.parametrize("fault", [refuse, cut, slow], ids=lambda fault: fault.__name__)
def test_threads_anywhere_lose_nothing_that_was_accepted(
    fault: Callable[[Relay], None], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    with relay_of_threads(*address(place.blocking_client(place.primary)), monkeypatch) as call:
        options = options_of(place, place.blocking_client(place.secondary), told)
        with sync.pair_namespace(place.blocking_client(place.primary), options) as pair:
            traffic = Traffic(pair, place.queue)
            try:
                traffic.wait(DIRECT)
                call(fault)
                told.wait(Diverted, messages=DIVERTED_MIN)
                call(heal)
                told.wait(PrimaryHealthy)
                traffic.wait(DIRECT)
            finally:
                traffic.end()
            told.wait(Syphoned, messages=sum(event.messages for event in told.of(Diverted)))
    wanted, found = set(traffic.accepted), Counter[str]()
    with (
        place.blocking_client(place.primary) as client,
        client.get_queue_receiver(place.queue, receive_mode="receiveanddelete") as receiver,
    ):
        while messages := receiver.receive_messages(500, max_wait_time=1 if wanted <= found.keys() else 10):
            found.update(body(message) for message in messages)
    assert wanted - found.keys() == set(), "accepted and lost"
