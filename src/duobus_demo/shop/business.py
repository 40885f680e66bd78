"""The shop while people look at it: programs that send and receive, slowly enough to be followed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.ha.sync import PairedSender, pair_namespace
from duobus_demo.clients import UNKNOWN_OUTCOME, Endpoint
from duobus_demo.shop.plan import BACKLOG_QUEUES, EVENTS, ORDERS, PRIMARY_NAME, SUBSCRIPTIONS, Till

#: Pauses of the programs, in seconds.
_ORDER_EVERY_S: Final = 0.1
_WORK_S: Final = 0.4
_AGAIN_S: Final = 1.0
_SEND_S: Final = 5.0
_AT_ONCE: Final = 5
_JOIN_S: Final = 20.0
_FAILOVER: Final = timedelta(seconds=1)
_PING: Final = timedelta(seconds=15)


class Business:
    """The programs of the shop, each with a thread and a connection of its own.

    Args:
        shop: The shop's namespace.
        spare: The namespace to which orders go while the shop's cannot take them.
        seed: Of what customers order.
    """

    def __init__(self, shop: Endpoint, spare: Endpoint, seed: int) -> None:
        self._shop = shop
        self._spare = spare
        self._till = Till(seed)
        self._is_over = threading.Event()
        programs: list[tuple[str, Callable[[], None]]] = [
            ("web-shop", self._take_orders),
            ("packing", lambda: self._work(lambda client: client.get_queue_receiver(ORDERS))),
        ]
        for name in SUBSCRIPTIONS:
            if name != "audit":
                programs.append((name, self._subscriber(name)))
        self._threads = [threading.Thread(target=self._again, args=(run,), name=name) for name, run in programs]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _again(self, run: Callable[[], None]) -> None:
        """Begin anew whenever the namespace was away: somebody may play with its stores."""
        while not self._is_over.is_set():
            try:
                run()
            except UNKNOWN_OUTCOME:
                self._is_over.wait(_AGAIN_S)

    def _take_orders(self) -> None:
        options = SendAvailabilityPairedNamespaceOptions(
            _prompt(self._spare),
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=_FAILOVER,
            ping_primary_interval=_PING,
            # Nobody brings back what was diverted, so that there is something to be seen; the console can.
            enable_syphon=False,
            primary_name=PRIMARY_NAME,
        )
        with pair_namespace(_prompt(self._shop), options) as pair, pair.get_queue_sender(ORDERS) as orders:
            events = pair.get_topic_sender(EVENTS)
            with events:
                while not self._is_over.wait(_ORDER_EVERY_S):
                    self._send(orders, self._till.order())
                    self._send(events, self._till.event())

    @staticmethod
    def _send(sender: PairedSender, message: ServiceBusMessage) -> None:
        # Until the pair has failed over, sends to what is away fail; customers try again with another order.
        with suppress(*UNKNOWN_OUTCOME):
            sender.send_messages(message, timeout=_SEND_S)

    def _subscriber(self, name: str) -> Callable[[], None]:
        return lambda: self._work(lambda client: client.get_subscription_receiver(EVENTS, name))

    def _work(self, opened: Callable[[ServiceBusClient], object]) -> None:
        with self._shop.client() as client, opened(client) as receiver:  # type: ignore[attr-defined]
            while not self._is_over.is_set():
                for message in receiver.receive_messages(_AT_ONCE, max_wait_time=1):
                    self._is_over.wait(_WORK_S / _AT_ONCE)
                    receiver.complete_message(message)


def _prompt(endpoint: Endpoint) -> ServiceBusClient:
    """A client without retries of its own, so that the pair hears of a failure at once."""
    made = ServiceBusClient.from_connection_string(endpoint.connection_string, retry_total=0, **endpoint.options)
    return prompt_client(made)
