"""Reports of a pair without asyncio, over real brokers and the synchronous SDK."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError
from kit_threads import LIMIT_S, client_of, paired_in_threads

from duobus.cli.remote import Remote
from duobus.ha.failover import State
from duobus.ha.reports.message import EntityState, Report, read_report, state_queue, wish_message
from kits.pair import Bus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def test_a_pair_of_threads_reports_each_change_and_takes_a_wish(bus: Bus) -> None:
    queue = state_queue(bus.name)
    # No ping ends the failover while the test runs.
    options = {"failover_interval": timedelta(0), "ping_primary_interval": timedelta(minutes=30)}
    with Remote(bus.secondary.connection_string, None, None).administration(queue) as administration:
        administration.create_queue(queue)
    with (
        client_of(bus.secondary) as sdk,
        sdk.get_queue_receiver(queue) as receiver,
        sdk.get_queue_sender(queue) as sender,
        paired_in_threads(bus, report_state=True, **options) as (pair, _),
    ):
        (message,) = receiver.receive_messages(1, max_wait_time=LIMIT_S)
        first = read_report(message)
        assert first is not None
        assert first.entities == ()
        pair.on_send_failed(bus.orders, ServiceBusConnectionError(message="away"))
        assert pair.state(bus.orders) is State.FAILED_OVER
        (message,) = receiver.receive_messages(1, max_wait_time=LIMIT_S)
        second = read_report(message)
        assert second is not None
        assert second.client == first.client
        assert second.entities == (EntityState(bus.orders, "", "failed over"),)
        sender.send_messages(wish_message(bus.orders))
        assert pair._reports is not None
        pair._reports._look(Report("", 0, (), 0, 0))
        assert pair.state(bus.orders) is State.HEALTHY
