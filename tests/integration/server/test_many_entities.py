"""A broker with as many entities as it may have: created, listed page by page, and back after a restart.

Steps are counted, not seconds: commits, and statements of the driver. ``make entities`` does it with the 10,000 of
which 100 are partitioned (issue's bound, ``limits.md``), the tests with a tenth of them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

from duobus.clock import Clock, Entropy
from duobus.model.access_rules import sign_token
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY, Settings, load_settings
from duobus.testing.server import queues_config

ENTITIES: Final = int(os.environ.get("DUOBUS_ENTITIES", "1000"))
PARTITIONED: Final = max(1, ENTITIES // 100)
FRAGMENTS: Final = ENTITIES - PARTITIONED + 16 * PARTITIONED
STORES: Final = 4
#: Entities created with one commit of each store, and two of the catalog.
BATCH: Final = 250
PAGE: Final = 100
#: Of a plain queue with its fragment, measured 13 KiB.
BYTES_MAX: Final = 24 << 10

NAMES: Final = [f"parted-{i:05d}" for i in range(PARTITIONED)] + [
    f"plain-{i:05d}" for i in range(ENTITIES - PARTITIONED)
]


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the statements of every connection that is opened meanwhile, by their first word."""
    found: Counter[str] = Counter()

    def count(_cursor: Any, text: str, _bindings: Any) -> bool:
        found[text.split(None, 1)[0].upper()] += 1
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = count

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)


def server_in(folder: Path) -> Server:
    config = folder / "Config.json"
    properties = {name: {"EnablePartitioning": name.startswith("parted")} for name in NAMES}
    config.write_text(json.dumps(queues_config(properties)))
    # SQLite's transactions are counted; a journal would bring some more, whenever it brings commits over.
    settings = Settings(
        data=folder / "data", config=config, port=0, http_port=0, stores=STORES, emulator=True, journal=False
    )
    return Server(load_settings(settings), Clock(), Entropy())


def queues_of(server: Server) -> dict[str, Any]:
    return server.unit.namespace("sbemulatorns").queues


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listed(port: int) -> list[str]:
    """The names of all queues, asked for page by page."""
    token = sign_token("http://localhost/", "RootManageSharedAccessKey", EMULATOR_KEY, Clock().now_ms() // 1000 + 600)
    names: list[str] = []
    connection = HTTPConnection("localhost", port, timeout=60)
    try:
        while True:
            url = f"/$Resources/queues?$skip={len(names)}&$top={PAGE}&api-version=2021-05"
            connection.request("GET", url, headers={"Authorization": token})
            answer = connection.getresponse()
            page = answer.read().decode()
            assert answer.status == 200, page
            titles = [part.partition("</title>")[0].rpartition(">")[2] for part in page.split("<entry")[1:]]
            if not titles:
                return names
            assert len(titles) <= PAGE
            names += titles
    finally:
        connection.close()


async def created(folder: Path) -> int:
    """Create them, list them, and return what they take."""
    gc.collect()
    before = memory_bytes()
    with counted() as steps:
        server = server_in(folder)
        await server.start()
    gc.collect()
    taken = memory_bytes() - before
    batches = -(-ENTITIES // BATCH)
    try:
        assert sorted(queues_of(server)) == sorted(NAMES)
        assert all(handle.online for queue in queues_of(server).values() for handle in queue.fragments)
        # A store commits once for its file, once for its generation, and once a batch.
        assert [broker.store.commits for broker in server.unit.brokers.values()] == [1 + batches] * STORES  # type: ignore[attr-defined]
        # Rows: entities, slots, fragments, sources; each checked or written a few times.
        assert steps.total() < 20 * FRAGMENTS + 500
        port = server.port("http")
        assert port is not None
        assert await asyncio.to_thread(listed, port) == sorted(NAMES)
    finally:
        await server.stop()
    return taken


async def restarted(folder: Path) -> None:
    with counted() as steps:
        server = server_in(folder)
        await server.start()
    try:
        assert sorted(queues_of(server)) == sorted(NAMES)
        assert all(handle.online for queue in queues_of(server).values() for handle in queue.fragments)
        # The one commit raises the epoch of every fragment, with a statement each; nothing is asked of an empty one.
        assert [broker.store.commits for broker in server.unit.brokers.values()] == [1] * STORES  # type: ignore[attr-defined]
        assert steps.total() < FRAGMENTS + 500
    finally:
        await server.stop()


@pytest.mark.slow
def test_entities_are_created_in_batches_listed_in_pages_and_back_after_a_restart_in_few_steps(tmp_path: Path) -> None:
    taken = asyncio.run(created(tmp_path))
    assert taken < BYTES_MAX * FRAGMENTS + (32 << 20)
    asyncio.run(restarted(tmp_path))
