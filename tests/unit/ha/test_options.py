"""Options of a pair are checked when they are made."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.events import Event, Reporter
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.outage import Verdict

SECONDARY = ServiceBusClient("b.example.net", credential=None)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_the_lost_api() -> None:
    options = SendAvailabilityPairedNamespaceOptions(SECONDARY)
    assert options.backlog_queue_count == 10
    assert options.failover_interval == options.ping_primary_interval == timedelta(minutes=1)
    assert not options.enable_syphon
    assert options.poll == timedelta(minutes=15)


@pytest.mark.parametrize(
    "good",
    [
        {"failover_interval": timedelta(0)},
        {"failover_interval": timedelta(minutes=60)},
        {"ping_primary_interval": timedelta(seconds=1)},
        {"ping_primary_interval": timedelta(minutes=30)},
        {"backlog_queue_count": 1},
        {"classifier": "legacy"},
        {"classifier": lambda error: Verdict.OUTAGE},
    ],
)
def test_the_edges_of_the_ranges_are_inside(good: dict[str, Any]) -> None:
    assert callable(SendAvailabilityPairedNamespaceOptions(SECONDARY, **good).classify)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"backlog_queue_count": 0}, "1 to 1,000, not 0"),
        ({"backlog_queue_count": 1_001}, "1 to 1,000"),
        ({"failover_interval": timedelta(seconds=-1)}, "0 seconds to 60 minutes, not -1 seconds"),
        ({"failover_interval": timedelta(minutes=61)}, "not 61 minutes"),
        ({"ping_primary_interval": timedelta(milliseconds=999)}, "1 seconds to 30 minutes"),
        ({"ping_primary_interval": timedelta(minutes=31)}, "1 seconds to 30 minutes"),
        ({"backlog_queue_count": -1}, "1 to 1,000, not -1"),
        ({"poll": timedelta(0)}, "poll"),
        ({"classifier": "guess"}, "outage, documented, legacy"),
        ({"on_quota": "ignore"}, "raise, divert"),
        ({"ttl_mode": "x"}, "restart, remaining"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(bad: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SendAvailabilityPairedNamespaceOptions(SECONDARY, **bad)


@pytest.mark.parametrize(
    "bad",
    [{"backlog_queue_count": 2.5}, {"backlog_queue_count": True}, {"failover_interval": 60}, {"classifier": 5}],
)
def test_a_value_of_another_type_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        SendAvailabilityPairedNamespaceOptions(SECONDARY, **bad)
    with pytest.raises(TypeError, match="ServiceBusClient"):
        SendAvailabilityPairedNamespaceOptions("sb://b.example.net")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_an_observer_that_raises_harms_nobody(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it raises: a task that is told to end by its observer would end unseen."""

    def observer(event: Event) -> None:
        raise kind("its own fault")

    reporter = Reporter(observer)
    reporter.tell(Event("orders"))
    assert reporter.counts == {"Event": 1}
    assert "its own fault" in caplog.text


def test_the_users_own_interrupt_is_not_taken_for_a_fault_of_the_observer() -> None:
    def observer(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Reporter(observer).tell(Event("orders"))
