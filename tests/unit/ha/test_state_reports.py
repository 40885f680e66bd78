"""Reports of a paired client about its state, and wishes of an operator, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from duobus.ha.failover import State
from duobus.ha.reports.message import (
    ENTITIES_MAX,
    REPORT_S,
    EntityState,
    Report,
    latest,
    read_report,
    read_wish,
    report_message,
    report_of,
    state_queue,
    wish_message,
)
from kits import virtual_pair
from kits.virtual_pair import World, in_virtual_time

QUEUE = state_queue("contoso")


def peeked(message: AmqpAnnotatedMessage) -> Any:
    """A message as the SDK gives one to whoever peeks."""
    subject = message.properties.subject if message.properties else None
    text = subject.decode() if isinstance(subject, bytes) else subject
    return SimpleNamespace(
        subject=text, body=list(message.body), sequence_number=getattr(message, "sequence_number", 1)
    )


def reports_in(world: World) -> list[Report]:
    found = [read_report(peeked(stored.decoded())) for stored in world.secondary.queues[QUEUE]]
    return [report for report in found if report is not None]


async def put(world: World, message: ServiceBusMessage) -> None:
    async with world.secondary.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(message)


@pytest.fixture(autouse=True)
def _peeking(monkeypatch: pytest.MonkeyPatch) -> None:
    async def peek(self: Any, max_message_count: int, sequence_number: int) -> list[Any]:
        await self.namespace.operate("peek", self.path)
        stored = [one for one in self.namespace.queues[self.path] if one.number >= sequence_number]
        return [peeked(one.decoded()) for one in stored[:max_message_count]]

    monkeypatch.setattr(virtual_pair.Receiver, "peek_messages", peek, raising=False)


def test_a_client_reports_at_once_each_minute_and_soon_after_a_change() -> None:
    async def play() -> None:
        world = World()
        world.secondary.queues[QUEUE] = []
        async with await world.pair(failover_interval=timedelta(0), report_state=True) as pair:
            await asyncio.sleep(2 * REPORT_S + 10)
            assert [report.entities for report in reports_in(world)] == [(), (), ()]
            world.primary.away()
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            await asyncio.sleep(2)
            last = reports_in(world)[-1]
            assert last.entities == (EntityState("orders", "", "failed over"),)
            assert len({report.client for report in reports_in(world)}) == 1

    in_virtual_time(play)


def test_an_operator_marks_an_entity_healthy_and_each_wish_is_taken_once() -> None:
    async def play() -> None:
        world = World()
        world.secondary.queues[QUEUE] = []
        async with await world.pair(
            failover_interval=timedelta(0), ping_primary_interval=timedelta(minutes=30), report_state=True
        ) as pair:
            sender = pair.get_queue_sender("orders")
            world.primary.away()
            await sender.send_messages(ServiceBusMessage("diverted"))
            assert pair.state("orders") is State.FAILED_OVER
            await put(world, wish_message("orders"))
            await asyncio.sleep(15)
            assert pair.state("orders") is State.HEALTHY
            await sender.send_messages(ServiceBusMessage("diverted again, as the primary is away"))
            await asyncio.sleep(60)
            assert pair.state("orders") is State.FAILED_OVER

    in_virtual_time(play)


def test_while_all_is_well_nobody_looks_for_wishes() -> None:
    async def play() -> None:
        world = World()
        world.secondary.queues[QUEUE] = []
        async with await world.pair(report_state=True):
            await asyncio.sleep(600)
        assert not [entry for entry in world.secondary.log if entry[1] == "peek"]
        assert len(reports_in(world)) <= 11

    in_virtual_time(play)


def test_a_pair_works_on_when_its_reports_fail_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        world = World()
        # The queue is not there.
        async with await world.pair(failover_interval=timedelta(0), report_state=True) as pair:
            await asyncio.sleep(300)
            world.primary.away()
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            assert world.kept() == ["diverted"]
            await asyncio.sleep(300)

    with caplog.at_level(logging.WARNING, "duobus.ha"):
        in_virtual_time(play)
    assert len([record for record in caplog.records if "is not reported" in record.message]) == 1


def test_without_the_option_nothing_is_reported() -> None:
    async def play() -> None:
        world = World()
        world.secondary.queues[QUEUE] = []
        async with await world.pair():
            await asyncio.sleep(120)
        assert reports_in(world) == []

    in_virtual_time(play)


def test_a_report_survives_the_message_and_a_long_one_is_cut() -> None:
    states = [EntityState(f"q{index:04}", "", "suspect") for index in range(ENTITIES_MAX + 5)]
    report = report_of("c", 7, states, 2)
    assert (len(report.entities), report.left_out) == (ENTITIES_MAX, 5)
    assert read_report(peeked(report_message(report).raw_amqp_message)) == report
    assert read_wish(peeked(wish_message("a/b").raw_amqp_message)) == "a/b"
    assert read_wish(peeked(report_message(report).raw_amqp_message)) is None
    assert latest([report, report._replace(at_ms=9), report._replace(client="b")]) == [
        report._replace(client="b"),
        report._replace(at_ms=9),
    ]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff", b'{"client":1,"atMs":1,"entities":[],"leftOut":0,"resting":0}']
)
def test_what_somebody_else_has_put_there_is_no_report(body: bytes) -> None:
    for subject in ("duobus-pair-state", "duobus-pair-mark-healthy", None):
        message = SimpleNamespace(subject=subject, body=[body], sequence_number=1)
        assert read_report(message) is None
        assert read_wish(message) is None
