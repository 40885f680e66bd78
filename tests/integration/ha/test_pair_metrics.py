"""Metrics of a pair, as a reader of the OpenTelemetry SDK collects them (features 3.7)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusConnectionError
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from duobus.ha import metrics
from duobus.ha.events import BacklogDepth, Reporter, SyphonDeadLettered
from duobus.ha.metrics import COUNTERS, OTHERS, PairMetrics
from kits.virtual_pair import World, in_virtual_time, wire


class Collected:
    """What a reader has: metric and attributes to value."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader])

    def values(self) -> dict[tuple[str, ...], float]:
        return {
            (metric.name, *(str(value) for key, value in sorted(point.attributes.items()) if key != "namespace")): (
                point.count if hasattr(point, "count") else point.value
            )
            for metric in self.metrics()
            for point in metric.data.data_points
        }

    def metrics(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
        ]


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collected]:
    found = Collected()
    meter = found.provider.get_meter("test")
    monkeypatch.setattr(metrics.otel, "get_meter", lambda name: meter)
    yield found
    found.provider.shutdown()


def test_an_outage_is_told_in_metrics_from_its_first_failure_to_its_last_syphoned_message(collected: Collected) -> None:
    async def outage() -> None:
        world = World()
        async with await world.pair(enable_syphon=True) as pair:
            sender = pair.get_queue_sender("orders")
            assert collected.values() == {("duobus.pair.backlog.out_of_rotation",): 0}
            world.primary.away()
            with pytest.raises(ServiceBusConnectionError):
                await sender.send_messages(ServiceBusMessage("x"))
            assert collected.values()["duobus.pair.state", "orders"] == 1
            await asyncio.sleep(60.1)
            assert collected.values()["duobus.pair.state", "orders"] == 2
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            queue = sender.backlog_queue
            assert queue is not None
            world.secondary.faults[queue] = lambda: ServiceBusConnectionError(message="sick")
            await sender.send_messages(ServiceBusMessage("c"))
            during = collected.values()
            assert during["duobus.pair.backlog.out_of_rotation",] == 1
            assert during["duobus.pair.backlog.failures", queue] == 1
            assert during["duobus.pair.diverted", queue, "orders"] == 2
            del world.secondary.faults[queue]
            await asyncio.sleep(120)
            world.primary.back()
            await asyncio.sleep(180)
            after = collected.values()
        assert after["duobus.pair.state", "orders"] == 0
        assert after["duobus.pair.send_failures", "orders"] == 1
        assert after["duobus.pair.failovers", "orders"] == 1
        assert after["duobus.pair.recoveries", "orders", "ping"] == 1
        assert after["duobus.pair.time_in_failover", "orders"] == pytest.approx(180, abs=2)
        assert after["duobus.pair.pings", "orders", "failed"] == 2
        assert after["duobus.pair.pings", "orders", "accepted"] == 1
        carried = {name: value for name, value in after.items() if name[0] == "duobus.pair.syphon.messages"}
        assert sum(carried.values()) == 3
        assert {(backlog in world.backlogs, entity) for _, backlog, entity in carried} == {(True, "orders")}
        assert after["duobus.pair.syphon.lag", "orders"] >= 2
        assert sum(value for name, value in after.items() if name[0] == "duobus.pair.syphon.skipped") >= 3
        assert collected.values().get(("duobus.pair.state", "orders")) is None, "a pair that is closed shows no state"

    in_virtual_time(outage)


def test_while_a_pair_is_being_made_nothing_is_out_of_its_rotation(collected: Collected) -> None:
    async def pairing() -> None:
        world = World()
        making = asyncio.create_task(world.pair())
        await asyncio.sleep(0.001)
        assert not making.done()
        assert collected.values() == {("duobus.pair.backlog.out_of_rotation",): 0}
        await (await making).close()

    in_virtual_time(pairing)


def test_depths_and_dead_letters_are_told_by_queue_and_by_reason(collected: Collected) -> None:
    reporter = Reporter(PairMetrics("contoso", meter=collected.provider.get_meter("test")))
    reporter.tell(BacklogDepth("q/0", waiting=5, dead=1))
    reporter.tell(BacklogDepth("q/0", waiting=3, dead=2))
    reporter.tell(SyphonDeadLettered("orders", "q/0", "TTLExpiredException", "late"))
    reporter.tell(SyphonDeadLettered("orders", "q/0", "a reason that somebody made up", "?"))
    values = collected.values()
    assert values["duobus.pair.backlog.depth", "q/0", "waiting"] == 3
    assert values["duobus.pair.backlog.depth", "q/0", "dead"] == 2
    assert values["duobus.pair.syphon.dead_lettered", "q/0", "TTLExpiredException"] == 1
    assert values["duobus.pair.syphon.dead_lettered", "q/0", "other"] == 1


def test_metrics_are_made_with_the_meter_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics.otel, "get_meter", lambda name: pytest.fail("another meter was asked for"))
    found = Collected()
    PairMetrics("contoso", meter=found.provider.get_meter("test")).add("duobus.pair.faults", 1)
    assert found.values() == {("duobus.pair.faults",): 1}
    found.provider.shutdown()


def test_a_syphon_of_its_own_is_told_in_metrics(collected: Collected) -> None:
    async def carry() -> None:
        from duobus.ha.aio import Syphon

        world = World(backlogs=1)
        gone = ServiceBusMessage("x", application_properties={"x-ms-path": "gone"})
        world.secondary.store(world.backlogs[0], wire(gone))
        world.primary.faults["gone"] = MessagingEntityNotFoundError
        syphon = Syphon(
            world.primary,  # type: ignore[arg-type]
            world.secondary,  # type: ignore[arg-type]
            world.backlogs,
            reporter=Reporter(metrics.metrics_of("contoso")),
            clock=world.clock,
        )
        task = asyncio.create_task(syphon.run())
        await asyncio.sleep(1_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        values = collected.values()
        assert values["duobus.pair.syphon.polls", world.backlogs[0], "messages"] == 1
        assert values["duobus.pair.syphon.polls", world.backlogs[0], "empty"] == 1
        assert sum(value for name, value in values.items() if name[0] == "duobus.pair.syphon.dead_lettered") == 1

    in_virtual_time(carry)


def test_every_metric_has_the_unit_the_text_and_the_attributes_of_its_table(collected: Collected) -> None:
    found = PairMetrics("contoso", meter=collected.provider.get_meter("test"), resting=lambda: 0)
    for name, (_, _, attributes) in COUNTERS.items():
        found.add(name, 1, **dict.fromkeys(attributes, "x"))
    for metric in collected.metrics():
        unit, text, attributes = {**COUNTERS, **OTHERS}[metric.name]
        assert (metric.unit, metric.description) == (unit, text)
        for point in metric.data.data_points:
            assert set(point.attributes) == {"namespace", *attributes}


def test_without_opentelemetry_a_pair_works_and_has_no_metrics() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from duobus.ha.metrics import metrics_of\n"
        "from duobus.ha.tracing import diverting, syphoning\n"
        "assert metrics_of('contoso') is None\n"
        "with diverting('orders', 'q/0', []), syphoning('orders', 'q/0', []):\n"
        "    print('works')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "works\n", done.stderr
