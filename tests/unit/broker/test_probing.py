"""Stores that nobody uses show how they are: at most one commit a second when asked, one in ten seconds otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from duobus.broker.store_probes import ANSWER_S, FRESH_S, PROBE_S, StoreProbes
from duobus.gateway.rest.health import state_of
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.writer_pool import LATE_S
from kits.broker import Hall, batch, simulated, turns


@contextmanager
def probing(hall: Hall) -> Iterator[StoreProbes]:
    """Probes that have begun."""
    probes = StoreProbes(hall.unit.brokers)
    probes.begin()
    try:
        yield probes
    finally:
        probes.stop()


def states(hall: Hall) -> dict[int, str]:
    return {number: state_of(broker) for number, broker in hall.unit.brokers.items()}


def commits(hall: Hall) -> list[int]:
    return [broker.commits for broker in hall.unit.brokers.values()]


@simulated
async def test_an_idle_store_that_stalls_is_late_to_the_first_who_asks_and_stalled_when_its_timeout_is_over(
    hall: Hall,
) -> None:
    await hall.start()
    hall.writers[2].is_held = True
    probes = StoreProbes(hall.unit.brokers)
    began_s = hall.loop.time()
    await probes.look()
    assert LATE_S <= hall.loop.time() - began_s <= ANSWER_S
    assert states(hall) == {1: "open", 2: "late", 3: "open", 4: "open"}
    await asyncio.sleep(STORE_TIMEOUT_S)
    await probes.look()
    assert states(hall) == {1: "open", 2: "stalled", 3: "open", 4: "open"}
    hall.writers[2].release()
    await asyncio.sleep(10)
    await probes.look()
    assert set(states(hall).values()) == {"open"}


@simulated
async def test_an_idle_store_that_fails_is_seen_by_the_first_who_asks(hall: Hall) -> None:
    await hall.start()
    hall.writers[3].fail_next = "before"
    began_s = hall.loop.time()
    await StoreProbes(hall.unit.brokers).look()
    assert states(hall)[3] == "failed"
    assert hall.loop.time() - began_s < 0.1


@simulated
async def test_however_many_ask_a_store_commits_once_a_second_at_most_and_not_at_all_when_it_is_in_use(
    hall: Hall,
) -> None:
    await hall.start()
    probes = StoreProbes(hall.unit.brokers)
    for _ in range(50):
        await asyncio.gather(*(probes.look() for _ in range(20)))
        await asyncio.sleep(0.1)
    assert all(5 <= number <= 5 / FRESH_S + 1 for number in commits(hall))
    queue = await hall.create()
    (home,) = {handle.store.store_id for handle in queue.fragments}
    before = hall.unit.brokers[home].commits
    for _ in range(30):
        queue.send(batch(b"m"))
        await asyncio.sleep(0.1)
        await probes.look()
    assert hall.unit.brokers[home].commits == before + 30


@simulated
async def test_a_drill_that_nobody_asks_about_is_noticed_and_an_idle_server_commits_next_to_nothing(hall: Hall) -> None:
    await hall.start()
    with probing(hall):
        await asyncio.sleep(100)
        assert set(commits(hall)) <= {9, 10}
        hall.writers[1].is_held = True
        await asyncio.sleep(PROBE_S + STORE_TIMEOUT_S)
        assert states(hall)[1] == "stalled"
        hall.writers[1].release()
        await asyncio.sleep(10)
        assert states(hall)[1] == "open"
    before = commits(hall)
    await asyncio.sleep(100)
    assert commits(hall) == before


@simulated
async def test_a_server_that_stops_while_a_probe_is_under_way_ends(hall: Hall) -> None:
    await hall.start()
    probes = StoreProbes(hall.unit.brokers)
    asked = asyncio.ensure_future(probes.look())
    await turns(1)
    await asyncio.wait_for(hall.unit.stop(), 15)
    await asked


@simulated
async def test_a_store_that_failed_counts_as_failed_until_its_file_is_open_again(hall: Hall) -> None:
    await hall.start()
    broker, writer = hall.unit.brokers[3], hall.writers[3]
    writer.fail_next = "before"
    await StoreProbes(hall.unit.brokers).look()
    writer.is_held = True
    await asyncio.sleep(1)
    seen = [broker.state]
    while writer.waiting:  # first the call that closes the store, then the one that opens its file, then its recovery
        writer.step()
        await turns()
        seen.append(broker.state)
    assert seen[:3] == ["failed", "failed", "opening"]
    assert seen[-1] == "open"
