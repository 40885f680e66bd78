"""``/$duobus/history``: rates of what was done, depths as they were, bounded in time and entities."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from test_overview import SENDER, WATCHER, ask, connected, watched

from duobus.amqp import ACCEPTED, Transfers
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.operations import history
from duobus.server.operations.history import COARSE_POINTS_MAX, FIELDS, FINE_POINTS_MAX, History, Series
from kits.gateway import in_loop, serving, settled
from kits.manual_clock import ManualClock


def kept(server: Server) -> History:
    found = server._history
    assert found is not None
    return found


async def told(server: Server, query: str = "") -> Any:
    reply = await ask(server, f"history{query}")
    assert reply.status == 200, reply
    return json.loads(reply.text)


@in_loop
async def test_a_server_that_starts_has_no_points() -> None:
    async with watched(QueueDescription(name="q")) as server:
        found = await told(server)
        assert (found["points"], found["entities"], found["stepSeconds"]) == ([], [], 10)
        assert found["fields"] == ["atMs", *FIELDS]
        assert (await told(server, "?minutes=61"))["stepSeconds"] == 300


@in_loop
async def test_points_have_rates_since_the_point_before_and_depths_as_they_are() -> None:
    async with serving(QueueDescription(name="Q"), QueueDescription(name="idle")) as server:
        clock = kept(server)._clock = ManualClock()
        kept(server)._last_ms = clock.monotonic_ms()
        client = await connected(server)
        sender = await client.sender("q")
        for body in (b"one", b"two", b"three", b"four"):
            await client.send(sender, body)
        receiver = await client.receiver("q", credit=2)
        batch = await client.wait(Transfers, lambda event: event.link is receiver)
        receiver.settle(batch.first_delivery_id, batch.first_delivery_id, ACCEPTED)
        await client.flush()
        await settled(lambda: server.unit.namespace("ns").queues["q"].numbers()[0][0] == 3)
        clock.advance(10_000)
        await kept(server).read()
        for body in (b"five", b"six"):
            await client.send(sender, body)
        clock.advance(20_000)
        await kept(server).read()
        found = await told(server)
        assert found["entities"] == ["Q"]
        assert [point[1:] for point in found["points"]] == [
            [0.4, 0.2, 0.1, 3.0, 0.0, 1.0, 1.0],
            [0.1, 0.0, 0.0, 5.0, 0.0, 1.0, 1.0],
        ]
        of_entity = await told(server, "?entity=q")
        assert [point[1:] for point in of_entity["points"]] == [
            [0.4, 0.2, 0.1, 3.0, 0.0, 1.0, 0.0],
            [0.1, 0.0, 0.0, 5.0, 0.0, 1.0, 0.0],
        ]
        assert len((await told(server, "?minutes=0"))["points"]) == 2


@in_loop
async def test_listen_on_the_namespace_is_enough_and_wrong_questions_are_refused() -> None:
    async with watched(QueueDescription(name="q")) as server:
        assert (await ask(server, "history", WATCHER)).status == 200
        assert (await ask(server, "history", SENDER)).status == 401
        for query, status, words in (("?minutes=x", 400, "whole number"), ("?entity=none", 404, "no points")):
            reply = await ask(server, f"history{query}")
            assert (reply.status, words in reply.text) == (status, True)


@in_loop
async def test_namespaces_do_not_see_each_other() -> None:
    async with watched(QueueDescription(name="q")) as server:
        server.metering.add("other", "elsewhere", "send", 5, 1, 1)
        await kept(server).read()
        assert (await told(server))["entities"] == []
        assert [point[1] for point in (await told(server))["points"]] == [0.0]
        assert kept(server).points("other", None, 60)["entities"] == ["elsewhere"]


def test_a_series_is_bounded_and_five_minutes_are_the_mean_of_their_points() -> None:
    series = Series()
    for index in range(FINE_POINTS_MAX * 30):
        series.add(index, [index % 30, 0, 0, index, 0, 0, 0])
    assert len(series.points(60)) == FINE_POINTS_MAX
    coarse = series.points(1_440)
    assert len(coarse) == COARSE_POINTS_MAX
    assert {point[1] for point in coarse} == {14.5}
    assert coarse[-1][4] == FINE_POINTS_MAX * 30 - 1
    assert len(series.points(1)) == 6


@in_loop
async def test_of_many_entities_the_busiest_are_kept_and_others_have_turns_meanwhile() -> None:
    number = 700
    async with serving(*(QueueDescription(name=f"q{index}") for index in range(number))) as server:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        for index in range(number):
            server.metering.add("ns", f"q{index}", "send", 1 + index, 1, 1)
        beside = asyncio.create_task(others())
        await kept(server).read()
        beside.cancel()
        assert turns >= 2
        entities = kept(server).points("ns", None, 60)["entities"]
        assert entities == [f"q{index}" for index in reversed(range(number - history.ENTITIES_MAX, number))]
        for _ in range(200):
            await kept(server).read()
            server.metering.add("ns", "q0", "settle", 50, 1, 1)
        await kept(server).read()
        assert kept(server).points("ns", None, 60)["entities"][0] == "q0"
        assert len(kept(server)._entities) == history.ENTITIES_MAX
