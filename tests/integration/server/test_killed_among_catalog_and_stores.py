"""A server whose files were left alone never refuses, wherever among the writes of catalog and stores it ended."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from test_lost_catalog import SPACE, create, forget_belonging, names, put_messages, serve

from duobus.broker import ScaleUnit
from duobus.errors import ConfigurationError, ServiceBusError, StoreFailed
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription

#: Ends of transactions.
ENDS = ("COMMIT", "RELEASE")
#: Of all points, so many are tried.
POINTS = 10


@contextmanager
def ended_at(point: int) -> Iterator[list[str]]:
    """Let no statement through from the end of that transaction on, as if the process had ended there."""
    ends: list[str] = []

    def trace(_cursor: Any, text: str, _bindings: Any) -> bool:
        if text.split(None, 1)[0].upper().rstrip(";") in ENDS:
            ends.append(text)
        return len(ends) < point

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)
    try:
        yield ends
    finally:
        apsw.connection_hooks.remove(hook)


async def work(unit: ScaleUnit) -> None:
    """Whatever touches catalog and stores; what fails is over."""
    about = QueueDescription(name="parted-too", enable_partitioning=True)
    topic = TopicDescription(name="news", subscriptions=(SubscriptionDescription(name="all"),))
    with suppress(ServiceBusError, StoreFailed):
        await unit.create_queue(SPACE, about)
        await unit.topics.create_topic(SPACE, topic)
        handle = unit.namespace(SPACE).queues["payroll"].fragments[0]
        unit.moves.start(SPACE, "payroll", 0, 3 - handle.store.store_id)
        with suppress(TimeoutError):
            # A move that the catalog does not answer goes on asking until the server is stopped.
            await asyncio.wait_for(unit.moves.wait(), 1.0)
        await unit.topics.delete_subscription(SPACE, "news", "all")
        await unit.delete_queue(SPACE, "parted")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the version before, with messages."""
    data = tmp_path_factory.mktemp("killed") / "data"
    create(data, "payroll", "parted")
    put_messages(data, 1)
    forget_belonging(data)
    return data


@pytest.fixture(scope="module")
def ends(before: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many transactions there are in all."""
    data = tmp_path_factory.mktemp("counted") / "data"
    shutil.copytree(before, data)
    with ended_at(1_000_000) as found:
        serve(data, work)
    return len(found)


@pytest.mark.parametrize("part", range(POINTS))
def test_the_next_start_goes_on(before: Path, ends: int, tmp_path: Path, part: int) -> None:
    data = tmp_path / "data"
    shutil.copytree(before, data)
    point = 1 + part * (ends - 1) // (POINTS - 1)
    # Not even its start may be through.
    with ended_at(point), suppress(ConfigurationError, StoreFailed):
        serve(data, work)
    assert "payroll" in names(data)
    create(data, "later")
    assert "later" in names(data)
